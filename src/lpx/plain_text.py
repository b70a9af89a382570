"""Text that others chose (names, messages, labels), made fit for where it is shown: a terminal, a picture, Markdown."""

from __future__ import annotations

_MARKUP = str.maketrans({"<": "&lt;", **{mark: f"\\{mark}" for mark in "\\`|*[]"}})


def plain_text(text: str, instead: str = "?") -> str:
    """One line that a terminal shows as it is: `instead` stands for what would move its cursor or colour it."""
    return "".join(character if character.isprintable() else instead for character in text)


def shortened(text: str, most: int) -> str:
    """Plain text of at most `most` characters."""
    text = plain_text(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def markdown_text(text: str) -> str:
    """Plain text in Markdown, also in a cell of a table: what would end the cell or be markup is escaped."""
    return plain_text(text, " ").translate(_MARKUP)


def utf8_text(text: str) -> str:
    """`text` as UTF-8 can hold it: bytes of a command line that were none are written out (`\\udcff`)."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
