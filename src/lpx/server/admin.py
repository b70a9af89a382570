"""`/admin/models/reload`: what whoever runs the server may do. `access` lets only admin keys in here."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lpx.server.errors import HttpError
from lpx.server.limits import read_request
from lpx.server.reload import Reloader
from lpx.server.schemas import ReloadRequest
from lpx.server.service import Service, service_of
from lpx.server.streaming import json_response

router = APIRouter()


@router.post("/admin/models/reload")
async def reload_model(request: Request) -> Response:
    """Serve another version, or model; answers when it serves."""
    service = service_of(request)
    wanted = await read_request(request, service.settings, ReloadRequest.parse)
    outcome = await _reloader(service).reload(wanted.model, drain=wanted.drain, force=wanted.force)
    return json_response(outcome)


@router.get("/admin/models/reload")
async def reload_status(request: Request) -> Response:
    """What is served, and how far a reload is."""
    status: dict[str, Any] = _reloader(service_of(request)).status()
    return json_response(status)


def _reloader(service: Service) -> Reloader:
    if service.reloader is None:
        raise HttpError(409, "This server was given an engine and cannot load another one.", code="not_supported")
    return service.reloader
