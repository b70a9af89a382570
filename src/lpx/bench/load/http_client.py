"""HTTP/1.1 for measuring: sends a body, notes when each piece of the answer came, and looks into none of them.

A request costs the event loop one task switch, however many pieces its answer has: the pieces are appended where the
socket is read. Whoever asked reads them when the answer is over.
"""

from __future__ import annotations

import asyncio
import ssl
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httptools

if TYPE_CHECKING:
    from asyncio import Future, Transport

Clock = Callable[[], float]

MAX_ANSWER_BYTES = 256 * 1024 * 1024
MAX_HELD_BYTES = 1024 * 1024 * 1024  # of all answers that are under way together
_PIECE_COST = 100  # bytes of memory that a piece takes beside its own
_CONNECT_TIMEOUT_S = 10.0


class RequestFailedError(Exception):
    """One request came to nothing. `kind` is what reports count by: `http_429`, `timeout`, `connection`, …"""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


@dataclass(slots=True)
class Exchange:
    """One request and its answer. Times are of the client's clock, in seconds."""

    sent_s: float
    status: int = 0
    content_type: str = ""
    pieces: list[bytes] = field(default_factory=list)  # of the body, as they came
    stamps: array[float] = field(default_factory=lambda: array("d"))  # when each piece came
    ended_s: float = 0.0
    complete: bool = False  # whether the answer has its end
    key: str | None = field(default=None, repr=False)  # that was shown, to be taken out of what is told of the answer

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


class HttpClient:
    """Connections to one server, kept between requests. `clock` must be monotonic."""

    def __init__(
        self,
        base_url: str,
        clock: Clock,
        *,
        api_key: str | None = None,
        insecure: bool = False,
        timeout_s: float = 600.0,
    ) -> None:
        parts = urlsplit(base_url)
        assert parts.hostname is not None
        self._host, self._prefix = parts.hostname, parts.path
        self._tls = _tls(insecure) if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._clock = clock
        self._timeout_s = timeout_s
        authorization = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self.api_key = api_key
        self._fields = f"Host: {parts.netloc}\r\nUser-Agent: lpx-bench\r\n{authorization}"
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()
        self.held_bytes = 0  # memory of the answers that are under way

    async def post(self, path: str, body: bytes) -> Exchange:
        """Send JSON. Raises RequestFailedError when no whole answer comes; its status may be any."""
        head = (
            f"POST {self._prefix}{path} HTTP/1.1\r\n{self._fields}Content-Type: application/json\r\n"
            f"Accept: text/event-stream, application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return await self._exchange(head.encode("latin-1") + body)

    async def get(self, path: str) -> Exchange:
        """Raises as `post` does."""
        return await self._exchange(f"GET {self._prefix}{path} HTTP/1.1\r\n{self._fields}\r\n".encode("latin-1"))

    async def _exchange(self, request: bytes) -> Exchange:
        while True:
            connection, kept = (self._idle.pop(), True) if self._idle else (await self._connect(), False)
            try:
                exchange = await connection.exchange(request, self._timeout_s)
            except _ClosedBeforeAnswerError as closed:
                if kept and closed.properly:
                    continue  # the server gave up an idle connection just now: that is no failure of the request
                raise RequestFailedError("connection", "the server closed the connection without an answer") from None
            except BaseException:
                connection.close()
                raise
            if connection.reusable:
                self._idle.append(connection)
            else:
                connection.close()
            return exchange

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        connection = _Connection(self)
        opening = loop.create_connection(
            lambda: connection, self._host, self._port, ssl=self._tls, server_hostname=self._host if self._tls else None
        )
        try:
            await asyncio.wait_for(opening, min(_CONNECT_TIMEOUT_S, self._timeout_s))
        except asyncio.TimeoutError:
            raise RequestFailedError("connection", f"{self._host}:{self._port} does not take the connection") from None
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", None) or error.reason
            raise RequestFailedError("connection", f"{self._host}:{self._port} has no good HTTPS: {reason}") from None
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that cannot be one
            reason = getattr(error, "strerror", None) or error
            raise RequestFailedError("connection", f"{self._host}:{self._port}: {reason}") from None
        self._all.add(connection)
        return connection

    async def close(self) -> None:
        """Close all connections, those in use too."""
        for connection in list(self._all):
            connection.close()
        await asyncio.sleep(0)  # transports close in the next turn of the loop

    # What connections need.

    def now(self) -> float:
        return self._clock()

    def forget(self, connection: _Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


class _ClosedBeforeAnswerError(Exception):
    """The connection ended before the first byte of an answer, by its proper end or a reset."""

    def __init__(self, properly: bool) -> None:
        super().__init__()
        self.properly = properly


class _Connection(asyncio.Protocol):
    """One connection with one request at a time."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._now = client.now
        self._transport: Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._exchange: Exchange | None = None
        self._over: Future[Exchange] | None = None
        self._stamp = 0.0
        self._size = 0
        self._ends_with_connection = True
        self._encoded = False
        self.reusable = False

    async def exchange(self, request: bytes, timeout_s: float) -> Exchange:
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self.reusable = False
        timer = loop.call_later(timeout_s, self._fail, "timeout", f"no whole answer within {timeout_s:g} s")
        self._exchange = Exchange(self._now(), key=self._client.api_key)
        try:
            if self._transport.is_closing():
                raise _ClosedBeforeAnswerError(True)
            self._transport.write(request)
            return await self._over
        finally:
            timer.cancel()
            self._exchange = self._over = None
            self._hold(-self._size)

    def _hold(self, count: int) -> None:
        """So many bytes of memory more, for this answer and so for all that are under way."""
        self._size += count
        self._client.held_bytes += count

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._client.forget(self)

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._stamp = self._now()
        if self._exchange is None or self._parser is None:
            self.close()  # bytes that nobody asked for
            return
        self._hold(len(data))
        if self._size > MAX_ANSWER_BYTES:
            self._fail("bad_stream", f"the answer takes more than {MAX_ANSWER_BYTES} bytes")
            return
        if self._client.held_bytes > MAX_HELD_BYTES:
            self._fail("bad_stream", f"all answers under way together take more than {MAX_HELD_BYTES} bytes")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail("bad_stream", f"the answer is no HTTP/1.1: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self._client.forget(self)
        exchange, over = self._exchange, self._over
        if exchange is None or over is None or over.done():
            return
        if self._size == 0:
            over.set_exception(_ClosedBeforeAnswerError(error is None))
        elif exchange.status and self._ends_with_connection and error is None:
            self._finish(self._now())
        else:
            self._fail("cut_stream", "the connection ended in the middle of the answer")

    # --- httptools ---

    def on_message_begin(self) -> None:
        self._ends_with_connection = True
        self._encoded = False
        if self._exchange is None:  # a second answer behind the first: whose it is, nobody knows
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False
        elif name == b"content-type" and self._exchange is not None:
            self._exchange.content_type = value.decode("latin-1").split(";")[0].strip().lower()
        elif name == b"content-encoding" and value.lower() != b"identity":
            self._encoded = True

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if self._exchange is not None and status >= 200:  # below are interim answers
            self._exchange.status = status
        if self._encoded:
            self._fail("bad_stream", "the answer is compressed, which was not asked for")

    def on_body(self, piece: bytes) -> None:
        exchange = self._exchange
        if exchange is not None:
            exchange.pieces.append(piece)
            exchange.stamps.append(self._stamp)
            self._hold(_PIECE_COST)

    def on_message_complete(self) -> None:
        if self._exchange is not None and self._exchange.status:
            self._finish(self._stamp)

    def _finish(self, now: float) -> None:
        assert self._exchange is not None
        assert self._parser is not None
        self._exchange.ended_s = now
        self._exchange.complete = True
        if self._over is not None and not self._over.done():
            self.reusable = not self._ends_with_connection and self._parser.should_keep_alive()
            self._over.set_result(self._exchange)
        self._exchange = None

    def _fail(self, kind: str, detail: str) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_exception(RequestFailedError(kind, detail))


def _tls(insecure: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
