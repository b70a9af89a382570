"""`/v1/files`: OpenAI's files, as far as batches need them. Each key sees its own."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.responses import StreamingResponse

from lpx.batch.store import BatchStore, NotThere, StoredFile, StoreUnwritable
from lpx.errors import InvalidRequestError
from lpx.server.caller import current_caller
from lpx.server.credentials import header, is_same_origin
from lpx.server.errors import HttpError
from lpx.server.file_upload import receive_upload
from lpx.server.service import Service, service_of
from lpx.server.streaming import json_response

router = APIRouter()

_PIECE = 256 * 1024
_SHORTEST_KEEP_S, _LONGEST_KEEP_S = 3600, 30 * 24 * 3600
MAX_PAGE = 10_000


def store_of(service: Service) -> BatchStore:
    """Raises `HttpError` 404 where nothing is kept."""
    if service.batch_store is None:
        raise HttpError(
            404,
            "Files and batches are not kept here: start the server with --data-dir DIR.",
            code="batches_not_enabled",
        )
    return service.batch_store


@router.post("/v1/files")
async def upload(request: Request) -> Response:
    service = service_of(request)
    store, owner = store_of(service), current_caller().owner
    # A form needs no preflight: without this, any page in a browser could send files here.
    allowed = service.settings.cors.origins
    if not is_same_origin(request.scope) and header(request.scope, b"origin") not in allowed and "*" not in allowed:
        raise HttpError(403, "Pages of this origin may not send files.", code="origin_not_allowed")
    await asyncio.to_thread(store.check_room, owner)
    with store.upload_slot(owner):
        return json_response(_file_json(await _receive(request, service, store, owner)))


async def _receive(request: Request, service: Service, store: BatchStore, owner: str) -> StoredFile:
    name, part = store.new_file_path()
    try:
        got = await receive_upload(request, service.settings, part, store.limits.max_file_bytes)
        purpose, keep_s = _check_fields(got.fields)
        return await asyncio.to_thread(
            lambda: store.add_file(name, part, owner=owner, purpose=purpose, filename=got.filename, keep_s=keep_s)
        )
    except OSError as exc:
        part.unlink(missing_ok=True)
        if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreUnwritable from None
        raise
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@router.get("/v1/files")
async def list_files(request: Request) -> Response:
    store, owner = store_of(service_of(request)), current_caller().owner
    limit, after = page_of(request, MAX_PAGE, MAX_PAGE)
    order, purpose = request.query_params.get("order", "desc"), request.query_params.get("purpose")
    if order not in ("asc", "desc"):
        raise InvalidRequestError("order must be asc or desc.", param="order")
    files, more = await asyncio.to_thread(
        lambda: store.files(owner, limit=limit, after=after, purpose=purpose, newest_first=order == "desc")
    )
    return json_response(list_json([_file_json(file) for file in files], more))


@router.get("/v1/files/{id}")
async def show_file(request: Request, id: str) -> Response:
    store, owner = store_of(service_of(request)), current_caller().owner
    return json_response(_file_json(await asyncio.to_thread(store.file, id, owner)))


@router.delete("/v1/files/{id}")
async def delete_file(request: Request, id: str) -> Response:
    store, owner = store_of(service_of(request)), current_caller().owner
    await asyncio.to_thread(store.delete_file, id, owner)
    return json_response({"id": id, "object": "file", "deleted": True})


@router.get("/v1/files/{id}/content")
async def file_content(request: Request, id: str) -> Response:
    store, owner = store_of(service_of(request)), current_caller().owner
    file = await asyncio.to_thread(store.file, id, owner)
    try:
        opened = os.open(store.path_of(file), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotThere("there is no file of this id") from None
    return StreamingResponse(
        _pieces(opened),
        media_type="application/octet-stream",
        headers={
            "content-length": str(os.fstat(opened).st_size),
            "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
        },
    )


async def _pieces(file: int) -> AsyncGenerator[bytes, None]:
    """The whole file, also if it is deleted meanwhile."""
    try:
        while piece := await asyncio.to_thread(os.read, file, _PIECE):
            yield piece
    finally:
        os.close(file)


def _check_fields(fields: dict[str, str]) -> tuple[str, int | None]:
    """Purpose and seconds to keep the file."""
    known = {"purpose", "expires_after[anchor]", "expires_after[seconds]"}
    for name in fields:
        if name not in known:
            raise InvalidRequestError("The form has a field that is not known here.", code="unknown_parameter")
    if fields.get("purpose") != "batch":
        raise InvalidRequestError('purpose must be "batch": files are kept for batches only.', param="purpose")
    if fields.get("expires_after[anchor]", "created_at") != "created_at":
        raise InvalidRequestError('expires_after[anchor] must be "created_at".', param="expires_after")
    given = fields.get("expires_after[seconds]")
    if given is None:
        return "batch", None
    seconds = _whole(given, _SHORTEST_KEEP_S, _LONGEST_KEEP_S)
    if seconds is None:
        raise InvalidRequestError(
            f"expires_after[seconds] must be a whole number from {_SHORTEST_KEEP_S} to {_LONGEST_KEEP_S}.",
            param="expires_after",
        )
    return "batch", seconds


def _whole(text: str, least: int, most: int) -> int | None:
    """The number that `text` writes out in digits; None for anything else, and for one out of range."""
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(most)):
        return None
    return number if least <= (number := int(text)) <= most else None


def page_of(request: Request, usual: int, most: int) -> tuple[int, str | None]:
    """`limit` and `after` of a list. Raises `InvalidRequestError`."""
    given = request.query_params.get("limit")
    limit = usual if given is None else _whole(given, 1, most)
    if limit is None:
        raise InvalidRequestError(f"limit must be a whole number from 1 to {most}.", param="limit")
    return limit, request.query_params.get("after")


def list_json(data: list[dict[str, Any]], more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": more,
    }


def _file_json(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }
