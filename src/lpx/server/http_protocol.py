"""uvicorn with bounds on connections and the heads of requests, errors in OpenAI's shape, and no polling while idle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections import OrderedDict
from collections.abc import Coroutine, Generator
from typing import Any, ClassVar, TypeVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from lpx.server.errors import error_object
from lpx.server.settings import ServerSettings

_T = TypeVar("_T")

MAX_URL_BYTES = 8 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 200
LINGER_S = 1.0  # after a refusal: time for the client to read it, since closing on unread data resets the connection
MAX_DROPPED_BYTES = 4 * 1024 * 1024  # what is read and dropped meanwhile
TLS_HANDSHAKE_S = 10.0
HEAD_TIMEOUT_S = 20.0  # from the connection, or from the first byte of a further request, to the end of its head
UNREAD_BODY_S = 5.0  # after an answer that did not wait for the body: time for the rest of it to come and be dropped

_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class _HeadError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def bounded_protocol(settings: ServerSettings) -> type[BoundedHttpProtocol]:
    """The protocol of one server, which has so many connections and so much patience."""

    class Protocol(BoundedHttpProtocol):
        max_connections = settings.max_connections
        write_timeout_s = settings.write_timeout_s
        idle: ClassVar[OrderedDict[BoundedHttpProtocol, None]] = OrderedDict()

    return Protocol


class BoundedHttpProtocol(HttpToolsProtocol):
    """Refuses heads that are too large, have too many fields, or do not come to an end; drops who does not read.

    When there are as many connections as may be, a newcomer takes the place of the one that has sat the longest without
    a whole request: a crowd of slow clients keeps nobody out.
    """

    max_connections = 1000
    write_timeout_s = 30.0
    idle: ClassVar[OrderedDict[BoundedHttpProtocol, None]] = OrderedDict()  # without a whole request, the longest first

    _in_body = False
    _write_timer: asyncio.TimerHandle | None = None
    _body_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = True
    _head_timer: asyncio.TimerHandle | None = None
    _refusal: _HeadError | None = None
    _linger_timer: asyncio.TimerHandle | None = None
    _dropped_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.max_connections and not self._make_room():
            self._refuse(_HeadError(503, "The server has as many connections as it may have; try again later."))
            return
        self.idle[self] = None
        self._arm()

    def _make_room(self) -> bool:
        if not self.idle:
            return False
        longest, _ = self.idle.popitem(last=False)
        longest.transport.abort()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self.idle.pop(self, None)
        for timer in (self._linger_timer, self._write_timer, self._body_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        # With a body, the handshake would never be answered, and the connection would stay for ever.
        with_body = any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
            for name, value in self.headers
        )
        if with_body or self.parser.get_method() != b"GET":
            self._refuse(_HeadError(400, "A WebSocket opens with a GET request that has no body."))
            return
        self.idle.pop(self, None)
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def on_message_complete(self) -> None:
        self._in_body = False
        self.idle.pop(self, None)
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        super().on_message_complete()
        if self.cycle is None or self.cycle.response_complete:
            self._wait_for_next()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or not self.cycle.response_complete:  # others were sent behind it
            return
        if self._in_body:  # it was answered without being read
            self._body_timer = self.loop.call_later(UNREAD_BODY_S, self.transport.abort)
        else:
            self._wait_for_next()

    def _wait_for_next(self) -> None:
        self.idle.pop(self, None)
        self.idle[self] = None

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > MAX_DROPPED_BYTES:
                self.transport.abort()
            return
        if self._in_head:
            # Also bounds one endless field, which the parser would go on collecting.
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES + 256 * 1024:  # the last piece may hold a part of the body
                self._refuse(_HeadError(431, "The headers are too large."))
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        self._fields_bytes = 0
        if self._head_timer is None:
            self._arm()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            raise self._note(_HeadError(414, "The URL is too long."))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._fields_bytes += len(name) + len(value)
        if self._fields_bytes > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            raise self._note(_HeadError(431, "The headers are too large or too many."))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._in_body = True
        self._disarm()
        super().on_headers_complete()

    def _note(self, refusal: _HeadError) -> _HeadError:
        self._refusal = refusal
        return refusal

    def send_400_response(self, msg: str) -> None:
        """Called by the parser for whatever it cannot accept; `msg` is uvicorn's own fixed text."""
        self._refuse(self._refusal or _HeadError(400, "This is not a valid HTTP request."))

    def _refuse(self, refusal: _HeadError) -> None:
        self._refusal = refusal
        self._disarm()
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # an answer is under way and cannot be replaced
        else:
            body = json.dumps(error_object(refusal.status, str(refusal))).encode()
            head = (
                f"HTTP/1.1 {refusal.status} {_REASONS[refusal.status]}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nx-content-type-options: nosniff\r\ncache-control: no-store\r\n"
                "connection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
            if self.transport.can_write_eof():  # not over TLS
                self.transport.write_eof()
            self._linger_timer = self.loop.call_later(LINGER_S, self.transport.close)

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_timed_out)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        self._head_timer = None
        self._refuse(_HeadError(408, "The request did not come to its end in time."))


class QuietWebSocketProtocol(WebSocketsSansIOProtocol):
    """Knows that a WebSocket which was answered by an HTTP refusal has got its answer: uvicorn logs an error there."""

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True


class QuietServer(uvicorn.Server):
    """Wakes once a second (for the Date header) instead of ten times, leaves signals to its owner, and bounds the time
    of TLS handshakes.

    uvicorn would raise a caught signal again at the end, and the exit code would not be 0.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._exit = asyncio.Event()

    def exit_soon(self) -> None:
        """Begin the graceful end. To be called on the server's event loop."""
        self.should_exit = True
        self._exit.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._exit.wait(), 1.0)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's on `sockets`. A client in its TLS handshake is no connection yet: only time bounds it."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(3)  # uvicorn's code for it
        config, loop = self.config, asyncio.get_running_loop()

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return made

        self.servers = [
            await loop.create_server(
                protocol,
                sock=each,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=TLS_HANDSHAKE_S if config.ssl else None,
            )
            for each in sockets or ()
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def run_on_new_loop(main: Coroutine[Any, Any, _T]) -> _T:
    """Run `main` to its end on a new uvloop loop, or asyncio's own where there is no uvloop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(main)
        loop.run_until_complete(loop.shutdown_asyncgens())
        return result
    finally:
        asyncio.set_event_loop(None)
        loop.close()
