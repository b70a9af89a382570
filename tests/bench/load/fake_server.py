"""A server whose answers come at scripted times of a clock that the client reads: no figure depends on the machine.

The server sets the clock, sends one piece, and goes on only when the client has taken its stamp.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lpx.bench.load import LoadReport, LoadSettings, measure_load


class ScriptedClock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.read = asyncio.Event()

    def __call__(self) -> float:
        self.read.set()
        return self.now


@dataclass
class Script:
    """One answer: pieces of its body, each at so many seconds behind the request."""

    steps: Sequence[tuple[float, bytes]] = ()
    status: int = 200
    content_type: str = "text/event-stream; charset=utf-8"
    framing: str = "chunked"  # "length", "close"
    headers: str = ""
    end: str = "whole"  # "cut": the connection ends; "reset"; "silent": nothing more comes; "leave": and then it ends


def chat(content: str | None = None, usage: int | None = None, finish: str | None = None, **delta: Any) -> bytes:
    """A chunk of a chat stream."""
    if content is not None:
        delta["content"] = content
    value: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    if usage is not None:
        value["usage"] = {"prompt_tokens": 7, "completion_tokens": usage}
    return event(value)


def text(content: str, **more: Any) -> bytes:
    """A chunk of a completions stream."""
    return event({"choices": [{"index": 0, "text": content, "finish_reason": None, **more}]})


def usage(tokens: int, prompt: int = 7, cached: int | None = None) -> bytes:
    """The chunk behind the last choice."""
    counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": tokens}
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return event({"choices": [], "usage": counts})


def event(value: Any) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode("utf-8", "backslashreplace")


DONE = b"data: [DONE]\n\n"


def words(*times: float, tokens: int = 4, ended: float | None = None, **more: Any) -> Script:
    """An answer with one piece of text at each time, and its usage and end with the last."""
    last = times[-1] if ended is None else ended
    steps = [(at, text(f"w{number} ")) for number, at in enumerate(times)]
    return Script([*steps, (last, text("", finish_reason="length") + usage(tokens, **more) + DONE)])


@dataclass
class FakeServer:
    """Answers requests by scripts, one after the other; `tokenize` counts for `POST /tokenize`."""

    clock: ScriptedClock
    scripts: list[Script]
    tokenize: Callable[[str], int] | None = None
    models: Any = field(default_factory=lambda: {"data": [{"id": "fake-model", "owned_by": "vllm"}]})
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    connections: int = 0
    tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> FakeServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self._writers: set[asyncio.StreamWriter] = set()
        self._over = asyncio.Event()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        self._over.set()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ", 2)[1]
        length = next((int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        if path == "/v1/models":
            return self._json(writer, 200, self.models)
        if path == "/version":
            return self._json(writer, 200, {"version": "1.2.3"})
        if "tokenize" in path:
            if self.tokenize is None or path != "/tokenize":
                return self._json(writer, 404, {"detail": "Not Found"})
            return self._json(writer, 200, {"count": self.tokenize(json.loads(body)["prompt"])})
        self.heads.append(head)
        self.bodies.append(json.loads(body))
        return await self._play(self.scripts.pop(0), writer)

    def _json(self, writer: asyncio.StreamWriter, status: int, value: Any) -> bool:
        data = json.dumps(value).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        return True

    async def _play(self, script: Script, writer: asyncio.StreamWriter) -> bool:
        began = self.clock.now
        if script.end == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            return False
        framing = {
            "chunked": "Transfer-Encoding: chunked\r\n",
            "length": f"Content-Length: {sum(len(data) for _, data in script.steps)}\r\n",
            "close": "",
        }[script.framing]
        head = f"HTTP/1.1 {script.status} X\r\nContent-Type: {script.content_type}\r\n{framing}{script.headers}\r\n"
        await self._send(writer, head.encode())
        for at, data in script.steps:
            self.clock.now = began + at
            await self._send(writer, b"%x\r\n%b\r\n" % (len(data), data) if script.framing == "chunked" else data)
        if script.end == "silent":
            await self._over.wait()
        if script.end == "cut":
            return False
        if script.framing == "chunked":
            writer.write(b"0\r\n\r\n")
        return script.framing != "close" and script.end != "leave"

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        self.clock.read.clear()
        writer.write(data)
        await self.clock.read.wait()


def run_load(scripts: list[Script], *, tokenize: Callable[[str], int] | None = None, **options: Any) -> LoadReport:
    """The report over these answers, asked for one after the other."""
    return run_with_server(scripts, tokenize=tokenize, **options)[0]


def run_with_server(
    scripts: list[Script],
    *,
    tokenize: Callable[[str], int] | None = None,
    api_key: str | None = None,
    sent_before: int = 0,
    **options: Any,
) -> tuple[LoadReport, FakeServer]:
    async def main() -> tuple[LoadReport, FakeServer]:
        clock = ScriptedClock()
        async with FakeServer(clock, list(scripts), tokenize) as server:
            settings = {"max_concurrency": 1, "num_warmups": 0, "num_prompts": len(scripts), **options}
            settings = LoadSettings(base_url=f"http://127.0.0.1:{server.port}", **settings)
            return await measure_load(settings, clock=clock, api_key=api_key, sent_before=sent_before), server

    return asyncio.run(main())
