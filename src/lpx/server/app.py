"""The ASGI application: routes, the layers before them, and the engine's life.

Every route is listed in `ROUTES` with what it gives away; a test fails when one is missing there, so that a new route
cannot stay unclassified. Who is let in is decided by path, before any route is looked for (see `access`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from lpx.errors import LpxError, QueueFullError
from lpx.server import (
    admin,
    anthropic_messages,
    console,
    embeddings,
    generate,
    health,
    login,
    metrics,
    openai_batches,
    openai_chat,
    openai_completions,
    openai_files,
    openai_models,
    openai_responses,
    openapi,
    tokenize,
    websocket,
)
from lpx.server.access import AccessGuard, HostCheck
from lpx.server.batch_queue import BatchQueue
from lpx.server.errors import HttpError, error_response, response_for_path
from lpx.server.model_loader import ModelLoader
from lpx.server.rate_limits import LimitReached
from lpx.server.reload import Reloader
from lpx.server.service import EngineLoader, Service, service_of
from lpx.server.settings import ServerSettings

if TYPE_CHECKING:
    from lpx.engine.async_engine import AsyncEngine

# "public": open to anybody who reaches the port; "inference": needs a key once keys are set; "admin": needs an admin
# key, or a client on this machine while there are no keys at all.
ROUTES: dict[str, Literal["public", "inference", "admin"]] = {
    "/health": "public",
    "/login": "public",
    "/logout": "inference",
    "/health/live": "public",
    "/health/ready": "public",
    "/version": "inference",
    "/openapi.json": "inference",
    "/": "inference",
    "/console/{version}/{name:path}": "inference",
    "/console/live": "inference",
    "/console/limit": "inference",
    "/metrics": "inference",
    "/generate": "inference",
    "/v1/completions": "inference",
    "/v1/chat/completions": "inference",
    "/v1/stream": "inference",
    "/v1/responses": "inference",
    "/v1/messages": "inference",
    "/v1/messages/count_tokens": "inference",
    "/v1/embeddings": "inference",
    "/v1/files": "inference",
    "/v1/files/{id}": "inference",
    "/v1/files/{id}/content": "inference",
    "/v1/batches": "inference",
    "/v1/batches/{id}": "inference",
    "/v1/batches/{id}/cancel": "inference",
    "/tokenize": "inference",
    "/detokenize": "inference",
    "/tokenizer_info": "inference",
    "/v1/models": "inference",
    "/v1/models/{name:path}": "inference",
    "/admin/models/reload": "admin",
}
_ENDPOINTS = (
    "GET / (the console), GET /health, GET /health/live, GET /health/ready, GET /version, GET /metrics, "
    "GET /openapi.json, GET /v1/models, POST /generate, POST /v1/completions, POST /v1/chat/completions, "
    "POST /v1/responses, POST /v1/messages, POST /v1/messages/count_tokens, POST /v1/embeddings, POST /tokenize, "
    "POST /detokenize, GET /tokenizer_info, GET and POST /admin/models/reload, WebSocket /v1/stream, and with "
    "--data-dir /v1/files and /v1/batches"
)


def create_app(engine: AsyncEngine | EngineLoader, settings: ServerSettings | None = None) -> FastAPI:
    """The service around an engine, or around a function that loads one (called with a progress callback in a thread).

    With a `ModelLoader` it can load others later.

    `app.state.service` is the `Service`; `app.state.loaded` is set by the lifespan to a task that ends when the engine
    serves or has failed. The engine is shut down with the app.
    """
    service = Service(settings or ServerSettings())

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if isinstance(engine, ModelLoader):
            service.reloader = Reloader(service, engine)
        if callable(engine):
            app.state.loaded = service.begin_loading(engine)
        else:
            await service.use(engine)
            app.state.loaded = asyncio.get_running_loop().create_task(asyncio.sleep(0))
        if service.batch_store is not None:
            queue = BatchQueue(app, service, service.batch_store, service.settings.batch_max_inflight)
            app.state.batch_queue = queue
            queue.start()
        try:
            yield
        finally:
            if service.batch_store is not None:
                await app.state.batch_queue.close()
            await service.shutdown()

    # No docs pages: they load scripts from elsewhere, and show the service to whoever finds the port.
    app = FastAPI(
        title="LPX", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.state.service = service
    for module in (
        health,
        login,
        metrics,
        console,
        generate,
        openai_completions,
        openai_chat,
        openai_responses,
        anthropic_messages,
        embeddings,
        openai_files,
        openai_batches,
        tokenize,
        openai_models,
        openapi,
        websocket,
        admin,
    ):
        app.include_router(module.router)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(HttpError, _refusal)
    app.add_exception_handler(LpxError, _refusal)
    app.add_exception_handler(ClientDisconnect, _disconnect)
    # The last one added comes first.
    app.add_middleware(AccessGuard, service=service, paths=frozenset(ROUTES))
    cors = service.settings.cors
    if cors.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=cors.origins,
            allow_methods=cors.methods,
            allow_headers=cors.headers,
            allow_credentials=cors.credentials,
            expose_headers=("x-request-id", "retry-after"),
        )
    app.add_middleware(HostCheck, allowed_hosts=service.settings.allowed_hosts)
    return app


async def _refusal(request: Request, exc: Exception) -> Response:
    if isinstance(exc, LimitReached | QueueFullError):
        service_of(request).count_refusal(exc.reason if isinstance(exc, LimitReached) else "queue")
    return response_for_path(exc, request.url.path)


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
