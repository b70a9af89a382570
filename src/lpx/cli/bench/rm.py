"""`lpx bench rm`: take runs out of the ledger."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lpx.cli.bench.recording import LedgerFile, open_ledger
from lpx.errors import ConfigError


def rm(
    runs: Annotated[list[int], typer.Argument(help="Numbers of runs, as `lpx bench history` shows them.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    ledger: LedgerFile = None,
) -> None:
    """Remove runs for good; baselines are kept.

    Example: lpx bench rm 12 13
    """
    from lpx.cli.tables import count_of

    opened, runs = open_ledger(ledger), list(dict.fromkeys(runs))
    opened.require(runs)  # says which one is unknown before it asks
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("nobody can be asked here; --yes removes the runs without asking")
        typer.confirm(f"Remove {count_of(len(runs), 'run')}?", abort=True)
    opened.remove(runs)
    print(f"removed {count_of(len(runs), 'run')}")
