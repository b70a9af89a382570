"""Event streams and answers out of any bytes, cut in any way."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpx.bench.load.answer import read_answer
from lpx.bench.load.event_stream import read_events
from lpx.bench.load.http_client import Exchange, RequestFailedError

LINE = st.sampled_from(
    ["data: a", "data:b", "data", "data: ", ": comment", "event: x", "id: 1", "retry: 5", "data: 你好"]
)
EVENT = st.lists(LINE, min_size=1, max_size=3)
END = st.sampled_from(["\n", "\r\n", "\r"])


def in_pieces(body: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(body) + 1) for cut in cuts} | {0, len(body)})
    return [body[a:b] for a, b in pairwise(places)]


def plain_events(events: list[list[str]]) -> list[tuple[str, bytes]]:
    """What the specification says, in the plainest way; a name alone counts, too."""
    found = []
    for lines in events:
        data = [line.partition(":")[2].removeprefix(" ") for line in lines if line.split(":")[0] == "data"]
        named = any(line.startswith("event") for line in lines)
        if data or named:
            found.append(("x" if named else "", "\n".join(data).encode()))
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENT, max_size=6), END, st.lists(st.integers(0, 1000), max_size=8), st.integers(1, 3), st.booleans())
def test_events_do_not_depend_on_how_they_were_cut(events, end, cuts, blanks, bom):
    body = "".join(end.join(lines) + end * (1 + blanks) for lines in events).encode()
    body = b"\xef\xbb\xbf" + body if bom and body else body
    pieces = in_pieces(body, cuts)
    found = list(read_events(pieces, list(range(len(pieces)))))
    assert [(event.name, event.data) for event in found] == plain_events(events)
    stamps = [event.at_s for event in found]
    assert stamps == sorted(stamps)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 40))
def test_an_event_has_the_stamp_of_the_piece_that_holds_its_end(size):
    events = [f"data: {number:0{size}}\n\n".encode() for number in range(5)]
    body = b"".join(events)
    pieces = [body[n : n + 1] for n in range(len(body))]
    found = list(read_events(pieces, list(range(len(body)))))
    assert [event.at_s for event in found] == [(n + 1) * len(events[0]) - 1 for n in range(5)]


def exchange_of(body: bytes, content_type: str = "text/event-stream", status: int = 200) -> Exchange:
    exchange = Exchange(0.0, status, content_type)
    exchange.pieces.append(body)
    exchange.stamps.append(1.0)
    exchange.ended_s, exchange.complete = 1.0, True
    return exchange


MEMBERS = (
    "choices text delta message usage error token_ids content tool_calls function completion_tokens "
    "prompt_tokens_details finish_reason name arguments"
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(MEMBERS.split()) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def kind_of(exchange: Exchange) -> str:
    try:
        read_answer(exchange)
    except RequestFailedError as error:
        return error.kind
    return "read"


@settings(max_examples=60, deadline=None)
@given(JSON, st.sampled_from(["text/event-stream", "application/json"]), st.sampled_from([200, 400]))
def test_answers_of_any_shape_are_read_or_refused(value, content_type, status):
    body = json.dumps(value).encode()
    if content_type == "text/event-stream":
        body = b"data: " + body + b"\n\ndata: [DONE]\n\n"
    assert kind_of(exchange_of(body, content_type, status)) in (
        "read",
        "bad_stream",
        "stream_error",
        "cut_stream",
        f"http_{status}",
    )


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60), st.sampled_from(["text/event-stream", "application/json", ""]))
def test_answers_of_any_bytes_are_read_or_refused(body, content_type):
    assert kind_of(exchange_of(body, content_type)) in ("read", "bad_stream", "cut_stream", "stream_error")


def test_words_of_the_server_are_kept_short_and_in_one_line():
    with pytest.raises(RequestFailedError) as caught:
        read_answer(exchange_of(b"oh\n\n  no " + b"x" * 5000, "text/plain", 503))
    assert caught.value.kind == "http_503"
    assert caught.value.detail.startswith("oh no xxx")
    assert len(caught.value.detail) == 300
