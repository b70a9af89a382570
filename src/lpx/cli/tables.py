"""Small pieces of the tables that commands print."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_UNLIMITED = 1000  # columns, where nobody reads on a terminal: nothing is cut


def count_of(number: int, what: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def plain_text(text: str) -> str:
    """One line that a terminal shows as it is: what would move its cursor or colour it becomes a question mark."""
    return "".join(character if character.isprintable() else "?" for character in text)


def open_table(*columns: str, right: tuple[str, ...] = (), shrinking: tuple[str, ...] = ()) -> Table:
    """A table without lines; columns in `right` are aligned there, those in `shrinking` are cut where it is narrow."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=True,
            overflow="ellipsis" if name in shrinking else "crop",
            min_width=None if name in shrinking else len(name),
        )
    return table


def add_row(table: Table, *cells: str) -> None:
    """Text as it is, not as markup."""
    from rich.text import Text

    table.add_row(*(Text(plain_text(cell)) for cell in cells))


def print_table(table: Table) -> None:
    """On stdout, as wide as the terminal; in full where it is none."""
    import sys

    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _UNLIMITED)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
