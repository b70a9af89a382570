"""Tokens that stand for structure (turn markers, BOS, padding) and the text that spells them.

Only a chat template may write them; the same characters in text from users are plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# Files made by some converters call turn markers "user defined", as if they were ordinary words. A token of one of
# these forms is a marker whatever the file calls it.
_MARKER_FORM = re.compile(
    r"<\|[^<>|\s]+\|>|<｜[^<>｜\s]+｜>|<(?:start|end)_of_turn>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT)\]"
)

# Files often name one id as EOS where the model ends its turns with several. A control token with one of these texts
# ends a turn in every model that has it.
TURN_ENDS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|end|>",
        "<end_of_turn>",
        "<｜end▁of▁sentence｜>",
        "</s>",
    }
)

# White space as `tokenizers` strips it around added tokens: Unicode's White_Space. (str.strip() would also take the
# separators U+001C to U+001F.)
WHITE_SPACE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


@dataclass(frozen=True, slots=True)
class Marker:
    """A control token: its id, its text, and whether it swallows the white space beside it."""

    id: int
    text: str
    lstrip: bool = False
    rstrip: bool = False


def looks_like_marker(text: str) -> bool:
    """Tell whether a token's text has the form of a turn marker."""
    return _MARKER_FORM.fullmatch(text) is not None


class MarkerFinder:
    """Finds control tokens in text: leftmost first, longest among those that start at the same place.

    Vocabularies hold thousands of markers (`<unused0>` ...), so this looks up by the first two characters and length
    instead of trying them one by one.
    """

    def __init__(self, markers: Iterable[Marker]) -> None:
        self._by_text = {m.text: m for m in markers if m.text}
        lengths: dict[str, set[int]] = {}
        for text in self._by_text:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {head: sorted(sizes, reverse=True) for head, sizes in lengths.items()}
        self._ends = {t[:n] for t in self._by_text for n in range(2, min(len(t), 32))}
        heads = sorted({re.escape(h[0]) for h in lengths})
        self._first = re.compile("[" + "".join(heads) + "]") if heads else None

    def __len__(self) -> int:
        return len(self._by_text)

    def find(self, text: str) -> Iterator[tuple[int, Marker]]:
        """Yield (position, marker), not overlapping, from left to right."""
        if self._first is None:
            return
        position = 0
        while (start := self._first.search(text, position)) is not None:
            at = start.start()
            marker = self._at(text, at)
            if marker is None:
                position = at + 1
            else:
                yield at, marker
                position = at + len(marker.text)

    def _at(self, text: str, at: int) -> Marker | None:
        for head in (text[at : at + 2], text[at]):
            for length in self._lengths.get(head, ()):
                marker = self._by_text.get(text[at : at + length])
                if marker is not None:
                    return marker
        return None

    def ends_inside_marker(self, text: str) -> bool:
        """Tell whether `text` ends with the first two or more characters of a marker, but not with a whole one."""
        return any(text[-n:] in self._ends for n in range(2, min(len(text), 31) + 1))
