"""`/v1/batches`: OpenAI's batches, run by `batch_queue` when there is room. Each key sees its own."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lpx.batch.store import NotThere, StoredBatch
from lpx.errors import InvalidRequestError
from lpx.server.batch_queue import BatchQueue
from lpx.server.caller import current_caller
from lpx.server.errors import HttpError
from lpx.server.limits import read_request
from lpx.server.openai_files import list_json, page_of, store_of
from lpx.server.schemas.batches import BatchRequest
from lpx.server.service import service_of
from lpx.server.streaming import json_response

router = APIRouter()

_WINDOW_S = 24 * 3600
_MAX_PAGE = 100
_CANCELLABLE = ("validating", "in_progress", "finalizing")


@router.post("/v1/batches")
async def create_batch(request: Request) -> Response:
    service = service_of(request)
    store, owner = store_of(service), current_caller().owner
    wanted = await read_request(request, service.settings, BatchRequest.parse)
    now = int(time.time())
    batch = StoredBatch(
        id=f"batch_{secrets.token_hex(16)}",
        owner=owner,
        endpoint=wanted.endpoint,
        input_file_id=wanted.input_file_id,
        completion_window=wanted.completion_window,
        status="validating",
        created_at=now,
        expires_at=now + _WINDOW_S,
        metadata=wanted.metadata,
    )
    try:
        file = await asyncio.to_thread(store.file, wanted.input_file_id, owner)
        if file.purpose != "batch":
            raise InvalidRequestError("input_file_id must name a file with the purpose batch.", param="input_file_id")
        await asyncio.to_thread(store.add_batch, batch)
    except NotThere:
        raise InvalidRequestError("input_file_id names no file that is here.", param="input_file_id") from None
    _queue(request).notice()
    return json_response(_batch_json(batch, _queue(request)))


@router.get("/v1/batches")
async def list_batches(request: Request) -> Response:
    store, owner = store_of(service_of(request)), current_caller().owner
    limit, after = page_of(request, 20, _MAX_PAGE)
    batches, more = await asyncio.to_thread(lambda: store.batches(owner, limit=limit, after=after))
    return json_response(list_json([_batch_json(batch, _queue(request)) for batch in batches], more))


@router.get("/v1/batches/{id}")
async def show_batch(request: Request, id: str) -> Response:
    store, owner = store_of(service_of(request)), current_caller().owner
    batch = await asyncio.to_thread(store.batch, id, owner)
    return json_response(_batch_json(batch, _queue(request)))


@router.post("/v1/batches/{id}/cancel")
async def cancel_batch(request: Request, id: str) -> Response:
    store, owner = store_of(service_of(request)), current_caller().owner
    batch = await asyncio.to_thread(store.batch, id, owner)
    if batch.status not in (*_CANCELLABLE, "cancelling"):
        raise HttpError(409, f"The batch is {batch.status}; there is nothing to cancel.", code="batch_has_ended")
    ended = ("cancelling", "completed", "failed", "expired", "cancelled")
    batch = await asyncio.to_thread(
        lambda: store.change(id, owner, unless=ended, status="cancelling", cancelling_at=int(time.time()))
    )
    _queue(request).cancel(batch)
    return json_response(_batch_json(batch, _queue(request)))


def _queue(request: Request) -> BatchQueue:
    queue: BatchQueue = request.app.state.batch_queue
    return queue


def _batch_json(batch: StoredBatch, queue: BatchQueue) -> dict[str, Any]:
    total, completed, failed = queue.counts(batch)
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": batch.created_at,
        "in_progress_at": batch.in_progress_at,
        "expires_at": batch.expires_at,
        "finalizing_at": batch.finalizing_at,
        "completed_at": batch.completed_at,
        "failed_at": batch.failed_at,
        "expired_at": batch.expired_at,
        "cancelling_at": batch.cancelling_at,
        "cancelled_at": batch.cancelled_at,
        "request_counts": {"total": total, "completed": completed, "failed": failed},
        "metadata": batch.metadata,
    }
