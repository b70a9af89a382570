"""Answers on the wire: server-sent events, JSON, and what happens when the client goes away.

Every answer is computed while a watcher waits for the client's disconnect; when it comes, the work is cancelled,
which ends the engine's requests and frees their blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lpx.engine.outputs import TextPiece
from lpx.server.errors import describe, exception_response
from lpx.server.generation import Choice, Generation, llama_cpp_timings
from lpx.server.request_log import Call

if TYPE_CHECKING:
    from lpx.server.schemas.sampling import OpenAIRequest

_T = TypeVar("_T")
# Legal in JSON text, but taken for line ends by clients that split a stream with a Unicode-aware splitlines.
LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
DONE = b"data: [DONE]\n\n"
# An answer with more is written in a thread: others would wait for it.
_FEW_CHOICES = 8
_FEW_TOKENS = 4096


def json_string(text: str) -> str:
    """`text` as a JSON string that holds no line end of any kind."""
    encoded = encode_basestring(text)
    return encoded if encoded.isascii() else encoded.translate(LINE_ENDS)


def dumps(value: Any) -> str:
    """Compact JSON with raw non-ASCII characters; NaN and infinities are a bug and raise `ValueError`."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def dumps_by_item(value: dict[str, Any]) -> str:
    """As `dumps`, item by item of the lists in `value`: the writer holds the interpreter until it is done with one."""
    members = []
    for key, member in value.items():
        items = isinstance(member, list)
        members.append(f"{dumps(key)}:" + (f"[{','.join(map(dumps, member))}]" if items else dumps(member)))
    return f"{{{','.join(members)}}}"


def json_response(value: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(dumps(value).encode("utf-8", "replace"), media_type="application/json", headers=headers)


def event(value: Any) -> bytes:
    """One server-sent event."""
    return f"data: {dumps(value).translate(LINE_ENDS)}\n\n".encode()


def typed_event(value: dict[str, Any]) -> bytes:
    """One server-sent event that is named after the type of its object."""
    return f"event: {value['type']}\ndata: {dumps(value).translate(LINE_ENDS)}\n\n".encode()


def error_event(exc: Exception) -> bytes:
    return event(describe(exc)[1])


class ChunkWriter:
    """Chunks of one OpenAI stream: the part that never changes is encoded once."""

    def __init__(self, call: Call, object_name: str, wanted: OpenAIRequest, generation: Generation) -> None:
        head = {"id": call.id, "object": object_name, "created": call.created, "model": call.model}
        self._head = "data: " + dumps(head)[:-1]
        self._tail = ',"usage":null}\n\n' if wanted.include_usage else "}\n\n"
        self._generation = generation
        self._shows_usage = wanted.continuous_usage
        self._shows_timings = bool(wanted.timings_per_token)

    def chunk(self, choice: str, more: str = "") -> bytes:
        """A chunk of one choice, which is given as JSON text; `more` are members beside the choices."""
        tail = self._tail if not (self._shows_usage or self._shows_timings) else self._live_tail()
        return f'{self._head},"choices":[{choice}]{more}{tail}'.encode()

    def _live_tail(self) -> str:
        members: dict[str, Any] = {}
        if self._shows_usage:
            members["usage"] = self._generation.usage.as_json()
        if self._shows_timings:
            members["timings"] = self._generation.timings_so_far()
        return f",{dumps(members)[1:]}\n\n"

    def usage(self, generation: Generation) -> bytes:
        """The chunk that comes last when the client asked for usage."""
        extra = {"usage": generation.usage.as_json(), "timings": timings_json(generation)}
        return f'{self._head},"choices":[],{dumps(extra)[1:]}\n\n'.encode()


def pieces_json(pieces: list[TextPiece]) -> list[dict[str, str | bool]]:
    """The text of an answer token by token, with what was drafted (`return_drafts`)."""
    return [{"text": text, "drafted": drafted} for text, drafted in pieces]


def pieces_text(pieces: list[TextPiece]) -> str:
    """`pieces_json` as JSON text that holds no line end of any kind."""
    return dumps(pieces_json(pieces)).translate(LINE_ENDS)


def timings_json(generation: Generation) -> dict[str, float | int | str] | None:
    """Milliseconds and tokens per second of a single-prompt request; None for several prompts, or if not wanted."""
    timings = generation.timings
    if timings is None or not generation.shows_timings:
        return None
    return {
        "queue_ms": round(timings.queue_ms, 3),
        "prefill_ms": round(timings.prefill_ms, 3),
        "decode_ms": round(timings.decode_ms, 3),
        "ttft_ms": round(timings.ttft_ms, 3),
        "prompt_tokens": timings.prompt_tokens,
        "cached_tokens": timings.cached_tokens,
        "prefill_tokens_per_second": round(timings.prefill_tokens_per_second, 2),
        "completion_tokens": timings.completion_tokens,
        "decode_tokens_per_second": round(timings.decode_tokens_per_second, 2),
        "speculation": timings.speculation,
        "drafted_tokens": timings.drafted_tokens,
        "accepted_tokens": timings.accepted_tokens,
        "mean_accepted_length": round(timings.mean_accepted_length, 3),
        **llama_cpp_timings(
            timings.prompt_tokens,
            timings.cached_tokens,
            timings.prefill_ms,
            timings.completion_tokens,
            timings.decode_ms,
        ),
        "draft_n": timings.drafted_tokens,
        "draft_n_accepted": timings.accepted_tokens,
    }


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`. If the client goes away first, `work` is cancelled and `ClientDisconnect` raised."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        unfinished = {each for each in (task, watcher) if not each.done()}
        for each in unfinished:
            each.cancel()
        if unfinished:
            await asyncio.wait(unfinished)
        for each in (task, watcher):  # marks an error as seen, which nobody is left to be told
            if not each.cancelled():
                each.exception()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def answer_json(
    request: Request,
    call: Call,
    generation: Generation,
    build: Callable[[list[Choice]], dict[str, Any]],
    *,
    refuse: Callable[[BaseException], Response] = exception_response,
) -> Response:
    """Wait for all choices and answer with `build(choices)`."""
    status = 499  # client closed the request; the answer reaches nobody
    call.begin()
    try:
        async with generation:
            choices = await until_disconnect(request.receive, generation.collect())
            if len(choices) > _FEW_CHOICES or generation.usage.completion_tokens > _FEW_TOKENS:
                body = await asyncio.to_thread(lambda: dumps_by_item(build(choices)).encode())
            else:
                body = dumps(build(choices)).encode()
        status = 200
        return Response(body, media_type="application/json", headers=call.headers)
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception as exc:
        response = refuse(exc)
        status = response.status_code
        return response
    finally:
        call.end(status, generation)


class EventStream(Response):
    """Streams encoded events, then `last`. An error after the start becomes one event by `fail` and ends the stream."""

    def __init__(
        self,
        call: Call,
        generation: Generation,
        events: AsyncGenerator[bytes, None],
        *,
        last: bytes = DONE,
        fail: Callable[[Exception], bytes] = error_event,
    ) -> None:
        super().__init__(media_type="text/event-stream", headers={**_STREAM_HEADERS, **call.headers})
        del self.headers["content-length"]
        self._call = call
        self._generation = generation
        self._events = events
        self._last = last
        self._fail = fail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 499
        self._call.begin()
        try:
            async with self._generation:
                await until_disconnect(receive, self._write(send))
            status = 200
        except ClientDisconnect:
            pass
        finally:
            self._call.end(status, self._generation)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with contextlib.aclosing(self._events) as events:
                async for data in events:
                    try:
                        await send({"type": "http.response.body", "body": data, "more_body": True})
                    except (RuntimeError, OSError):  # of a connection that has just been closed
                        raise ClientDisconnect from None
            last = self._last
        except ClientDisconnect:
            raise
        except Exception as exc:
            self._call.failed = type(exc).__name__
            last = self._fail(exc)
        await send({"type": "http.response.body", "body": last, "more_body": False})
