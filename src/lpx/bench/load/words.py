"""Random texts of a wanted number of tokens.

The words are common English nouns, which nearly every vocabulary knows as one token each with the space before them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lpx.bench.load.token_counter import TokenCounter

WORDS = tuple((Path(__file__).parent / "data" / "words.txt").read_text("ascii").split())

_TRIES = 16
_FILLERS = (" a", "a", " .", ".", " 1")


@dataclass(frozen=True, slots=True)
class Sized:
    """A text and its length."""

    text: str
    tokens: int | None  # None: nobody could count, it has about as many as were wanted


def draw_words(rng: random.Random) -> Callable[[int], str]:
    """A function that gives the first n words of an endless random row."""
    drawn: list[str] = []

    def first(count: int) -> str:
        if count > len(drawn):
            drawn.extend(rng.choices(WORDS, k=count - len(drawn)))
        return " ".join(drawn[:count])

    return first


async def sized_text(
    make: Callable[[int], str], wanted: int, counter: TokenCounter | None, *, special: bool, size: float = 1.0
) -> Sized:
    """A text of `wanted` tokens out of the parts of `make`, which have about `size` tokens each.

    The result tells its true length, which is another one where no text of that length was found.
    """
    if counter is None:
        return Sized(make(max(1, round(wanted / size))), None)
    best: Sized | None = None
    parts = max(1, round(wanted / size))
    tried: set[int] = set()
    for _ in range(_TRIES):
        tried.add(parts)
        text = make(parts)
        found = await counter.count(text, special=special)
        if best is None or abs(found - wanted) < abs(_length(best) - wanted):
            best = Sized(text, found)
        if found == wanted:
            return best
        size = max(found / parts, 1e-3)
        step = int((wanted - found) / size) or (1 if found < wanted else -1)
        parts = max(1, parts + step)
        if parts in tried:  # between a text that is too short and one that is too long
            break
    assert best is not None
    below = best
    for _ in range(_TRIES):
        if _length(below) <= wanted or parts == 1:
            break
        parts -= 1
        text = make(parts)
        below = Sized(text, await counter.count(text, special=special))
    for filler in _FILLERS:
        missing = wanted - _length(below)
        if missing < 0:
            break
        text = below.text + filler * missing
        found = await counter.count(text, special=special)
        if found == wanted:
            return Sized(text, found)
        if abs(found - wanted) < abs(_length(best) - wanted):
            best = Sized(text, found)
    return best


def _length(text: Sized) -> int:
    assert text.tokens is not None
    return text.tokens
