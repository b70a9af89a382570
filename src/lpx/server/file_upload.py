"""A file that comes as `multipart/form-data`, written to the disk as it comes: memory holds one piece of it.

Fields beside the file are few and short. Whatever ends the request early leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from starlette.requests import ClientDisconnect, Request

from lpx.batch.store import private_file
from lpx.server.errors import HttpError
from lpx.server.settings import ServerSettings

_MAX_FIELDS = 16
_MAX_FIELD_BYTES = 1024
_MAX_HEADER_BYTES = 4096  # of one part
_MAX_PARTS_BYTES = 64 * 1024  # what a body may have beside the file


@dataclass(slots=True)
class Upload:
    """What came."""

    fields: dict[str, str]
    filename: str
    size: int  # of the file, which lies where it was to be written


async def receive_upload(request: Request, settings: ServerSettings, path: Path, max_bytes: int) -> Upload:
    """Write the part called `file` to `path`. Raises `HttpError`: 415, 413, 408, 400; and `OSError`."""
    kind, _, _ = request.headers.get("content-type", "").partition(";")
    if kind.strip().lower() != "multipart/form-data":
        raise HttpError(415, "A file comes as multipart/form-data, with the fields purpose and file.")
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:16]) > max_bytes + _MAX_PARTS_BYTES:
        raise _too_large(max_bytes)
    with private_file(path) as file:
        parts = _Parts(file, max_bytes, request.headers.get("content-type", ""))
        await _feed(request, settings, parts)
        return parts.finish()


async def _feed(request: Request, settings: ServerSettings, parts: _Parts) -> None:
    begin, size = monotonic(), 0
    while True:
        # As for other bodies: each piece has its time, and all together have a pace.
        left = settings.body_timeout_s + min(0.0, begin + size / settings.min_body_rate - monotonic())
        try:
            message = await asyncio.wait_for(request.receive(), max(left, 0.0))
        except asyncio.TimeoutError:
            raise HttpError(408, "The file came too slowly.", headers={"connection": "close"}) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        size += len(piece)
        if piece:
            await asyncio.to_thread(parts.feed, piece)
        # Whatever is not the file: fields, heads of parts, and what stands before, between and behind the parts.
        if size - parts.size > _MAX_PARTS_BYTES:
            raise HttpError(413, "The form has too much beside the file.", code="request_too_large")
        if not message.get("more_body", False):
            return


@dataclass(slots=True)
class _Part:
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    name: str = ""
    filename: str | None = None
    data: bytearray = field(default_factory=bytearray)  # of a field


class _Parts:
    """Takes the body apart as it comes."""

    def __init__(self, file: int, max_bytes: int, content_type: str) -> None:
        from python_multipart.multipart import MultipartParser, parse_options_header

        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if not re.fullmatch(rb"[\x20-\x7e]{1,70}", boundary):
            raise HttpError(400, "The multipart body has no sound boundary in its Content-Type.")
        self._parse_options = parse_options_header
        self._file = file
        self._max_bytes = max_bytes
        self.size = 0  # of the file so far
        self._fields: dict[str, str] = {}
        self._filename: str | None = None
        self._part = _Part()
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._ended = False
        callbacks: Any = {
            "on_part_begin": self._begin_part,
            "on_header_field": self._take_header_name,
            "on_header_value": self._take_header_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._take_data,
            "on_part_end": self._end_part,
            "on_end": self._end,
        }
        self._parser = MultipartParser(boundary, callbacks)

    def feed(self, piece: bytes) -> None:
        from python_multipart.exceptions import MultipartParseError

        try:
            self._parser.write(piece)
        except MultipartParseError:
            raise HttpError(400, "The body is no sound multipart/form-data.") from None

    def finish(self) -> Upload:
        if not self._ended:
            raise HttpError(400, "The multipart body ends too early.")
        if self._filename is None:
            raise HttpError(400, "file: this field is required, as a file.", param="file")
        return Upload(self._fields, self._filename, self.size)

    def _begin_part(self) -> None:
        self._part = _Part()

    def _take_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _take_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        self._part.headers.append((bytes(self._header_name).lower(), bytes(self._header_value)))
        self._header_name.clear()
        self._header_value.clear()
        if sum(len(name) + len(value) for name, value in self._part.headers) > _MAX_HEADER_BYTES:
            raise HttpError(400, "A part of the multipart body has headers that are too long.")

    def _end_headers(self) -> None:
        part = self._part
        disposition = next((value for name, value in part.headers if name == b"content-disposition"), b"")
        _, options = self._parse_options(disposition)
        part.name = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" in options:
            part.filename = options[b"filename"].decode("utf-8", "replace")
            if part.name != "file" or self._filename is not None:
                raise HttpError(400, "One file is taken, in the field file.", param="file")
            self._filename = _safe_name(part.filename)

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        if self._part.filename is None:
            self._part.data += data[start:end]
            if len(self._part.data) > _MAX_FIELD_BYTES:
                raise HttpError(400, f"A field of the form is longer than {_MAX_FIELD_BYTES} bytes.")
            return
        self.size += end - start
        if self.size > self._max_bytes:
            raise _too_large(self._max_bytes)
        view = memoryview(data)[start:end]
        while view:
            view = view[os.write(self._file, view) :]

    def _end_part(self) -> None:
        part = self._part
        if part.filename is None:
            if len(self._fields) >= _MAX_FIELDS or part.name in self._fields:
                raise HttpError(400, "The form has too many fields, or one twice.")
            self._fields[part.name] = part.data.decode("utf-8", "replace")

    def _end(self) -> None:
        self._ended = True


def _safe_name(name: str) -> str:
    """To show, never to open: the last part, without what no name should have."""
    last = re.split(r"[/\\]", name)[-1]
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]", "_", last)[:255] or "upload.jsonl"


def _too_large(limit: int) -> HttpError:
    return HttpError(413, f"The file is larger than the limit of {limit} bytes.", code="request_too_large")
