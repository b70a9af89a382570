"""The ASGI application: routes, the gate before them, and the engine's life.

Every route is listed in `ROUTES` with what it gives away; a test fails when one is missing there, so that a new route
cannot stay unclassified.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lpx.errors import LpxError
from lpx.server import console, generate, health, metrics, openai_chat, openai_completions, openai_models
from lpx.server.errors import HttpError, error_response, exception_response
from lpx.server.limits import host_allowed
from lpx.server.service import EngineLoader, Service
from lpx.server.settings import ServerSettings

if TYPE_CHECKING:
    from lpx.engine.async_engine import AsyncEngine

# "public": readable by anybody who reaches the port; "inference": uses the engine or describes the model.
ROUTES: dict[str, Literal["public", "inference"]] = {
    "/health": "public",
    "/": "inference",
    "/console/{version}/{name:path}": "inference",
    "/console/live": "inference",
    "/console/limit": "inference",
    "/metrics": "inference",
    "/generate": "inference",
    "/v1/completions": "inference",
    "/v1/chat/completions": "inference",
    "/v1/models": "inference",
    "/v1/models/{name:path}": "inference",
}
_ENDPOINTS = (
    "GET / (the console), GET /health, GET /metrics, GET /v1/models, POST /generate, POST /v1/completions, "
    "POST /v1/chat/completions"
)


def create_app(engine: AsyncEngine | EngineLoader, settings: ServerSettings | None = None) -> FastAPI:
    """The service around an engine, or around a function that loads one (called with a progress callback in a thread).

    `app.state.service` is the `Service`; `app.state.loaded` is set by the lifespan to a task that ends when the engine
    serves or has failed. The engine is shut down with the app.
    """
    service = Service(settings or ServerSettings())

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if callable(engine):
            app.state.loaded = service.begin_loading(engine)
        else:
            await service.use(engine)
            app.state.loaded = asyncio.get_running_loop().create_task(asyncio.sleep(0))
        yield
        await service.shutdown()

    # No docs pages: they load scripts from elsewhere, and show the service to whoever finds the port.
    app = FastAPI(
        title="LPX", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.state.service = service
    for module in (health, metrics, console, generate, openai_completions, openai_chat, openai_models):
        app.include_router(module.router)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(HttpError, _refusal)
    app.add_exception_handler(LpxError, _refusal)
    app.add_exception_handler(ClientDisconnect, _disconnect)
    app.add_middleware(_Gate, allowed_hosts=service.settings.allowed_hosts)
    return app


async def _refusal(request: Request, exc: Exception) -> Response:
    return exception_response(exc)


async def _disconnect(request: Request, exc: Exception) -> Response:
    return Response(status_code=499)  # the client left while it sent its body; nobody reads this


async def _http_exception(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    headers = dict(exc.headers) if exc.headers else None
    if exc.status_code == 404:
        return error_response(404, f"There is nothing at this path. The endpoints are: {_ENDPOINTS}.", code="not_found")
    if exc.status_code == 405:
        allowed = (headers or {}).get("Allow", "")
        return error_response(
            405,
            f"This path does not take {request.method[:16]}; it takes {allowed}.",
            code="method_not_allowed",
            headers=headers,
        )
    return error_response(exc.status_code, "The request was refused.", headers=headers)


class _Gate:
    """Outermost: refuses foreign Host names, and turns an unexpected exception into a 500 that tells nothing."""

    def __init__(self, app: ASGIApp, allowed_hosts: tuple[str, ...]) -> None:
        self._app = app
        self._allowed_hosts = tuple(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) > 1 or (hosts and not host_allowed(hosts[0], self._allowed_hosts)):
            response = error_response(
                403,
                "This Host name is not served. Use localhost or the IP address, or start the server with "
                "--allowed-hosts NAME.",
                code="host_not_allowed",
            )
            await response(scope, receive, send)
            return
        started = False

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        except Exception as exc:
            response = exception_response(exc)
            if not started:
                await response(scope, receive, send)
