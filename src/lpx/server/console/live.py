"""`GET /console/live`: counters that the page turns into charts; `POST /console/limit`: measures what memory gives.

Reading the counters costs a few microseconds and wakes no thread of the engine, so looking at an idle server leaves it
idle. Names end in `_total` where values only grow: the page shows differences.
"""

from __future__ import annotations

import os
import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from lpx.engine.histogram import Histogram
from lpx.errors import InvalidRequestError
from lpx.server.limits import read_request
from lpx.server.service import service_of

router = APIRouter()


@router.get("/console/live")
async def live(request: Request) -> JSONResponse:
    service = service_of(request)
    engine = service.engine
    stats = engine.stats()
    body: dict[str, Any] = {
        "model": service.model_name,
        "time_s": time.monotonic(),
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_usage": 1 - stats.free_blocks / stats.total_blocks,
        "memory_bytes": _resident_bytes(),
        "prompt_tokens_total": stats.prompt_tokens_total,
        "generation_tokens_total": stats.generation_tokens_total,
        "prefix_cache_queries_total": stats.prefix_cache_queries_total,
        "prefix_cache_hits_total": stats.prefix_cache_hits_total,
        "drafted_tokens_total": stats.drafts.drafted,
        "accepted_tokens_total": stats.drafts.accepted,
        "decode_step": _sums(stats.step_times.decode_seconds),
        "first_token": _sums(service.latencies.time_to_first_token),
        "between_tokens": _sums(service.latencies.inter_token),
        "bytes_per_token": engine.info.bytes_per_token,
        "limit": service.read_limit.as_json(engine.info.bytes_per_token),
    }
    return JSONResponse(body)


@router.post("/console/limit")
async def measure_limit(request: Request) -> JSONResponse:
    service = service_of(request)
    engine = service.engine
    await read_request(request, service.settings, _nothing)
    await service.read_limit.measure(engine)
    return JSONResponse(service.read_limit.as_json(engine.info.bytes_per_token))


def _nothing(body: dict[str, Any]) -> None:
    """Refuse every field. JSON it must be, since pages elsewhere cannot send that."""
    for name in body:
        raise InvalidRequestError("This request takes no fields: send {}.", param=name)


def _sums(histogram: Histogram) -> dict[str, float]:
    return {"count_total": histogram.count, "seconds_total": histogram.total}


def _resident_bytes() -> int | None:
    """Memory of this process, as Linux counts it: mapped files that are in use included."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
