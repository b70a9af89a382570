"""The ledger: runs are recorded, found, tagged, named as baselines and removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from lpx.bench.ledger import model_hashes, rows
from lpx.bench.ledger.connection import reading, writing
from lpx.bench.ledger.errors import LedgerError, UnknownRunError
from lpx.bench.ledger.location import default_ledger_path
from lpx.bench.ledger.names import checked_baseline, checked_name
from lpx.bench.ledger.run import Run, RunFilter
from lpx.bench.measurement import Measurement
from lpx.doctor.environment import Environment, read_environment

_BUSY_SECONDS = 30.0


class Ledger:
    """All recorded runs, in one file.

    Every call opens the file, does one transaction and closes it, so a `Ledger` can be used from any thread and
    process, and a process that is killed leaves either the whole run or nothing of it. Whatever keeps the file from
    being read or written raises `LedgerError`.
    """

    def __init__(self, path: str | Path | None = None, *, busy_seconds: float = _BUSY_SECONDS) -> None:
        """`path` defaults to `default_ledger_path()`; `busy_seconds` is how long to wait for other processes."""
        self.path = default_ledger_path() if path is None else Path(path).expanduser().absolute()
        self._busy_seconds = busy_seconds

    def record(
        self,
        measurement: Measurement,
        *,
        environment: Environment | None = None,
        tags: Iterable[str] = (),
        note: str = "",
    ) -> int:
        """Keep a measurement and return the id of its run; `environment` defaults to that of this process.

        Returns when the run is on the disk. Raises LedgerError for values that cannot be kept, too, such as settings
        that are no JSON.
        """
        environment = environment or read_environment()
        checked = [checked_name("tag", tag) for tag in tags]
        try:
            with writing(self.path, self._busy_seconds) as db:
                run_id = rows.insert_run(db, measurement, rows.insert_environment(db, environment), note)
                db.executemany("INSERT OR IGNORE INTO tags VALUES (?, ?)", [(run_id, tag) for tag in checked])
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise LedgerError(f"a value of this {measurement.kind} cannot be kept: {error}") from error
        return run_id

    def find(self, where: RunFilter | None = None, *, with_samples: bool = False) -> list[Run]:
        """The runs that are wanted (default: all), by their start; without samples unless they are asked for."""
        with reading(self.path, self._busy_seconds) as db:
            if db is None:
                return []
            return rows.select_runs(db, rows.select_ids(db, where or RunFilter()), with_samples)

    def get(self, run_id: int) -> Run:
        """One run with everything. Raises UnknownRunError."""
        self._check_id(run_id)
        with reading(self.path, self._busy_seconds) as db:
            found = [] if db is None else rows.select_runs(db, [run_id], True)
        if not found:
            raise self._unknown(run_id)
        return found[0]

    def newest(self) -> Run:
        """The run that was recorded last. Raises UnknownRunError when there is none."""
        with reading(self.path, self._busy_seconds) as db:
            row = None if db is None else db.execute("SELECT max(id) FROM runs").fetchone()
            found = rows.select_runs(db, [row[0]], True) if db is not None and row and row[0] else []
        if not found:
            raise UnknownRunError(f"the ledger {self.path} holds no run yet; `lpx bench latency` makes one")
        return found[0]

    def named(self, text: str) -> Run:
        """The run that a user means: its number, the name of a baseline, or "last". Raises UnknownRunError."""
        text = text.strip()
        if text == "last":
            return self.newest()
        if text.isascii() and text.isdigit() and len(text) < 20:
            return self.get(int(text))
        return self.get(self.baseline(text))

    def require(self, run_ids: Iterable[int]) -> None:
        """Raises UnknownRunError for the first that is not there; runs that cannot be read are there."""
        with reading(self.path, self._busy_seconds) as db:
            for run_id in run_ids:
                self._check_id(run_id)
                if db is None or db.execute("SELECT 1 FROM runs WHERE id = ?", (run_id,)).fetchone() is None:
                    raise self._unknown(run_id)

    def remove(self, run_ids: Iterable[int]) -> None:
        """Remove these runs; when one is unknown or a baseline, none. Raises UnknownRunError and LedgerError."""
        with writing(self.path, self._busy_seconds) as db:
            for run_id in dict.fromkeys(run_ids):
                self._check_id(run_id)
                held = db.execute("SELECT name FROM baselines WHERE run_id = ?", (run_id,)).fetchone()
                if held:
                    raise LedgerError(f"run {run_id} is the baseline {held[0]!r}; remove the baseline first")
                if db.execute("DELETE FROM runs WHERE id = ?", (run_id,)).rowcount == 0:
                    raise self._unknown(run_id)
            db.execute("DELETE FROM environments WHERE id NOT IN (SELECT environment_id FROM runs)")

    def annotate(
        self, run_id: int, *, note: str | None = None, add: Iterable[str] = (), drop: Iterable[str] = ()
    ) -> None:
        """Set the note of a run, unless it is None, and add and drop tags. Raises UnknownRunError."""
        self._check_id(run_id)
        added = [checked_name("tag", tag) for tag in add]
        note = rows.storable(note)
        with writing(self.path, self._busy_seconds) as db:
            if db.execute("UPDATE runs SET note = coalesce(?, note) WHERE id = ?", (note, run_id)).rowcount == 0:
                raise self._unknown(run_id)
            db.executemany("INSERT OR IGNORE INTO tags VALUES (?, ?)", [(run_id, tag) for tag in added])
            db.executemany("DELETE FROM tags WHERE run_id = ? AND tag = ?", [(run_id, tag) for tag in drop])

    def set_baseline(self, name: str, run_id: int) -> None:
        """Let `name` mean that run from now on. Raises UnknownRunError, and ConfigError for names that cannot be."""
        self._check_id(run_id)
        name = checked_baseline(name)
        with writing(self.path, self._busy_seconds) as db:
            if db.execute("SELECT 1 FROM runs WHERE id = ?", (run_id,)).fetchone() is None:
                raise self._unknown(run_id)
            db.execute("INSERT OR REPLACE INTO baselines VALUES (?, ?)", (name, run_id))

    def baseline(self, name: str) -> int:
        """The id of the run that `name` means. Raises UnknownRunError, which lists the names there are."""
        known = self.baselines()
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there is none yet"
            raise UnknownRunError(
                f"the ledger {self.path} has no baseline {name!r}, {there}; `lpx bench baseline set` makes one"
            )
        return known[name]

    def baselines(self) -> dict[str, int]:
        """The run of every baseline, by name."""
        with reading(self.path, self._busy_seconds) as db:
            if db is None:
                return {}
            return rows.select_baselines(db)

    def remove_baseline(self, name: str) -> None:
        """Forget the name; its run stays. Raises UnknownRunError."""
        self.baseline(name)
        with writing(self.path, self._busy_seconds) as db:
            db.execute("DELETE FROM baselines WHERE name = ?", (name,))

    def model_sha256(self, model: Path, progress: Callable[[int, int], None] | None = None) -> str:
        """The hash of a model, computed only when its files changed since the ledger last saw them.

        Of a GGUF file it is the file's; of a folder or a split model that of the names and hashes of its files.
        `progress` is told bytes done and in all. Raises OSError when a file cannot be read, and ModelNotFoundError.
        """
        states = model_hashes.file_states(model)
        with reading(self.path, self._busy_seconds) as db:
            known = {} if db is None else model_hashes.known_hashes(db, states.values())
        digest, computed = model_hashes.hash_model(model, states, known, progress)
        if computed:
            with writing(self.path, self._busy_seconds) as db:
                model_hashes.remember(db, computed)
        return digest

    def _check_id(self, run_id: int) -> None:
        if not 0 < run_id < 2**63:  # SQLite's integers
            raise self._unknown(run_id)

    def _unknown(self, run_id: int) -> UnknownRunError:
        return UnknownRunError(f"the ledger {self.path} holds no run {run_id}; `lpx bench history` lists them")
