"""`lpx bench history`: the runs in the ledger, one a line."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from lpx.cli.bench.selection import RunSelection
from lpx.cli.option_groups import spread_options
from lpx.plain_text import plain_text

if TYPE_CHECKING:
    from lpx.bench.ledger import Run

_Json = Annotated[bool, typer.Option("--json", help="Print JSON, everything but the samples.")]
_Figures = Annotated[
    list[str] | None,
    typer.Option(
        "--figure",
        help="Show this figure, such as itl_ms_p99, in place of the main one and TTFT; may be given several times.",
        metavar="NAME",
    ),
]
_DEFAULT_LAST = 20


@spread_options
def history(selection: RunSelection, figure: _Figures = None, json_output: _Json = False) -> None:
    """List recorded runs, the newest last.

    Example: lpx bench history --model qwen --since 7d
    """
    import dataclasses

    from lpx.bench.ledger import RunFilter
    from lpx.bench.ledger.export import run_to_json

    ledger, where = selection.open(), selection.filter()
    if json_output:
        runs = ledger.find(where)
        print(json.dumps([run_to_json(run) for run in runs], ensure_ascii=False, indent=2))
        return
    last = where.last or _DEFAULT_LAST
    runs = ledger.find(dataclasses.replace(where, last=last + 1))
    if not runs:
        said = (
            "holds no such run" if ledger.find(RunFilter(last=1)) else "holds no run yet; `lpx bench latency` makes one"
        )
        print(plain_text(f"the ledger {ledger.path} {said}"), file=sys.stderr)
        return
    more = len(runs) > last and where.last is None
    baselines: dict[int, list[str]] = {}
    for name, run_id in ledger.baselines().items():
        baselines.setdefault(run_id, []).append(name)
    _print_runs(runs[-last:], figure or [], baselines)
    if more:
        print(f"\nthe newest {last}; --last N shows more")


def _print_runs(runs: list[Run], figures: list[str], baselines: dict[int, list[str]]) -> None:
    from lpx.bench.headline import figure_text, first_token_ms, headline, shape
    from lpx.cli.tables import print_table

    this_year = datetime.now().year
    own = {run.id: " ".join((*(f"={name}" for name in baselines.get(run.id, ())), *run.tags)) for run in runs}
    several_engines = {run.measurement.subject.engine for run in runs} != {"lpx"}
    shown = figures or ["RESULT", "TTFT ms"]
    columns = ["RUN", "BEGUN", "KIND", "MODEL", "B×IN→OUT", *shown]
    if several_engines:
        columns.insert(3, "ENGINE")
    if any(own.values()):
        columns.append("TAGS")
    rows = []
    for run in runs:
        measured = run.measurement
        begun = measured.started.astimezone()
        if figures:
            cells = [figure_text(name, measured.figures[name]) if name in measured.figures else "" for name in figures]
        else:
            result = (
                str(headline(measured) or "").replace("tokens/s", "tok/s").replace("perplexity", "ppl")
            )  # 80 columns are few
            cells = [result, first_token_ms(measured.figures) or ""]
        row = [
            str(run.id),
            begun.strftime("%m-%d %H:%M" if begun.year == this_year else "%Y-%m-%d"),
            measured.kind,
            measured.subject.model,
            shape(measured),
            *cells,
        ]
        if several_engines:
            row.insert(3, measured.subject.engine)
        if any(own.values()):
            row.append(own[run.id])
        rows.append(row)
    print_table(
        columns, rows, right=("RUN", *shown), cut=("MODEL", "ENGINE"), folded=("TAGS",), below=("ENGINE", "TAGS")
    )
