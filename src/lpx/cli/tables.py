"""Small pieces of the tables that commands print."""

from __future__ import annotations

from collections.abc import Sequence

from lpx.plain_text import plain_text

_UNLIMITED = 1000  # columns, where nobody reads on a terminal
_LONGEST_CUT = 100  # columns that a text takes which may be shortened, anywhere: beyond it is no name
_LEAST_CUT = 6  # columns that even a shortened text keeps


def count_of(number: int, what: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    cut: Sequence[str] = (),
    folded: Sequence[str] = (),
) -> None:
    """A table without lines on stdout, as wide as the terminal; as wide as it needs where that is none.

    Cells are text as it is, not markup. Columns in `right` are aligned there; where there is no room, and beyond 100
    characters anywhere, those in `cut` are shortened, and those in `folded` go on in further lines.
    """
    import sys

    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    shown = [[plain_text(cell) for cell in row] for row in rows]
    for index, name in enumerate(columns):
        width = max(map(cell_len, (name, *(row[index] for row in shown))))
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name not in folded,
            overflow="fold" if name in folded else "ellipsis",
            max_width=_LONGEST_CUT if name in cut else None,
            min_width=min(width, _LEAST_CUT) if name in cut or name in folded else width,
        )
    for row in shown:
        table.add_row(*map(Text, row))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _UNLIMITED)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
