"""One file from the web to the disk: resumed where an earlier try ended, checked, and whole or not there.

While it is on its way it is called `FILE.part`, with what is known of it in `FILE.part.json`. A resumed download asks
with `If-Range`, so that a file that has changed meanwhile begins anew; what has no ETag is only gone on with when a
hash will tell whether the parts fit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from lpx.errors import DownloadError
from lpx.store.atomic import write_text
from lpx.store.http import TryAgain, Web
from lpx.store.manifest import FileRecord
from lpx.store.space import check_space

if TYPE_CHECKING:
    import httpx

_CHUNK = 1 << 18
_LOOK_EVERY = 64 << 20  # bytes between looks at the room that is left
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file to fetch, and what is known of it."""

    path: str  # in the version's folder
    url: str
    bytes: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None  # of git's blob, which hubs name for small files
    headers: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class _Part:
    """What is on the disk of a file, and from which state of the source it comes."""

    path: Path
    etag: str | None = None

    @classmethod
    def at(cls, target: Path, remote: RemoteFile) -> _Part:
        part = cls(target.with_name(target.name + ".part"))
        try:
            known = json.loads(part._notes.read_text("utf-8"))
            if known["of"] == (remote.sha256 or remote.url):
                part.etag = known["etag"] if isinstance(known["etag"], str) else None
                return part
        except (OSError, ValueError, KeyError, TypeError):
            pass
        part.discard()
        return part

    @property
    def _notes(self) -> Path:
        return self.path.with_name(self.path.name + ".json")

    @property
    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def begin(self, remote: RemoteFile, etag: str | None) -> None:
        """From the first byte, of a source in this state."""
        self.discard()
        self.etag = etag
        write_text(self._notes, json.dumps({"of": remote.sha256 or remote.url, "etag": etag}))

    def discard(self) -> None:
        for path in (self.path, self._notes):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def finish(self, target: Path) -> None:
        self.path.replace(target)
        with contextlib.suppress(FileNotFoundError):
            self._notes.unlink()


def download(web: Web, remote: RemoteFile, folder: Path, report: Callable[[int], None]) -> FileRecord:
    """Fetch `remote` into `folder` and return what it is; `report` is told the bytes that are there.

    A file that is there already is checked instead. Raises DownloadError, and OSError for what the disk refuses; what
    was fetched is then kept for the next try, unless its hash is wrong.
    """
    target = folder / remote.path
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file():
        record = _record(remote, target)
        if _mismatch(remote, target, record) is None:
            report(record.bytes)
            return record
        target.unlink()
    part = _Part.at(target, remote)
    resumed = part.size > 0
    while True:
        size = part.size

        def came_further() -> bool:
            nonlocal size
            before, size = size, part.size
            return size > before

        web.persist(lambda: _fetch(web, remote, part, report), came_further)
        record = _record(remote, part.path)
        problem = _mismatch(remote, part.path, record)
        if problem is None:
            part.finish(target)
            return record
        part.discard()
        if not resumed:
            raise DownloadError(
                f"{remote.path} is not the file it should be: {problem}. Nothing was stored; the source is spoilt or "
                "has been changed"
            )
        resumed = False  # the parts did not fit together: once more, from the beginning


def _fetch(web: Web, remote: RemoteFile, part: _Part, report: Callable[[int], None]) -> None:
    """Fetch what is missing. Raises TryAgain when the connection ends before the file does."""
    start = part.size
    known = remote.sha256 is not None or remote.git_sha1 is not None
    if start and not part.etag and not known:
        start = 0
    if remote.bytes is not None and start == remote.bytes:
        if start == 0:
            part.begin(remote, None)
            part.path.touch()
        report(start)
        return
    headers = dict(remote.headers)
    if start:
        headers["range"] = f"bytes={start}-"
        if part.etag:
            headers["if-range"] = part.etag
    with web.get(remote.url, headers, remote.path) as response:
        if response.status_code == 416:
            part.discard()
            raise TryAgain(f"{response.url.host} has less of {remote.path} than was fetched before", 0.0)
        total = _check_length(remote, response, start)
        if response.status_code == 200:
            start = 0
        if start == 0:
            part.begin(remote, _strong_etag(response))
        if total is not None:
            check_space(part.path.parent, total - start, remote.path)
        with part.path.open("ab" if start else "wb") as out:
            done = _copy(response, out, start, total, remote, report)
            out.flush()
            os.fsync(out.fileno())
    if total is not None and done < total:
        raise TryAgain(f"{remote.path} ended after {done} of {total} bytes")


def _copy(
    response: httpx.Response,
    out: BinaryIO,
    done: int,
    total: int | None,
    remote: RemoteFile,
    report: Callable[[int], None],
) -> int:
    looked = done
    report(done)
    for chunk in response.iter_raw():  # as it comes: nothing is held back that a cut would lose
        done += len(chunk)
        if total is not None and done > total:
            raise DownloadError(f"{response.url.host} sends more of {remote.path} than the {total} bytes it has")
        out.write(chunk)
        report(done)
        if done - looked >= _LOOK_EVERY:
            looked = done
            out.flush()
            check_space(Path(out.name).parent, 0 if total is None else total - done, remote.path)
    return done


def _check_length(remote: RemoteFile, response: httpx.Response, start: int) -> int | None:
    """Bytes that the whole file has, by all accounts. Raises DownloadError when these differ."""
    host, total = response.url.host, remote.bytes
    given: int | None = None
    if response.status_code == 206:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        if match is None or int(match[1]) != start:
            raise DownloadError(f"{host} sends another part of {remote.path} than was asked for")
        given = None if match[3] == "*" else int(match[3])
    else:
        length = response.headers.get("content-length", "")
        given = int(length) if length.isdigit() and len(length) < 19 else None
    if total is not None and given is not None and given != total:
        raise DownloadError(f"{host} has {given} bytes of {remote.path}, and it should be {total}")
    return given if total is None else total


def _strong_etag(response: httpx.Response) -> str | None:
    etag = response.headers.get("etag", "")
    return etag if etag.startswith('"') and len(etag) <= 512 else None


def _record(remote: RemoteFile, path: Path) -> FileRecord:
    from lpx.store.manifest import hash_file

    return FileRecord(remote.path, path.stat().st_size, hash_file(path))


def _mismatch(remote: RemoteFile, path: Path, record: FileRecord) -> str | None:
    if remote.bytes is not None and record.bytes != remote.bytes:
        return f"it has {record.bytes} bytes, expected {remote.bytes}"
    if remote.sha256 is not None and record.sha256 != remote.sha256:
        return f"{record.bytes} bytes with sha256 {record.sha256}, expected {remote.sha256}"
    if remote.git_sha1 is not None and remote.sha256 is None and _git_sha1(path, record.bytes) != remote.git_sha1:
        return f"{record.bytes} bytes, which are not git's object {remote.git_sha1}"
    return None


def _git_sha1(path: Path, size: int) -> str:
    digest = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
