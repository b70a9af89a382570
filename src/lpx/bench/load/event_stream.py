"""Server-sent events out of a recorded body, each with the time at which it was whole.

https://html.spec.whatwg.org/multipage/server-sent-events.html, except that an event at the very end counts without
its blank line, as long as the answer itself is whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate

# A line end and a blank line. "\r" counts only where no "\n" follows, or "\r\n" would be two line ends.
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))+")
_LINE_END = re.compile(rb"\r\n|\n|\r")


def read_events(pieces: Sequence[bytes], stamps: Sequence[float]) -> Iterator[tuple[float, bytes]]:
    """(arrival of the event's last byte, its data) of each event that has data.

    Comments, which servers send to keep a connection alive, and other fields are no data.
    """
    body = b"".join(pieces)
    ends = list(accumulate(len(piece) for piece in pieces))
    piece, start = 0, 3 if body.startswith(b"\xef\xbb\xbf") else 0
    for match in _END.finditer(body):
        # The event is whole with its blank line; blank lines behind that may come later.
        whole = match.start() + (4 if match[0].startswith(b"\r\n\r\n") else 2)
        while ends[piece] < whole:
            piece += 1
        data = _data(body[start : match.start()])
        start = match.end()
        if data is not None:
            yield stamps[piece], data
    if start < len(body):
        data = _data(body[start:])
        if data is not None:
            yield stamps[-1], data


def _data(event: bytes) -> bytes | None:
    if event.startswith(b"data: ") and b"\n" not in event and b"\r" not in event:  # nearly always
        return event[6:]
    lines = [
        line[5:].removeprefix(b" ") if line.startswith(b"data:") else b""
        for line in _LINE_END.split(event)
        if line.startswith(b"data:") or line == b"data"
    ]
    return b"\n".join(lines) if lines else None
