"""`GET /` and the files behind it, from a list that is read at the start: no path of a request reaches the disk.

Files lie under a name that changes with their content, so browsers keep them for good and never mix versions. The page
itself is asked for again each time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

router = APIRouter()

_FOLDER = Path(__file__).parent / "static"
_PAGE = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
# No inline script or style, nothing from other hosts, and no string becomes markup but through the sanitizer.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    etag: str


def _read_files() -> tuple[str, dict[str, _File]]:
    """The version of all files together, and the files by their path in the folder."""
    found = {
        path.relative_to(_FOLDER).as_posix(): path.read_bytes()
        for path in sorted(_FOLDER.rglob("*"))
        if path.suffix in _TYPES
    }
    digest = hashlib.sha256()
    for name, content in found.items():
        digest.update(f"{name} {len(content)} ".encode() + content)
    version = digest.hexdigest()[:16]
    found[_PAGE] = found[_PAGE].replace(b"VERSION", version.encode())
    return version, {
        name: _File(content, _TYPES[Path(name).suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
        for name, content in found.items()
    }


_VERSION, _FILES = _read_files()


@router.api_route("/", methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    headers = {"cache-control": "no-cache", "content-security-policy": _POLICY, "referrer-policy": "no-referrer"}
    return _answer(request, _FILES[_PAGE], headers)


@router.api_route("/console/{version}/{name:path}", methods=["GET", "HEAD"])
async def file(request: Request, version: str, name: str) -> Response:
    if version != _VERSION or name == _PAGE or name not in _FILES:
        raise HTTPException(404)
    return _answer(request, _FILES[name], {"cache-control": "private, max-age=31536000, immutable"})


def _answer(request: Request, file: _File, headers: dict[str, str]) -> Response:
    headers = {**headers, "etag": file.etag, "x-content-type-options": "nosniff"}
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    if file.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
