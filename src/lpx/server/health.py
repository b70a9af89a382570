"""`GET /health`: 200 once the model answers, 503 while it loads, after it failed, and while the server stops."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from lpx.server.service import service_of

router = APIRouter()


@router.api_route("/health", methods=["GET", "HEAD"])
async def health(request: Request) -> JSONResponse:
    service = service_of(request)
    state = service.state
    body: dict[str, Any] = {"status": state}
    if state in ("loading", "warming up"):
        body = {"status": "loading", "phase": state, "progress": round(service.progress, 3)}
    return JSONResponse(body, status_code=200 if state == "ok" else 503)
