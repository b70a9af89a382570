"""Tables and paragraphs that commands print: as wide as the terminal, by the columns that characters really take."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

from lpx.plain_text import plain_text

_LONGEST_CUT = 100  # columns that a text takes which may be shortened, anywhere: beyond it is no name
_READABLE, _LEAST = 10, 6  # columns that a shortened or folded text keeps, where there is room, and in any case
_GAP = 2
_LEAST_WIDTH = 20  # of a terminal


def count_of(number: int, what: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def line_width() -> int | None:
    """Columns of a line on stdout: the terminal's, or those of the variable COLUMNS; None: nobody says."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given[:6]) > 0:
        return max(int(given[:6]), _LEAST_WIDTH)
    if not sys.stdout.isatty():
        return None
    import shutil

    return max(shutil.get_terminal_size().columns, _LEAST_WIDTH)


def wrapped(text: str, width: int | None, indent: str = "") -> list[str]:
    """`text` in lines of at most `width` columns, those behind the first with `indent` before them.

    Lines end at spaces, between Chinese characters, and within a word that is longer than a line.
    """
    from rich.cells import cell_len

    if width is None or cell_len(text) <= width:
        return [text]
    indent = indent if 2 * len(indent) <= width else ""
    room = width - len(indent)  # of further lines
    lines, line, used = [], "", 0
    for word in _words(text):
        size = cell_len(word.rstrip())
        if used + size > width and size <= room and line.strip():
            lines.append(line.rstrip())
            line, used = indent, len(indent)
        while used + cell_len(word.rstrip()) > width:
            head = _first_cells(word, width - used) if used < width else ""
            if head or line.strip():
                lines.append((line + head).rstrip())
                line, used = indent, len(indent)
            word = word[len(head) :]
        line += word
        used += cell_len(word)
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def print_wrapped(text: str, indent: str = "  ") -> None:
    """A sentence or a list of facts, in further lines behind `indent` where a line has no room for it."""
    for line in wrapped(plain_text(text), line_width(), indent):
        print(line)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    cut: Sequence[str] = (),
    folded: Sequence[str] = (),
    below: Sequence[str] = (),
) -> None:
    """A table without lines on stdout, as wide as the terminal; as wide as it needs where that is none.

    Cells are text as it is, not markup; a name of a column may have several lines. Those in `right` are aligned there.
    Where there is no room, those in `cut` are shortened (beyond 100 columns anywhere), those in `folded` go on in
    further lines, and those in `below` are written below their row, the last one first. A table that has no room even
    so is printed a line a cell.
    """
    from rich.cells import cell_len

    shown = [[plain_text(cell) for cell in row] for row in rows]
    room = line_width()
    left = list(range(len(columns)))
    natural = [max(map(cell_len, (*name.split("\n"), *(row[at] for row in shown)))) for at, name in enumerate(columns)]
    natural = [min(size, _LONGEST_CUT) if name in cut else size for name, size in zip(columns, natural, strict=True)]
    soft = {at for at, name in enumerate(columns) if name in cut or name in folded}
    moved: list[int] = []
    widths = _fitting(natural, left, soft, room, _READABLE)
    for name in reversed(below):
        if widths is None and name in columns:
            at = columns.index(name)
            left.remove(at)
            moved.insert(0, at)
            widths = _fitting(natural, left, soft, room, _READABLE)
    if widths is None:
        widths = _fitting(natural, left, soft, room, _LEAST)
    if widths is None:
        _print_cells(columns, shown, room)
        return
    sides = {at: columns[at] in right for at in left}
    heads = [[_shortened(part, widths[at]) for part in columns[at].split("\n")] for at in left]
    for line in _lines(heads, left, widths, sides, bottom=True):
        print(line)
    for row in shown:
        cells = [
            wrapped(row[at], widths[at]) if columns[at] in folded else [_shortened(row[at], widths[at])] for at in left
        ]
        for line in _lines(cells, left, widths, sides):
            print(line)
        for at in moved:
            if row[at]:
                for line in wrapped(f"    {columns[at].lower()}: {row[at]}", room, "      "):
                    print(line)


def _fitting(
    natural: Sequence[int], left: Sequence[int], soft: Iterable[int], room: int | None, least: int
) -> dict[int, int] | None:
    """Widths of these columns that fit; None where there are none, though `soft` ones go down to `least`."""
    widths = {at: natural[at] for at in left}
    if room is None:
        return widths
    soft = [at for at in soft if at in widths]
    over = sum(widths.values()) + _GAP * (len(widths) - 1) - room
    while over > 0:
        widest = max(soft, key=lambda at: widths[at], default=None)
        if widest is None or widths[widest] <= least:
            return None
        widths[widest] -= 1
        over -= 1
    return widths


def _lines(
    cells: Sequence[Sequence[str]],
    left: Sequence[int],
    widths: dict[int, int],
    right: dict[int, bool],
    *,
    bottom: bool = False,
) -> list[str]:
    """One row, as many lines as its highest cell has."""
    from rich.cells import cell_len

    height = max(map(len, cells), default=0)
    lines = []
    for number in range(height):
        parts = []
        for at, cell in zip(left, cells, strict=True):
            index = number - (height - len(cell)) if bottom else number
            text = cell[index] if 0 <= index < len(cell) else ""
            space = " " * max(widths[at] - cell_len(text), 0)
            parts.append(space + text if right[at] else text + space)
        lines.append((" " * _GAP).join(parts).rstrip())
    return lines


def _print_cells(columns: Sequence[str], rows: Sequence[Sequence[str]], room: int | None) -> None:
    """Each row as a paragraph of `name: cell`."""
    for number, row in enumerate(rows):
        if number:
            print()
        for name, cell in zip(columns, row, strict=True):
            if cell:
                label = " ".join(name.split())
                for line in wrapped(f"{label}: {cell}" if label else cell, room, "  "):
                    print(line)


def _shortened(text: str, width: int) -> str:
    from rich.cells import cell_len

    return text if cell_len(text) <= width else f"{_first_cells(text, width - 1)}…"


def _first_cells(text: str, width: int) -> str:
    """As much of the text's beginning as fits, one character at least."""
    from rich.cells import get_character_cell_size

    used = 0
    for at, character in enumerate(text):
        used += get_character_cell_size(character)
        if used > width:
            return text[: max(at, 1)]
    return text


def _words(text: str) -> list[str]:
    """Where a line may end: behind spaces, and around characters that take two columns."""
    from rich.cells import get_character_cell_size

    words = [""]
    wide_before = False
    for before, character in zip(" " + text, text, strict=False):
        wide = get_character_cell_size(character) == 2
        if (before == " " and character != " ") or (character != " " and (wide or wide_before)):
            words.append("")
        words[-1] += character
        wide_before = wide
    return [word for word in words if word]
