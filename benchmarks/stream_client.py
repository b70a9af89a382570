"""A small streaming client on asyncio alone, so that what is measured is the server and not the client's library.

Reads server-sent events of `/v1/completions` over a kept connection and notes when each came.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any


@dataclass(slots=True)
class Answer:
    """When the pieces of one streamed answer came, in seconds since the request was sent."""

    arrivals: list[float] = field(default_factory=list)  # of events with text
    seconds: float = 0.0  # to the end
    tokens: int = 0  # by the server's count


class StreamClient:
    """One connection to a server on this machine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def complete(self, body: dict[str, Any]) -> Answer:
        """Stream one completion to its end. Raises RuntimeError for an answer that is no stream."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        assert self._reader is not None
        data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        answer = Answer()
        start = perf_counter()
        self._writer.write(head.encode() + data)
        status = await self._reader.readline()
        chunked = False
        while (line := await self._reader.readline()) not in (b"\r\n", b""):
            chunked = chunked or line.lower().startswith(b"transfer-encoding: chunked")
        if b" 200 " not in status or not chunked:
            raise RuntimeError(f"no stream: {status.decode(errors='replace').strip()}")
        rest = b""
        while size := int(await self._reader.readline() or b"-1", 16):
            if size < 0:
                raise RuntimeError("the server ended a stream in its middle")
            data = (await self._reader.readexactly(size + 2))[:-2].replace(b"\r\n", b"\n")
            *records, rest = (rest + data).split(b"\n\n")
            now = perf_counter() - start
            for record in records:
                self._note(answer, record, now)
        await self._reader.readline()
        answer.seconds = perf_counter() - start
        answer.tokens = answer.tokens or len(answer.arrivals)  # for a server that gives no usage
        return answer

    @staticmethod
    def _note(answer: Answer, record: bytes, now: float) -> None:
        text = record.strip().removeprefix(b"data: ")
        if not text.startswith(b"{"):
            return
        event = json.loads(text)
        if event.get("choices") and event["choices"][0].get("text"):
            answer.arrivals.append(now)
        if event.get("usage"):
            answer.tokens = event["usage"]["completion_tokens"]

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            await self._writer.wait_closed()
            self._writer = None
