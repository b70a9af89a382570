"""`lpx bench`: measure this machine, the engine on it, and any server; one file per command."""

from __future__ import annotations

import typer

from lpx.cli.bench import baseline
from lpx.cli.bench.compare import compare
from lpx.cli.bench.decode import decode
from lpx.cli.bench.export import export
from lpx.cli.bench.gate import gate
from lpx.cli.bench.history import history
from lpx.cli.bench.latency import latency
from lpx.cli.bench.naive import naive
from lpx.cli.bench.note import note
from lpx.cli.bench.plot import plot
from lpx.cli.bench.rm import rm
from lpx.cli.bench.roofline import roofline
from lpx.cli.bench.serve import serve
from lpx.cli.bench.show import show

app = typer.Typer(help="Measure the machine, and the engine on it.", no_args_is_help=True)
app.command("roofline")(roofline)
app.command("latency")(latency)
app.command("serve")(serve)
app.command("decode")(decode)
app.command("history")(history)
app.command("show")(show)
app.command("note")(note)
app.command("rm")(rm)
app.command("plot")(plot)
app.command("export")(export)
app.command("compare")(compare)
app.command("naive")(naive)
app.command("gate")(gate)
app.add_typer(baseline.app, name="baseline")
