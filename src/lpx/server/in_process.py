"""The application as a batch's target, without a socket: the same routes, checks, limits and errors as over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Scope

from lpx.batch.errors import TargetGone
from lpx.batch.http_target import retry_after_s
from lpx.batch.json_text import json_line, read_json
from lpx.batch.line_request import LineRequest
from lpx.batch.target import Answer
from lpx.server.access import IN_PROCESS_CALLER
from lpx.server.service import Service

if TYPE_CHECKING:
    from lpx.engine.async_engine import AsyncEngine
    from lpx.server.caller import Caller


class AppTarget:
    """Calls the application as one caller."""

    def __init__(self, app: ASGIApp, service: Service, caller: Caller) -> None:
        self._app = app
        self._service = service
        self._caller = caller

    async def send(self, request: LineRequest, request_id: str) -> Answer:
        """Raises `TargetGone` when the engine has failed or is being stopped."""
        if self._service.state != "ok":
            raise TargetGone("the engine takes no requests any more")
        status, headers, body = await self._call(request.url, json_line(request.body), request_id)
        if status == 503:
            raise TargetGone("the engine takes no requests any more")
        given = headers.get(b"x-request-id", request_id.encode()).decode("latin-1")
        asked = headers.get(b"retry-after", b"").decode("latin-1")
        return Answer(status, read_json(body), given, retry_after_s(asked or None))

    async def _call(self, path: str, body: bytes, request_id: str) -> tuple[int, dict[bytes, bytes], bytes]:
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"x-request-id", request_id.encode()),
            ],
            "client": None,
            "server": None,
            "state": {},
            IN_PROCESS_CALLER: self._caller,
        }
        given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        status, headers, pieces = 500, {}, []

        async def receive() -> Message:
            if given:
                return given.pop()
            await asyncio.get_running_loop().create_future()  # this client never goes away by itself
            raise AssertionError("unreachable")

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], dict(message["headers"])
            elif message["type"] == "http.response.body":
                pieces.append(message.get("body", b""))

        await self._app(scope, receive, send)
        return status, headers, b"".join(pieces)


@contextlib.asynccontextmanager
async def engine_target(engine: AsyncEngine, max_line_bytes: int) -> AsyncIterator[AppTarget]:
    """A target around an engine of one's own, which ends with it."""
    from lpx.server.app import create_app
    from lpx.server.caller import ANYBODY
    from lpx.server.settings import ServerSettings

    app: Any = create_app(engine, ServerSettings(max_body_bytes=max_line_bytes))
    async with app.router.lifespan_context(app):
        yield AppTarget(app, app.state.service, ANYBODY)
