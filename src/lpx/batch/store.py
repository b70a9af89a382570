"""Files and batches of the HTTP API, kept in one folder over restarts: SQLite for what is known, files for the texts.

    DATA/lock  DATA/owners.key  DATA/batches.sqlite3  DATA/files/<file id>  DATA/work/<batch id>.jsonl

Everything has an owner, the key that made it, and every question names one. The folder and what is in it belong to this
user alone. A file's text is whole on the disk before its row is there, and its row is gone before its text is: what a
kill leaves between the two is swept away at the next start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from lpx.errors import ConfigError, InvalidRequestError, LpxError, QueueFullError
from lpx.private_folder import make_private_folder

logger = logging.getLogger("lpx.server")

Row = dict[str, Any]

UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")
_UPLOADS_AT_ONCE = 4  # of an owner
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
  id TEXT PRIMARY KEY, owner TEXT NOT NULL, purpose TEXT NOT NULL, filename TEXT NOT NULL,
  bytes INTEGER NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER);
CREATE INDEX IF NOT EXISTS files_of_owner ON files (owner, created_at);
CREATE TABLE IF NOT EXISTS batches (
  id TEXT PRIMARY KEY, owner TEXT NOT NULL, status TEXT NOT NULL, created_at INTEGER NOT NULL, record TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS batches_of_owner ON batches (owner, created_at);
CREATE INDEX IF NOT EXISTS batches_by_status ON batches (status, created_at);
"""
# Files that were deleted while the disk was full: their texts are gone, and their rows go when there is room.
_GONE_SCHEMA = """
PRAGMA temp_store=MEMORY;
CREATE TEMP TABLE gone (id TEXT PRIMARY KEY);
"""
_NOT_GONE = "id NOT IN (SELECT id FROM gone)"


class StoreFull(LpxError):
    """No room: for files of this owner, or on the disk."""

    help_code = "LPX-E012"
    http_status = 413
    error_type = "invalid_request_error"


class StoreUnwritable(LpxError):
    """The disk takes nothing more; what is kept is whole, and nothing has changed."""

    help_code = "LPX-E012"
    http_status = 507

    def __init__(self) -> None:
        super().__init__("There is no room on the server's disk, and nothing was changed: delete files first.")


class NotThere(LpxError):
    """No file or batch of that id belongs to the owner."""

    http_status = 404
    error_type = "invalid_request_error"


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Of each owner, and of each thing."""

    max_file_bytes: int = 200 * 1024 * 1024
    max_stored_bytes: int = 2 * 1024 * 1024 * 1024  # of an owner's files
    max_files: int = 1000  # of an owner
    max_unfinished: int = 100  # batches of an owner
    max_lines: int = 50_000  # of a batch
    keep_s: int = 30 * 24 * 3600  # files and finished batches


@dataclass(frozen=True, slots=True)
class StoredFile:
    id: str
    owner: str
    purpose: str  # "batch" or "batch_output"
    filename: str
    bytes: int
    created_at: int
    expires_at: int | None


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """OpenAI's batch object, flat; times in seconds since 1970."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: str
    created_at: int
    expires_at: int
    metadata: dict[str, str] | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: list[Row] = field(default_factory=list)  # {"code", "message", "param", "line"}
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchStore:
    """Owns the folder while it is open. Methods may be called from any thread."""

    def __init__(self, folder: Path, limits: StoreLimits | None = None) -> None:
        """Raises `ConfigError` when the folder is not private, cannot be used, or another process has it."""
        self.folder = folder
        self.limits = limits or StoreLimits()
        make_private_folder(folder, "data folder")
        self._files = folder / "files"
        self._work = folder / "work"
        self._mutex = threading.RLock()
        self._uploading: Counter[str] = Counter()  # files on their way, by owner
        self._lock = _lock(folder)
        try:
            for each in (self._files, self._work):
                make_private_folder(each, "data folder")
            self.owner_secret = _secret(folder / "owners.key")
            self._database = self._open_database(folder / "batches.sqlite3")
            self._sweep()
        except OSError as exc:
            os.close(self._lock)
            raise ConfigError(f"the data folder {folder} cannot be used: {exc.strerror}") from None
        except BaseException:
            os.close(self._lock)
            raise

    def _open_database(self, path: Path) -> sqlite3.Connection:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # its companions get its rights
            database = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=5.0)
            database.row_factory = sqlite3.Row
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")
            database.executescript(_SCHEMA + _GONE_SCHEMA)
        except (sqlite3.Error, OSError) as exc:
            raise ConfigError(f"the database {path} cannot be used: {exc}") from None
        return database

    def close(self) -> None:
        with self._mutex:
            self._database.close()
            os.close(self._lock)

    # --- files ---

    def check_room(self, owner: str) -> None:
        """Raises `StoreFull` when the owner may keep no more files."""
        count, stored = self._usage(owner)
        if count >= self.limits.max_files:
            raise StoreFull(f"{count} files are kept, as many as may be: delete some first")
        if stored >= self.limits.max_stored_bytes:
            raise StoreFull(f"{stored} bytes are kept, as many as may be: delete files first")

    @contextlib.contextmanager
    def upload_slot(self, owner: str) -> Iterator[None]:
        """Few files of one owner come at a time: until they are whole, nothing else counts them. Raises
        `QueueFullError`."""
        with self._mutex:
            if self._uploading[owner] >= _UPLOADS_AT_ONCE:
                raise QueueFullError(f"{_UPLOADS_AT_ONCE} files are being sent already: send one after the other")
            self._uploading[owner] += 1
        try:
            yield
        finally:
            with self._mutex:
                self._uploading[owner] -= 1
                if not self._uploading[owner]:
                    del self._uploading[owner]

    def new_file_path(self) -> tuple[str, Path]:
        """An id, and where its text may be written; `add_file` makes a file of it, a sweep forgets it."""
        name = f"file-{secrets.token_hex(16)}"
        return name, self._files / f"{name}.part"

    def result_path(self, batch: StoredBatch, kind: str) -> tuple[str, Path]:
        """As `new_file_path` for results of a batch, always the same: written again after a kill, they replace what
        was there."""
        name = "file-" + sha256(f"{batch.id} {kind}".encode()).hexdigest()[:32]
        part = self._files / f"{name}.part"
        part.unlink(missing_ok=True)
        return name, part

    def add_file(
        self, name: str, part: Path, *, owner: str, purpose: str, filename: str, keep_s: int | None = None
    ) -> StoredFile:
        """Take over a text that is whole and synced. Raises `StoreFull` and `StoreUnwritable`, and the text is gone."""
        size = part.stat().st_size
        now = int(time.time())
        kept = StoredFile(name, owner, purpose, filename, size, now, now + (keep_s or self.limits.keep_s))
        with self._mutex:
            if purpose == "batch":  # results have their place: what made them was let in before
                count, stored = self._usage(owner)
                if count >= self.limits.max_files or stored + size > self.limits.max_stored_bytes:
                    part.unlink()
                    raise StoreFull(
                        f"{count} files with {stored} bytes are kept, and at most {self.limits.max_files} with "
                        f"{self.limits.max_stored_bytes} may be: delete some first"
                    )
            part.replace(self._files / name)
            marks = ", ".join(f":{each.name}" for each in fields(StoredFile))
            try:
                self._write(f"INSERT OR REPLACE INTO files VALUES ({marks})", asdict(kept))
            except BaseException:  # a text that no row names would never be deleted
                (self._files / name).unlink(missing_ok=True)
                raise
        return kept

    def file(self, name: str, owner: str) -> StoredFile:
        """Raises `NotThere`."""
        with self._mutex:
            row = self._database.execute(
                f"SELECT * FROM files WHERE id = ? AND owner = ? AND (expires_at IS NULL OR expires_at > ?) "
                f"AND {_NOT_GONE}",
                (name, owner, int(time.time())),
            ).fetchone()
        if row is None:
            raise NotThere("there is no file of this id")
        return StoredFile(**dict(row))

    def path_of(self, file: StoredFile) -> Path:
        return self._files / file.id

    def files(
        self, owner: str, *, limit: int, after: str | None = None, purpose: str | None = None, newest_first: bool = True
    ) -> tuple[list[StoredFile], bool]:
        """A page, and whether there are more. Raises `NotThere` for an unknown `after`."""
        conditions, values = ["(expires_at IS NULL OR expires_at > ?)", _NOT_GONE], [int(time.time())]
        if purpose is not None:
            conditions, values = [*conditions, "purpose = ?"], [*values, purpose]  # type: ignore[list-item]
        rows, more = self._page("files", owner, limit, after, newest_first, conditions, values)
        return [StoredFile(**row) for row in rows], more

    def delete_file(self, name: str, owner: str) -> None:
        """Works on a full disk, too. Raises `NotThere`, and `InvalidRequestError` while a batch reads it."""
        with self._mutex:
            self.file(name, owner)
            for batch in self.unfinished():
                if batch.input_file_id == name:
                    raise InvalidRequestError(f"the batch {batch.id} reads this file: cancel it first", param="id")
            self._forget(name)

    def _forget(self, name: str) -> None:
        try:
            self._write("DELETE FROM files WHERE id = ?", (name,))
        except StoreUnwritable:  # its text makes room, though perhaps not enough to write that it is gone
            self._database.execute("INSERT OR IGNORE INTO gone VALUES (?)", (name,))
        (self._files / name).unlink(missing_ok=True)

    def _write(self, statement: str, values: Any = ()) -> None:
        """One change, of which all is on the disk or nothing. Raises `StoreUnwritable`."""
        try:
            self._database.execute(statement, values)
        except sqlite3.OperationalError as exc:
            logger.error("the database %s cannot be written: %s", self.folder, exc)
            raise StoreUnwritable from None

    # --- batches ---

    def add_batch(self, batch: StoredBatch) -> None:
        """Raises `StoreFull` when the owner has too many unfinished ones, `NotThere` when its input is gone, and
        `StoreUnwritable`."""
        with self._mutex:
            self.file(batch.input_file_id, batch.owner)
            marks = ", ".join("?" * len(UNFINISHED))
            (count,) = self._database.execute(
                f"SELECT COUNT(*) FROM batches WHERE owner = ? AND status IN ({marks})", (batch.owner, *UNFINISHED)
            ).fetchone()
            if count >= self.limits.max_unfinished:
                raise StoreFull(f"{count} batches wait or run, as many as may: wait for one, or cancel one")
            self._put(batch)

    def batch(self, name: str, owner: str) -> StoredBatch:
        """Raises `NotThere`."""
        with self._mutex:
            row = self._database.execute(
                "SELECT record FROM batches WHERE id = ? AND owner = ?", (name, owner)
            ).fetchone()
        if row is None:
            raise NotThere("there is no batch of this id")
        return _batch(row["record"])

    def batches(self, owner: str, *, limit: int, after: str | None = None) -> tuple[list[StoredBatch], bool]:
        """The newest first, and whether there are more. Raises `NotThere` for an unknown `after`."""
        rows, more = self._page("batches", owner, limit, after, True, [], [])
        return [_batch(row["record"]) for row in rows], more

    def unfinished(self) -> list[StoredBatch]:
        """Of all owners, the oldest first."""
        marks = ", ".join("?" * len(UNFINISHED))
        with self._mutex:
            rows = self._database.execute(
                f"SELECT record FROM batches WHERE status IN ({marks}) ORDER BY created_at, rowid", UNFINISHED
            ).fetchall()
        return [_batch(row["record"]) for row in rows]

    def change(self, name: str, owner: str, *, unless: tuple[str, ...] = (), **changes: Any) -> StoredBatch:
        """Write changed fields, but not if the batch is in one of the states `unless`; the batch as it is then.

        Raises `NotThere` and `StoreUnwritable`.
        """
        with self._mutex:
            batch = self.batch(name, owner)
            if batch.status in unless:
                return batch
            changed = replace(batch, **changes)
            self._put(changed)
            return changed

    def work_path(self, batch: StoredBatch) -> Path:
        """Where results lie while the batch runs."""
        return self._work / f"{batch.id}.jsonl"

    def _put(self, batch: StoredBatch) -> None:
        self._write(
            "INSERT OR REPLACE INTO batches (rowid, id, owner, status, created_at, record) VALUES "
            "((SELECT rowid FROM batches WHERE id = :id), :id, :owner, :status, :created_at, :record)",
            {
                "id": batch.id,
                "owner": batch.owner,
                "status": batch.status,
                "created_at": batch.created_at,
                "record": json.dumps(asdict(batch)),
            },
        )

    # --- upkeep ---

    def expire(self) -> None:
        """Forget what is past its time and nobody reads. Raises `StoreUnwritable`."""
        now = int(time.time())
        with self._mutex:
            for row in self._database.execute("SELECT id FROM gone").fetchall():
                self._write("DELETE FROM files WHERE id = ?", (row["id"],))
                self._database.execute("DELETE FROM gone WHERE id = ?", (row["id"],))
            in_use = {batch.input_file_id for batch in self.unfinished()}
            for row in self._database.execute("SELECT id FROM files WHERE expires_at <= ?", (now,)).fetchall():
                if row["id"] not in in_use:
                    self._forget(row["id"])
            marks = ", ".join("?" * len(UNFINISHED))
            self._write(
                f"DELETE FROM batches WHERE created_at <= ? AND status NOT IN ({marks})",
                (now - self.limits.keep_s, *UNFINISHED),
            )

    def _sweep(self) -> None:
        """After a kill: texts without a row, rows without a text, results of batches that have ended."""
        with contextlib.suppress(StoreUnwritable):  # a full disk keeps nobody from reading and deleting
            self.expire()
        known = {row["id"] for row in self._database.execute("SELECT id FROM files").fetchall()}
        present = set()
        for path in self._files.iterdir():
            if path.name in known:
                present.add(path.name)
            else:
                path.unlink()
        for name in known - present:
            self._forget(name)
        working = {self.work_path(batch).name for batch in self.unfinished()}
        for path in self._work.iterdir():
            if path.name not in working:
                path.unlink()

    def _usage(self, owner: str) -> tuple[int, int]:
        with self._mutex:
            count, stored = self._database.execute(
                f"SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM files WHERE owner = ? AND {_NOT_GONE}", (owner,)
            ).fetchone()
        return count, stored

    def _page(
        self,
        table: str,
        owner: str,
        limit: int,
        after: str | None,
        newest_first: bool,
        conditions: list[str],
        values: list[Any],
    ) -> tuple[list[Row], bool]:
        sign, order = ("<", "DESC") if newest_first else (">", "ASC")
        conditions, values = ["owner = ?", *conditions], [owner, *values]
        with self._mutex:
            if after is not None:
                row = self._database.execute(
                    f"SELECT rowid FROM {table} WHERE id = ? AND owner = ?", (after, owner)
                ).fetchone()
                if row is None:
                    raise NotThere("after names nothing that is here")
                conditions, values = [*conditions, f"rowid {sign} ?"], [*values, row["rowid"]]
            found = self._database.execute(
                f"SELECT * FROM {table} WHERE {' AND '.join(conditions)} ORDER BY rowid {order} LIMIT ?",
                (*values, limit + 1),
            ).fetchall()
        return [dict(row) for row in found[:limit]], len(found) > limit


@contextlib.contextmanager
def private_file(path: Path) -> Iterator[int]:
    """A new file that nobody else may read, as a descriptor; it goes away again if writing it fails."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield file
        os.fsync(file)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(file)


def _batch(record: str) -> StoredBatch:
    return StoredBatch(**json.loads(record))


def _lock(folder: Path) -> int:
    try:
        file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise ConfigError(f"the data folder {folder} cannot be used: {exc.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise ConfigError(f"another server uses the data folder {folder}: stop it, or give this one its own") from None
    return file


def _secret(path: Path) -> bytes:
    """What owners are derived with: the folder alone says nothing about anybody's key."""
    try:
        secret = path.read_bytes()
    except FileNotFoundError:
        secret = b""
    if len(secret) != 32:
        secret = secrets.token_bytes(32)
        beside = path.with_suffix(".new")
        beside.unlink(missing_ok=True)
        with private_file(beside) as file:
            os.write(file, secret)
        beside.replace(path)
    return secret
