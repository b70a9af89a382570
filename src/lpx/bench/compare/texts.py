"""Whether two sides said the same, and where not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_AROUND = 24  # characters that are shown from the first difference on, and half as many before it


@dataclass(frozen=True, slots=True)
class TextDifference:
    """The first place where two answers to one prompt differ."""

    prompt: int  # its number, from 1
    at: int  # character, from 0
    before: str  # what both have just before
    first: str  # what the first side has from there on; empty: its answer ends there
    other: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many answers of two sides are the same text."""

    same: int
    answers: int
    differences: tuple[TextDifference, ...]  # of each prompt that has one, in its first round that has one


def first_difference(prompt: int, first: str, other: str) -> TextDifference | None:
    """None for equal texts."""
    if first == other:
        return None
    shorter = min(len(first), len(other))
    at = next((index for index in range(shorter) if first[index] != other[index]), shorter)
    return TextDifference(
        prompt, at, first[max(0, at - _AROUND // 2) : at], first[at : at + _AROUND], other[at : at + _AROUND]
    )


def agreement(answers: Iterable[tuple[int, str, str]]) -> Agreement:
    """Of (number of the prompt, text of the first side, text of the other) for every answer."""
    same = total = 0
    differences: dict[int, TextDifference] = {}
    for prompt, first, other in answers:
        total += 1
        found = first_difference(prompt, first, other)
        if found is None:
            same += 1
        else:
            differences.setdefault(prompt, found)
    return Agreement(same, total, tuple(differences[prompt] for prompt in sorted(differences)))
