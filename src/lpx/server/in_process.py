"""The endpoints as a batch's target, without HTTP: the same checks, limits, answers and errors as over a connection.

An endpoint gets a request whose body is there and whose client never goes away. What the outer layers do for requests
of the network, finding the caller and counting, is done here: the caller is known.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Scope

from lpx.batch.errors import TargetGone
from lpx.batch.http_target import retry_after_s
from lpx.batch.json_text import json_line, read_json
from lpx.batch.line_request import LineRequest
from lpx.batch.target import Answer
from lpx.server import embeddings, openai_chat, openai_completions
from lpx.server.caller import ANYBODY, Caller, set_caller
from lpx.server.engines import one_use
from lpx.server.errors import exception_response
from lpx.server.rate_limits import LimitReached, begin_requests
from lpx.server.service import Service

if TYPE_CHECKING:
    from fastapi import FastAPI

    from lpx.engine.async_engine import AsyncEngine

_ENDPOINTS: dict[str, Callable[[Request], Awaitable[Response]]] = {
    "/v1/chat/completions": openai_chat.chat_completions,
    "/v1/completions": openai_completions.completions,
    "/v1/embeddings": embeddings.embeddings,
}


class EndpointTarget:
    """Sends requests to the endpoints of an application, all for one caller, whose limits hold."""

    def __init__(self, app: FastAPI, caller: Caller, *, least_priority: int | None = None) -> None:
        """`least_priority` is the lowest value (the most urgent) that requests may have."""
        self._app = app
        self._service: Service = app.state.service
        self._caller = replace(caller, is_patient=True)
        self._least_priority = least_priority

    async def send(self, request: LineRequest, request_id: str) -> Answer:
        """Raises `TargetGone` when the engine has failed or is being stopped; waits while one takes another's place."""
        with one_use() as use:
            await self._service.enter(use)
            if use.served is None:
                raise TargetGone("the engine takes no requests any more")
            set_caller(self._caller)
            response = await self._respond(request, request_id)
        if response.status_code == 503:
            raise TargetGone("the engine takes no requests any more")
        given, asked = response.headers.get("x-request-id", request_id), response.headers.get("retry-after")
        return Answer(response.status_code, read_json(bytes(response.body)), given, retry_after_s(asked))

    async def _respond(self, request: LineRequest, request_id: str) -> Response:
        quotas = self._caller.quotas
        try:
            begin_requests(quotas)
        except LimitReached as refusal:
            return exception_response(refusal)
        try:
            return await _ENDPOINTS[request.url](self._as_http(request, request_id))
        except Exception as exc:
            return exception_response(exc)
        finally:
            for quota in quotas:
                quota.end_request()

    def _as_http(self, request: LineRequest, request_id: str) -> Request:
        body = json_line(self._with_priority(request.body))
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "scheme": "http",
            "path": request.url,
            "query_string": b"",
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"x-request-id", request_id.encode()),
            ],
            "app": self._app,
        }
        arriving: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if not arriving:
                await asyncio.get_running_loop().create_future()  # this client never goes away
            return arriving.pop()

        return Request(scope, receive)

    def _with_priority(self, body: dict[str, Any]) -> dict[str, Any]:
        least, given = self._least_priority, body.get("priority")
        if least is None or (given is not None and type(given) is not int):  # what is wrong is for the endpoint to say
            return body
        return {**body, "priority": max(least, given or 0)}


@contextlib.asynccontextmanager
async def engine_target(engine: AsyncEngine, max_line_bytes: int) -> AsyncIterator[EndpointTarget]:
    """A target around an engine of one's own, which ends with it."""
    from lpx.server.app import create_app
    from lpx.server.settings import ServerSettings

    app = create_app(engine, ServerSettings(max_body_bytes=max_line_bytes))
    async with app.router.lifespan_context(app):
        yield EndpointTarget(app, ANYBODY)
