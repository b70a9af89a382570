"""Connections to the file: opened for one piece of work, checked, and with failures that say what to do.

The file keeps SQLite's rollback journal. Runs are rare and small, so nothing is gained by a write-ahead log, which
would put two more files beside it, need a writable folder to be read, and not work on network folders.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from lpx.bench.ledger import schema
from lpx.bench.ledger.errors import LedgerError

_ELSEWHERE = "name another file with --ledger or LPX_LEDGER, or leave it out with --no-ledger"


@contextmanager
def reading(path: Path, busy_seconds: float) -> Iterator[sqlite3.Connection | None]:
    """A connection that sees one state of the file; None when there is no file, or an empty one."""
    with _told(path):
        if not path.exists():
            yield None
            return
        # "rw" falls back to reading where writing is not allowed; it is needed to undo what a killed process began.
        with closing(_connect(path, "rw", busy_seconds)) as db:
            db.execute("BEGIN")
            version = schema.check(db, path)
            if 0 < version < schema.VERSION:
                db.execute("COMMIT")
                db.execute("BEGIN IMMEDIATE")
                schema.migrate(db, schema.check(db, path))
            yield db if version else None
            db.execute("COMMIT")


@contextmanager
def writing(path: Path, busy_seconds: float) -> Iterator[sqlite3.Connection]:
    """A connection in a transaction of its own, which is kept when the block ends, and undone when it raises.

    A file or folder that is not there is made.
    """
    with _told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(_connect(path, "rwc", busy_seconds)) as db:
            db.execute("BEGIN IMMEDIATE")
            schema.migrate(db, schema.check(db, path))
            yield db
            db.execute("COMMIT")


def _connect(path: Path, mode: str, busy_seconds: float) -> sqlite3.Connection:
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=busy_seconds, isolation_level=None
    )
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA synchronous = EXTRA")  # a run that is reported as kept outlives a loss of power, too
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What SQLite and the file system say, as a `LedgerError`."""
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(_explain(path, error)) from error
    except OSError as error:
        what = error.strerror or str(error)
        raise LedgerError(f"the ledger {path} cannot be used: {what}; {_ELSEWHERE}") from error


def _explain(path: Path, error: sqlite3.Error) -> str:
    text = str(error)
    if isinstance(error, sqlite3.OperationalError):
        if "readonly" in text:
            return f"the ledger {path} cannot be written: the file or its folder is read-only; {_ELSEWHERE}"
        if "full" in text:
            return f"the ledger {path} cannot be written: the disk is full; make room, or {_ELSEWHERE}"
        if "locked" in text or "busy" in text:
            return f"the ledger {path} is kept busy by another process; try again when that has ended"
        if "unable to open" in text:
            return f"the ledger {path} cannot be opened: {_why_not_open(path)}; {_ELSEWHERE}"
    elif isinstance(error, sqlite3.DatabaseError) and ("not a database" in text or "malformed" in text):
        return (
            f"the ledger {path} is broken ({text}); keep it aside (`sqlite3 FILE .recover` may save runs) and start a "
            "new one, or restore a copy"
        )
    return f"the ledger {path} cannot be used: {text}; {_ELSEWHERE}"


def _why_not_open(path: Path) -> str:
    if path.is_dir():
        return os.strerror(errno.EISDIR)
    effective = os.access in os.supports_effective_ids
    if not os.access(path if path.exists() else path.parent, os.R_OK | os.W_OK, effective_ids=effective):
        return os.strerror(errno.EACCES)
    return "the file system does not let it be made or locked"
