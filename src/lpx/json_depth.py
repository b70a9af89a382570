"""What JSON is made of, told before a parser meets it.

Parsers and writers call themselves for each level, and make an object of each part while they hold the interpreter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_NOT_BRACKET = re.compile(r"[^\[\]{}]+")


def outside_strings(text: str) -> str:
    """The text without what stands in its strings."""
    unescaped = text.replace("\\\\", "").replace('\\"', "")  # the quotes that are left open and close strings
    return "".join(unescaped.split('"')[::2])


def is_nested_deeper(text: str, most: int) -> bool:
    """Whether there are more than `most` levels; in linear time and constant stack.

    What closes is not compared with what opened: a parser gets no deeper than to the first that does not match.
    """
    if text.count("[") + text.count("{") <= most:
        return False
    import numpy as np

    brackets = np.frombuffer(_NOT_BRACKET.sub("", outside_strings(text)).encode(), np.uint8)
    levels = np.cumsum(np.where((brackets == ord("[")) | (brackets == ord("{")), 1, -1), dtype=np.int64)
    return bool(levels.size) and int(levels.max()) > most


def crowd(text: str, bounds: Sequence[tuple[str, int, str]]) -> str | None:
    """Which bound on the number of a mark outside of strings is broken, as `more than 50000 lists`; None: none."""
    if not any(text.count(mark) > most for mark, most, _ in bounds):
        return None
    outside = outside_strings(text)
    return next((f"more than {most} {what}" for mark, most, what in bounds if outside.count(mark) > most), None)
