"""`lpx bench note`: write a note to a run, tag it, or take tags off."""

from __future__ import annotations

from typing import Annotated

import typer

from lpx.cli.bench.recording import LedgerFile, open_ledger
from lpx.errors import ConfigError


def note(
    run: Annotated[str, typer.Argument(help="A run's number, a baseline's name, or `last`.")],
    text: Annotated[str | None, typer.Argument(help="The note, in place of the one that is there.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Add a tag; may be given several times.")] = None,
    untag: Annotated[
        list[str] | None, typer.Option("--untag", help="Take a tag off; may be given several times.")
    ] = None,
    ledger: LedgerFile = None,
) -> None:
    """Write a note to a run, and tag it.

    Example: lpx bench note last "before the new driver" --tag driver-570
    """
    if text is None and not tag and not untag:
        raise ConfigError("nothing to do: give a note, --tag or --untag")
    opened = open_ledger(ledger)
    found = opened.named(run)
    opened.annotate(found.id, note=text, add=tag or (), drop=untag or ())
    print(f"noted on run {found.id}")
