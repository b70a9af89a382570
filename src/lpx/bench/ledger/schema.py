"""What the file of a ledger holds, and how an older one becomes a present one.

`PRAGMA user_version` is the number of migrations that were applied; a new version appends to `MIGRATIONS` and changes
nothing above. `application_id` marks the file as a ledger, so that another database is not taken for one.
"""

from __future__ import annotations

import sqlite3

from lpx.bench.ledger.errors import LedgerError

APPLICATION_ID = 0x4C505831  # "LPX1"

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE environments (
            id INTEGER PRIMARY KEY,
            sha256 TEXT NOT NULL UNIQUE,
            content TEXT NOT NULL -- JSON
        )""",
        """CREATE TABLE runs (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            kind TEXT NOT NULL,
            started TEXT NOT NULL, -- UTC, such as 2026-01-31T09:05:00.000000Z: sorts by time
            seconds REAL NOT NULL,
            model TEXT NOT NULL,
            model_sha256 TEXT,
            engine TEXT NOT NULL,
            engine_version TEXT,
            quantization TEXT,
            kv_cache_dtype TEXT,
            device TEXT,
            isa TEXT,
            threads INTEGER,
            url TEXT,
            batch_size INTEGER,
            input_len REAL, -- tokens
            output_len REAL,
            settings TEXT NOT NULL, -- JSON
            environment_id INTEGER NOT NULL REFERENCES environments (id),
            note TEXT NOT NULL DEFAULT ''
        )""",
        """CREATE TABLE figures (
            run_id INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            name TEXT NOT NULL,
            value REAL, -- NULL: not a number
            PRIMARY KEY (run_id, name)
        )""",  # rowids keep the order in which figures were given
        """CREATE TABLE samples (
            run_id INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            name TEXT NOT NULL,
            series TEXT NOT NULL, -- JSON array of numbers
            PRIMARY KEY (run_id, name)
        )""",
        """CREATE TABLE errors (
            run_id INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            kind TEXT NOT NULL,
            count INTEGER NOT NULL,
            PRIMARY KEY (run_id, kind)
        )""",
        """CREATE TABLE tags (
            run_id INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            tag TEXT NOT NULL,
            PRIMARY KEY (run_id, tag)
        ) WITHOUT ROWID""",
        """CREATE TABLE baselines (
            name TEXT PRIMARY KEY,
            run_id INTEGER NOT NULL REFERENCES runs (id)
        ) WITHOUT ROWID""",
        """CREATE TABLE model_hashes (
            path_digest BLOB PRIMARY KEY, -- of the absolute path: the ledger names no folders
            size INTEGER NOT NULL,
            mtime_ns INTEGER NOT NULL,
            inode INTEGER NOT NULL,
            sha256 TEXT NOT NULL
        ) WITHOUT ROWID""",
        "CREATE INDEX runs_by_environment ON runs (environment_id)",
        "CREATE INDEX runs_by_start ON runs (started)",
        "CREATE INDEX runs_by_tag ON tags (tag)",
        "CREATE INDEX baselines_by_run ON baselines (run_id)",
    ),
)
VERSION = len(MIGRATIONS)
_TABLES = ("environments", "runs", "figures", "samples", "errors", "tags", "baselines", "model_hashes")


def check(db: sqlite3.Connection, path: object) -> int:
    """The version of the file, 0 for an empty one. Raises LedgerError for a newer one and for other databases."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    marked = int(db.execute("PRAGMA application_id").fetchone()[0])
    if marked != APPLICATION_ID:
        if version or marked or db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise LedgerError(
                f"{path} is another program's database, not a ledger of LPX; name another file with --ledger or "
                "LPX_LEDGER"
            )
        return 0
    if version > VERSION:
        raise LedgerError(
            f"the ledger {path} has format {version}, and this LPX knows formats up to {VERSION}: it was written by a "
            "newer LPX. Upgrade, or name another file with --ledger or LPX_LEDGER"
        )
    if version == VERSION:
        _check_tables(db, path)
    return version


def _check_tables(db: sqlite3.Connection, path: object) -> None:
    """A view in place of a table can compute anything, without end, too."""
    found = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
    for table in _TABLES:
        if not str(found.get(table)).upper().startswith("CREATE TABLE"):
            raise LedgerError(
                f"the ledger {path} is broken: it has no table {table}; keep it aside and start a new one, or restore "
                "a copy"
            )


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Bring a file of `version` to the present one; the caller holds a transaction that is open for writing."""
    if version == VERSION:
        return
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION}")
