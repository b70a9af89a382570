"""Clients of the soak: most behave, the others cancel, leave, send nonsense or read slowly. Raw sockets, seeded."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic

KEY, LIMITED_KEY = "sk-soak-0123456789abcdef", "sk-soak-limited-0123456789"
PATIENCE_S = 120.0  # an answer that takes longer is an error
_FIRST_TEXT = re.compile(rb'"(?:text|content)":"[^"]')
_WORDS = "the a of in light water stone river green old people house garden story paper between under sing".split()  # noqa: SIM905


@dataclass
class Tally:
    """What all clients have seen."""

    outcomes: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)  # deliberate refusals, by kind and status
    errors: Counter[str] = field(default_factory=Counter)  # whatever should not have been
    ttft_s: list[float] = field(default_factory=list)  # of accepted streams
    tokens: int = 0


class Unexpected(Exception):
    """An answer that is not the documented one."""


class Connection:
    """One HTTP/1.1 request on a connection of its own."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self._port = port
        self._receive_buffer = receive_buffer
        self.status = 0
        self.head = b""
        self.body = b""

    async def __aenter__(self) -> Connection:
        connection = socket.socket()
        connection.setblocking(False)
        if self._receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self._port))
        limit = self._receive_buffer or 65536
        self.reader, self.writer = await asyncio.open_connection(sock=connection, limit=limit)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Leave with RST, as a killed client does."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def send(self, path: str, body: object, *, key: str = KEY, method: str = "POST", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = {
            "Host": "localhost",
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            "Connection": "close",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.writer.write(head.encode() + b"\r\n" + data)

    async def read_head(self) -> int:
        self.head = await self.reader.readuntil(b"\r\n\r\n")
        self.status = int(self.head.split(b" ", 2)[1])
        return self.status

    async def read_piece(self, size: int = 65536) -> bytes:
        piece = await self.reader.read(size)
        self.body += piece
        return piece

    async def read_rest(self) -> bytes:
        while await self.read_piece():
            pass
        return self.body


class Client:
    """Sends one request after the other until told to stop."""

    def __init__(self, port: int, number: int, tally: Tally) -> None:
        self._port = port
        self._random = random.Random(number)
        self._tally = tally
        self._deeds = {
            self.stream: 50,
            self.whole: 15,
            self.cancel: 8,
            self.leave_by_reset: 5,
            self.leave_in_the_queue: 5,
            self.leave_inside_the_body: 2,
            self.nonsense: 9,
            self.read_slowly: 4,
            self.beyond_a_limit: 2,
        }

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            [deed] = self._random.choices(list(self._deeds), list(self._deeds.values()))
            name = deed.__name__
            try:
                await asyncio.wait_for(deed(), PATIENCE_S)
                self._tally.outcomes[name] += 1
            except Unexpected as exc:
                self._tally.errors[f"{name}: {exc}"] += 1
            except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as exc:
                self._tally.errors[f"{name}: {type(exc).__name__}"] += 1

    # --- requests ---

    def _text(self, most: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=self._random.randint(5, most)))

    def _request(self, **more: object) -> tuple[str, dict[str, object]]:
        pick = self._random
        text = self._text(150)
        if pick.random() < 0.3:
            text = "Once upon a time there was a river. " * 8 + text  # a beginning that the prefix cache knows
        body: dict[str, object] = {
            "max_tokens": pick.randint(4, 64),
            "temperature": pick.choice([0, 0.8]),
            "ignore_eos": True,
            **more,
        }
        if pick.random() < 0.2:
            body["cache_salt"] = pick.choice(["a", "b"])
        if pick.random() < 0.2:
            body["stop"] = ["river", "\n\n\n"]
        path = pick.choice(["/generate", "/v1/completions", "/v1/chat/completions"])
        if path == "/v1/chat/completions":
            return path, {"messages": [{"role": "user", "content": text}], **body}
        if path == "/v1/completions" and pick.random() < 0.2:
            body["n"] = 2
        return path, {"prompt": text, **body}

    async def _accepted(self, connection: Connection) -> bool:
        """Whether the request was taken; 429 is the other answer there may be."""
        if await connection.read_head() == 200:
            return True
        if connection.status != 429:
            body = await connection.read_rest()
            raise Unexpected(f"status {connection.status} {body[-200:]!r}")
        if b"retry-after:" not in connection.head.lower():
            raise Unexpected("429 without Retry-After")
        self._tally.refused["queue full 429"] += 1
        await asyncio.sleep(self._random.uniform(0.05, 0.4))  # sooner than told: the load stays
        return False

    async def _finish(self, connection: Connection, began: float | None) -> None:
        """Read a stream to its end."""
        first = None
        while await connection.read_piece():
            if first is None and _FIRST_TEXT.search(connection.body):
                first = monotonic()
        if b"data: [DONE]" not in connection.body:
            raise Unexpected(f"a stream ended with {connection.body[-120:]!r}")
        if first is not None and began is not None:
            self._tally.ttft_s.append(first - began)
        self._tally.tokens += connection.body.count(b"data: ")

    # --- deeds ---

    async def stream(self) -> None:
        path, body = self._request(stream=True)
        async with Connection(self._port) as connection:
            began = monotonic()
            connection.send(path, body)
            if await self._accepted(connection):
                await self._finish(connection, began)

    async def whole(self) -> None:
        path, body = self._request()
        async with Connection(self._port) as connection:
            connection.send(path, body)
            if await self._accepted(connection):
                usage = json.loads(await connection.read_rest())["usage"]
                self._tally.tokens += usage["completion_tokens"]

    async def cancel(self) -> None:
        """Close after a few pieces."""
        path, body = self._request(stream=True, max_tokens=200)
        async with Connection(self._port) as connection:
            connection.send(path, body)
            if await self._accepted(connection):
                for _ in range(self._random.randint(1, 5)):
                    await connection.read_piece()

    async def leave_by_reset(self) -> None:
        path, body = self._request(stream=self._random.random() < 0.5, max_tokens=200)
        async with Connection(self._port) as connection:
            connection.send(path, body)
            await asyncio.sleep(self._random.uniform(0, 0.5))
            connection.reset()

    async def leave_in_the_queue(self) -> None:
        path, body = self._request(stream=True)
        async with Connection(self._port) as connection:
            connection.send(path, body)
            await connection.writer.drain()

    async def leave_inside_the_body(self) -> None:
        async with Connection(self._port) as connection:
            connection.send("/generate", b'{"prompt": ', Content_Length="5000")
            await connection.writer.drain()
            await asyncio.sleep(self._random.uniform(0, 0.2))

    async def nonsense(self) -> None:
        """Requests that are wrong, each with its status."""
        good = {"prompt": "a", "max_tokens": 2}
        status, path, body, headers = self._random.choice(
            [
                (400, "/generate", b"{", {}),
                (400, "/generate", b'{"prompt": "\xff"}', {}),
                (400, "/generate", {**good, "temperature": -1}, {}),
                (400, "/v1/completions", {**good, "n": 10**6}, {}),
                (400, "/v1/completions", {**good, "unknown": 1}, {}),
                (400, "/v1/chat/completions", {"messages": []}, {}),
                (400, "/generate", {"prompt": "word " * 20_000}, {}),
                (413, "/generate", b"{}", {"Content_Length": str(10**9)}),
                (415, "/generate", good, {"Content_Type": "text/plain"}),
                (401, "/generate", good, {"key": "sk-soak-0123456789abcdeg"}),
                (401, "/v1/models", good, {"key": ""}),
                (403, "/generate", good, {"Host": "evil.example"}),
                (404, "/v1/nothing", good, {}),
                (404, "/generate", {**good, "model": "../../etc/passwd"}, {}),
                (405, "/health", good, {}),
            ]
        )
        async with Connection(self._port) as connection:
            connection.send(path, body, **headers)
            if await connection.read_head() != status:
                raise Unexpected(f"status {connection.status} instead of {status} for {path}")
            self._tally.refused[f"nonsense {status}"] += 1

    async def read_slowly(self) -> None:
        """A little at a time for some seconds, then the rest."""
        body = {"prompt": self._text(50), "stream": True, "max_tokens": 64, "logprobs": 10, "ignore_eos": True}
        async with Connection(self._port, receive_buffer=4096) as connection:
            connection.send("/v1/completions", body)
            if await self._accepted(connection):
                until = monotonic() + self._random.uniform(1, 4)
                while monotonic() < until and await connection.read_piece(1024):
                    await asyncio.sleep(0.05)
                await self._finish(connection, None)

    async def beyond_a_limit(self) -> None:
        """The other key may do one thing at a time; its second request is refused at once."""
        path, body = self._request(stream=True, max_tokens=100)
        async with Connection(self._port) as first, Connection(self._port) as second:
            first.send(path, body, key=LIMITED_KEY)
            second.send(path, body, key=LIMITED_KEY)
            for connection in (first, second):
                if await connection.read_head() not in (200, 429):
                    raise Unexpected(f"status {connection.status} for the limited key")
                self._tally.refused["limited key or queue 429"] += connection.status == 429
