"""Server-sent events out of a recorded body, each with the time at which it was whole.

https://html.spec.whatwg.org/multipage/server-sent-events.html, except that an event at the very end counts without
its blank line, as long as the answer itself is whole, and one with a name counts without data: `event: error` says
enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

# A line end and a blank line. "\r" counts only where no "\n" follows, or "\r\n" would be two line ends.
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))+")
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream."""

    at_s: float  # when its last byte came
    name: str  # what `event:` says; "" where nothing does
    data: bytes


def read_events(pieces: Sequence[bytes], stamps: Sequence[float]) -> Iterator[Event]:
    """The events that have data or a name.

    Comments, which servers send to keep a connection alive, and other fields are neither.
    """
    body = b"".join(pieces)
    ends = list(accumulate(len(piece) for piece in pieces))
    piece, start = 0, 3 if body.startswith(b"\xef\xbb\xbf") else 0
    for match in _END.finditer(body):
        # The event is whole with its blank line; blank lines behind that may come later.
        whole = match.start() + (4 if match[0].startswith(b"\r\n\r\n") else 2)
        while ends[piece] < whole:
            piece += 1
        event = _event(stamps[piece], body[start : match.start()])
        start = match.end()
        if event is not None:
            yield event
    if start < len(body):
        event = _event(stamps[-1], body[start:])
        if event is not None:
            yield event


def _event(at_s: float, text: bytes) -> Event | None:
    if text.startswith(b"data: ") and b"\n" not in text and b"\r" not in text:  # nearly always
        return Event(at_s, "", text[6:])
    name, lines = b"", []
    for line in _LINE_END.split(text):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            lines.append(value)
        elif field == b"event":
            name = value  # the last one counts
        elif field == b"error":  # of no specification: as llama.cpp's server told of errors once
            name, lines = b"error", [value]
    return Event(at_s, name.decode(errors="replace"), b"\n".join(lines)) if lines or name else None
