"""What a recorded answer says: its text piece by piece, how many tokens were there at which time, how it ended.

Knows the formats of OpenAI's completions and chat and of `POST /generate`. Tokens are what the server counts (`usage`)
or names (`token_ids`); the number of pieces says nothing about them.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from lpx.bench.load.event_stream import Event, read_events
from lpx.bench.load.http_client import Exchange, RequestFailedError
from lpx.shown_key import short_without_key

_EVENTS_A_STEP = 32  # about a tenth of a millisecond
_ANSWER_EVENTS = ("", "message")  # what `event:` says of pieces of an answer; pings and the like have other names
MOST_TOKENS = 2**31  # of one answer or prompt: a server that says more is wrong
_DETAIL = 300  # characters of a server's words that are kept


@dataclass(slots=True)
class Piece:
    """One event that brought something."""

    at_s: float
    has_text: bool  # content, reasoning, a tool's name or arguments, a refusal
    visible: bool  # content
    tokens: int | None  # of the whole answer up to here, where the server says so


@dataclass(slots=True)
class Answer:
    """A whole answer. `pieces` is empty when it did not come as a stream."""

    sent_s: float
    ended_s: float
    streamed: bool
    pieces: list[Piece] = field(default_factory=list)
    content: str = ""
    hidden: str = ""  # reasoning, and what goes to tools
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None


def read_answer(exchange: Exchange) -> Answer:
    """What the recorded bytes say.

    Raises RequestFailedError: `http_<status>`, `stream_error` for an error that the server reports in its stream,
    `cut_stream` for a stream without an end, `bad_stream` for one that cannot be read.
    """
    steps = answer_steps(exchange)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: Answer = end.value
            return answer


def answer_steps(exchange: Exchange) -> Generator[None, None, Answer]:
    """`read_answer` with pauses every few events, for an event loop on which other answers arrive meanwhile."""
    if exchange.status != 200:
        raise RequestFailedError(f"http_{exchange.status}", _error_text(exchange.body, exchange.key))
    answer = Answer(exchange.sent_s, exchange.ended_s, exchange.content_type == "text/event-stream")
    reader = _Reader(answer, exchange.key)
    if not answer.streamed:
        return reader.whole(exchange.body)
    for number, event in enumerate(read_events(exchange.pieces, exchange.stamps), 1):
        reader.event(event)
        if number % _EVENTS_A_STEP == 0:
            yield
    return reader.end_of_stream()


class _Reader:
    def __init__(self, answer: Answer, key: str | None) -> None:
        self.answer = answer
        self._key = key
        self._content: list[str] = []
        self._hidden: list[str] = []
        self._done = False
        self._ids = 0  # token ids so far
        self._others: set[str] = set()  # names of events that are no part of an answer

    def event(self, raw: Event) -> None:
        if raw.name == "error":
            raise RequestFailedError(
                "stream_error", _error_text(raw.data, self._key) or "the server tells of an error without words"
            )
        if raw.data == b"[DONE]":
            self._done = True
            return
        if raw.name not in _ANSWER_EVENTS:
            self._others.add(_short(raw.name, self._key))
            return
        event = _parse(raw.data, self._key)
        answer = self.answer
        contents, hiddens, ids, counted = len(self._content), len(self._hidden), self._ids, answer.output_tokens
        ended = answer.finish_reason
        self._take(event, "delta")
        visible = len(self._content) > contents
        has_text = visible or len(self._hidden) > hiddens
        # A usage alone is the summary behind the answer, unless the server has counted along.
        along = bool(event.get("usage")) and (bool(event.get("choices")) or "text" in event or counted is not None)
        grown = along and answer.output_tokens != counted
        if has_text or grown or self._ids > ids or answer.finish_reason is not ended:
            tokens = answer.output_tokens if along else self._ids or None
            answer.pieces.append(Piece(raw.at_s, has_text, visible, tokens))

    def end_of_stream(self) -> Answer:
        answer = self.answer
        if not self._done and answer.finish_reason is None:
            others = f"; it has events of other kinds: {', '.join(sorted(self._others)[:4])}" if self._others else ""
            raise RequestFailedError("cut_stream", f"the stream ended without a finish reason or [DONE]{others}")
        return self._finish()

    def whole(self, data: bytes) -> Answer:
        body = _parse(data, self._key)
        if "choices" not in body and "text" not in body:
            shown = _short(str(body), self._key)
            raise RequestFailedError("bad_stream", f"the answer has neither choices nor text: {shown}")
        self._take(body, "message")
        return self._finish()

    def _finish(self) -> Answer:
        answer = self.answer
        answer.content, answer.hidden = "".join(self._content), "".join(self._hidden)
        if answer.output_tokens is None and self._ids:
            answer.output_tokens = self._ids
        return answer

    def _take(self, event: dict[str, Any], member: str) -> None:
        if _is_error(event):
            raise RequestFailedError("stream_error", _error_text(json.dumps(event).encode(), self._key))
        try:
            usage = event.get("usage")
            if usage:
                self._take_usage(usage)
            if "choices" in event:
                for choice in event["choices"]:
                    self._take_choice(choice, member)
            else:
                self._take_choice(event, member)  # /generate
        except (AttributeError, TypeError, ValueError, KeyError, OverflowError):
            shown = _short(str(event), self._key)
            raise RequestFailedError("bad_stream", f"an event of unknown shape: {shown}") from None

    def _take_usage(self, usage: dict[str, Any]) -> None:
        answer = self.answer
        if (tokens := usage.get("completion_tokens")) is not None:
            answer.output_tokens = _count(tokens)
        if (tokens := usage.get("prompt_tokens")) is not None:
            answer.prompt_tokens = _count(tokens)
        details = usage.get("prompt_tokens_details")
        if details and details.get("cached_tokens") is not None:
            answer.cached_tokens = _count(details["cached_tokens"])

    def _take_choice(self, choice: dict[str, Any], member: str) -> None:
        if text := choice.get("text"):  # completions, /generate
            self._content.append(_checked(text))
        if delta := choice.get(member):
            if text := delta.get("content"):
                self._content.append(_checked(text))
            if text := delta.get("reasoning_content") or delta.get("reasoning") or delta.get("refusal"):
                self._hidden.append(_checked(text))
            calls = delta.get("tool_calls") or ()
            for function in [call.get("function") for call in calls] + [delta.get("function_call")]:
                if function and (text := (function.get("name") or "") + (function.get("arguments") or "")):
                    self._hidden.append(_checked(text))
        if ids := choice.get("token_ids"):
            self._ids += len(ids)
        if (reason := choice.get("finish_reason")) is not None:
            self.answer.finish_reason = str(reason)


def _is_error(event: dict[str, Any]) -> bool:
    """Whether a server tells that it failed: as OpenAI or Anthropic do, or by a bare message instead of an answer."""
    if event.get("error") or "error" in (event.get("object"), event.get("type")):
        return True
    told = event.keys() & {"message", "code", "detail"}
    return bool(told) and not event.keys() & {"choices", "text", "usage", "token_ids", "finish_reason"}


def _checked(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError
    return text


def _count(value: Any) -> int:
    """Tokens as a server gives them: no number that cannot be of one answer."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError
    if not 0 <= value < MOST_TOKENS:
        raise ValueError
    return int(value)


def _parse(data: bytes, key: str | None) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise RequestFailedError("bad_stream", f"no JSON: {_short(data.decode(errors='replace'), key)}") from None
    if not isinstance(value, dict):
        raise RequestFailedError("bad_stream", f"no JSON object: {_short(str(value), key)}")
    return value


def _error_text(body: bytes, key: str | None) -> str:
    """The message of an error object, or the beginning of whatever else came."""
    text = body.decode(errors="replace")
    try:
        value = json.loads(body)
        error = value.get("error", value.get("detail", value.get("message")))
        text = str(error.get("message", error) if isinstance(error, dict) else error or text)
    except (ValueError, AttributeError, RecursionError):
        pass
    return _short(text, key)


def _short(text: str, key: str | None) -> str:
    return short_without_key(text, key, _DETAIL)
