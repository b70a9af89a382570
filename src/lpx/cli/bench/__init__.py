"""`lpx bench`: measure this machine, the engine on it, and any server; one file per command."""

from __future__ import annotations

import typer

from lpx.cli.bench.decode import decode
from lpx.cli.bench.latency import latency
from lpx.cli.bench.roofline import roofline
from lpx.cli.bench.serve import serve

app = typer.Typer(help="Measure the machine, and the engine on it.", no_args_is_help=True)
app.command("roofline")(roofline)
app.command("latency")(latency)
app.command("serve")(serve)
app.command("decode")(decode)
