"""Faults that an answer shows by itself: nothing in it, an early end, loops, characters that are no text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lpx.quality.answers import Answer

FaultKind = Literal["empty", "cut", "repetition", "garbled"]

_LONGEST_PERIOD = 64  # tokens
_LEAST_REPEATS = 4
_LEAST_LOOP = 24  # tokens that a loop must cover: shorter ones are tables, counting, laughter
_NGRAM = 4
_REPEATED_SHARE = 0.6  # of 4-grams that occurred before; prose has below 0.1, lists of like sentences up to 0.4
_LEAST_NGRAMS = 60
_MOST_FOREIGN_SCRIPTS = 2  # in one answer, beside those of its prompt

# UTF-8 read as Latin-1 or Windows-1252: a lead byte and its continuation, each as a character of its own.
_MOJIBAKE = re.compile(
    "[\u00c3\u00c2\u00e2\u00e4-\u00e9][\u0080-\u00bf\u2018-\u201e\u2020-\u2026\u20ac\u2122\u0152\u0153\u0160\u0161]{1,2}"
)
_BROKEN_GBK = ("锟斤拷", "烫烫烫", "屯屯屯")  # U+FFFD and unset memory, read as GBK
_SCRIPTS = re.compile(
    "ARABIC|ARMENIAN|BENGALI|CJK|CYRILLIC|DEVANAGARI|ETHIOPIC|GEORGIAN|GUJARATI|GURMUKHI|HANGUL|HEBREW|KANNADA|KHMER"
    "|LAO|MALAYALAM|MYANMAR|SINHALA|TAMIL|TELUGU|THAI|TIBETAN"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: where it is, and what to do."""

    kind: FaultKind
    place: str
    advice: str


_ADVICE: dict[FaultKind, str] = {
    "empty": "the model ends at once: check the chat template and the end-of-turn tokens, or set min_tokens",
    "cut": "raise max_tokens, or ask for a shorter answer",
    "repetition": "greedy small models fall into loops: use temperature 0.7, or repetition_penalty 1.1",
    "garbled": "compare with the unquantized file (--reference), check the tokenizer and --kv-cache-dtype; "
    "heavy quantization does this, too",
}


def find_faults(answer: Answer, prompt: str) -> list[Fault]:
    """All faults of one answer; a refused one has none."""
    if answer.refused is not None:
        return []
    if not answer.text.strip():
        return [Fault("empty", f"{len(answer.token_ids)} tokens, no text", _ADVICE["empty"])]
    faults = []
    if (garbled := find_garbled(answer.text, prompt, cut=answer.finish_reason == "length")) is not None:
        faults.append(Fault("garbled", garbled, _ADVICE["garbled"]))
    if (loop := find_repetition(answer.token_ids)) is not None:
        faults.append(Fault("repetition", loop, _ADVICE["repetition"]))
    elif answer.finish_reason == "length":
        faults.append(Fault("cut", f"after {len(answer.token_ids)} tokens, by max_tokens", _ADVICE["cut"]))
    return faults


def find_garbled(text: str, prompt: str = "", *, cut: bool = False) -> str | None:
    """Where the text has characters that are no text, or more scripts than make sense; None when it has not.

    What the prompt has too is not held against an answer. `cut`: the last character may be half of one.
    """
    for at, character in enumerate(text):
        if character in prompt:
            continue
        if character == "\ufffd":
            if cut and not text[at:].strip("\ufffd"):
                break
            return f"character {at}: U+FFFD, bytes that are not UTF-8"
        category = unicodedata.category(character)
        if (category == "Cc" and character not in "\n\r\t") or category in ("Co", "Cn", "Cs"):
            return f"character {at}: U+{ord(character):04X}, no character of a text"
    for broken in _BROKEN_GBK:
        if broken in text and broken not in prompt:
            return f"character {text.index(broken)}: {broken!r}, text in a wrong encoding"
    found = [match for match in _MOJIBAKE.finditer(text) if match[0] not in prompt and _is_misread(match[0])]
    if found:
        return f"character {found[0].start()}: {found[0][0]!r}, UTF-8 read as another encoding"
    foreign = _scripts(text) - _scripts(prompt)
    if len(foreign) > _MOST_FOREIGN_SCRIPTS:
        return f"letters of {', '.join(sorted(name.capitalize() for name in foreign))} mixed in one answer"
    return None


def find_repetition(token_ids: Sequence[int]) -> str | None:
    """Where the ids go round in a loop, or that most of them have been said before; None when neither."""
    ids = np.asarray(token_ids)
    for period in range(1, min(_LONGEST_PERIOD, len(ids) // 2) + 1):
        start, length = _longest_run(ids[period:] == ids[:-period])
        covered = length + period
        if covered >= max(_LEAST_REPEATS * period, _LEAST_LOOP):
            return f"from token {start}: {period} {'token' if period == 1 else 'tokens'}, {covered // period} times"
    count = len(ids) - _NGRAM + 1
    if count >= _LEAST_NGRAMS:
        grams = [tuple(token_ids[at : at + _NGRAM]) for at in range(count)]
        share = 1 - len(set(grams)) / count
        if share > _REPEATED_SHARE:
            return f"{share:.0%} of all runs of {_NGRAM} tokens occurred before"
    return None


def _longest_run(equal: np.ndarray) -> tuple[int, int]:
    """(start, length) of the longest run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], equal.astype(np.int8), [0]])))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    best = int(lengths.argmax())
    return int(edges[2 * best]), int(lengths[best])


def _is_misread(text: str) -> bool:
    for encoding in ("cp1252", "latin-1"):
        try:
            text.encode(encoding).decode("utf-8")
        except UnicodeError:
            continue
        return True
    return False


def _scripts(text: str) -> set[str]:
    """Scripts of which the text has at least two letters; Latin and Greek, which are everywhere, do not count."""
    counts: dict[str, int] = {}
    for character in set(text):
        if character > "\u036f" and character.isalpha():
            name = unicodedata.name(character, "").partition(" ")[0]
            name = "CJK" if name in ("HIRAGANA", "KATAKANA") else name
            if _SCRIPTS.fullmatch(name):
                counts[name] = counts.get(name, 0) + 1
    return {name for name, count in counts.items() if count >= 2}
