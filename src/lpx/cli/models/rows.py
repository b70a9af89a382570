"""What commands say of a version: the same in JSON and in tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from lpx.store.folder import StoredModel


def version_row(model: StoredModel) -> dict[str, Any]:
    """For JSON."""
    return {**dataclasses.asdict(model), "path": str(model.path), "present": True}


def size(count: int) -> str:
    """`98.4 MB`; megabytes are 10⁶ bytes, as the sizes of files are told."""
    return (
        f"{count / 1e9:.2f} GB"
        if count >= 1e9
        else f"{count / 1e6:.1f} MB"
        if count >= 1e5
        else f"{count / 1e3:.1f} kB"
    )


def speed(model: StoredModel) -> str:
    """The latest measured decode speed, or "-"."""
    for figures in model.measured:
        value = figures.get("decode_tokens_per_second")
        if isinstance(value, int | float):
            return f"{value:.0f} tok/s"
    return "-"


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """A plain table on stdout: as wide as its content in a pipe, folded to fit a terminal."""
    import sys

    from rich import box
    from rich.console import Console
    from rich.table import Table

    table: Table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    if not sys.stdout.isatty():
        console = Console(highlight=False, markup=False, width=max(80, console.measure(table).maximum))
    console.print(table)
