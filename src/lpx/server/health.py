"""Health and version: what load balancers and people ask before anything else. Public, and never slow."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from lpx import __version__
from lpx.server.service import Service, service_of

router = APIRouter()


@router.api_route("/health", methods=["GET", "HEAD"])
async def health(request: Request) -> JSONResponse:
    service = service_of(request)
    return JSONResponse(_state(service), status_code=200 if service.state == "ok" else 503)


@router.api_route("/health/live", methods=["GET", "HEAD"])
async def live() -> JSONResponse:
    """The process answers. A model that loads, or has failed, does not change that."""
    return JSONResponse({"status": "alive"})


@router.api_route("/health/ready", methods=["GET", "HEAD"])
async def ready(request: Request) -> JSONResponse:
    """Requests are taken: a token has been made, and this is how long it took."""
    service = service_of(request)
    body = _state(service)
    if service.state != "ok":
        return JSONResponse(body, status_code=503, headers={"retry-after": "1"})
    return JSONResponse({**body, "warm_up_token_ms": round(service.warm_up_ms, 3)})


def _state(service: Service) -> dict[str, Any]:
    state = service.state
    if state not in ("loading", "warming up"):  # a server that reloads says so, and 503 only while it has no engine
        return {"status": state}
    return {
        "status": "loading",
        "phase": state,
        "progress": round(service.progress, 3),
        "loaded_bytes": service.loaded_bytes,
        "total_bytes": service.total_bytes,
    }


@router.get("/version")
async def version() -> JSONResponse:
    return JSONResponse({"version": __version__})
