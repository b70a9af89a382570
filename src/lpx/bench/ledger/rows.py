"""Measurements as rows of the tables in `schema`; `row_reader` is the way back."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from lpx.bench.ledger.errors import LedgerError
from lpx.bench.ledger.row_reader import MOST_LEVELS, SUBJECT, TIME, UnreadableRowError, levels_of, row_to_run
from lpx.bench.ledger.run import Run, RunFilter
from lpx.bench.measurement import Measurement
from lpx.doctor.environment import Environment

_PLAIN = ("kind", "seconds", "batch_size", "input_len", "output_len")
_MOST_VARIABLES = 500  # in one statement; SQLite's own limit was 999 for long


def time_text(moment: datetime) -> str:
    """UTC in a form that sorts by time; without a time zone, `moment` is taken as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.astimezone(timezone.utc).strftime(TIME)


def insert_environment(db: sqlite3.Connection, environment: Environment) -> int:
    """The id of its row, which is made when nothing equal is there."""
    digest = environment.sha256
    db.execute(
        "INSERT INTO environments (sha256, content) VALUES (?, ?) ON CONFLICT (sha256) DO NOTHING",
        (digest, _json(environment.to_json())),
    )
    return int(db.execute("SELECT id FROM environments WHERE sha256 = ?", (digest,)).fetchone()[0])


def insert_run(db: sqlite3.Connection, measurement: Measurement, environment_id: int, note: str) -> int:
    """All rows of a run but its tags; the run's id."""
    values: dict[str, Any] = {name: getattr(measurement.subject, name) for name in SUBJECT}
    values |= {name: getattr(measurement, name) for name in _PLAIN}
    values["started"] = time_text(measurement.started)
    values["note"] = note
    values = {name: storable(value) for name, value in values.items()}
    values["settings"] = _json(dict(measurement.settings))
    values["environment_id"] = environment_id
    run_id = db.execute(
        f"INSERT INTO runs ({', '.join(values)}) VALUES ({', '.join(f':{name}' for name in values)})", values
    ).lastrowid
    assert run_id is not None
    db.executemany(
        "INSERT INTO figures VALUES (?, ?, ?)",
        # SQLite keeps what is not a number as NULL.
        [(run_id, storable(name), float(value)) for name, value in measurement.figures.items()],
    )
    db.executemany(
        "INSERT INTO samples VALUES (?, ?, ?)",
        [(run_id, storable(name), _series(values)) for name, values in measurement.samples.items()],
    )
    db.executemany(
        "INSERT INTO errors VALUES (?, ?, ?)",
        [(run_id, storable(kind), int(count)) for kind, count in measurement.errors.items()],
    )
    return run_id


def storable(value: Any) -> Any:
    """Text that UTF-8 can hold: names of files may have bytes that are none."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _json(values: Any) -> str:
    """Readable where that can be stored, else with escapes."""
    if levels_of(values) > MOST_LEVELS:
        raise ValueError(f"settings are nested more than {MOST_LEVELS} levels deep")
    text = json.dumps(values, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(values)
    return text


def _series(values: Iterable[float]) -> str:
    return json.dumps([None if math.isnan(value) else float(value) for value in values])


def select_ids(db: sqlite3.Connection, where: RunFilter) -> list[int]:
    """Ids of the runs that are wanted, by their start."""
    conditions: list[tuple[str, Any]] = [
        ("instr(lower(model), lower(?)) > 0", where.model),
        ("kind = ?", where.kind),
        ("engine = ?", where.engine),
        ("instr(lower(device), lower(?)) > 0", where.device),
        ("instr(lower(quantization), lower(?)) > 0", where.quantization),
        ("batch_size = ?", where.batch_size),
        ("started >= ?", time_text(where.since) if where.since else None),
        ("started < ?", time_text(where.until) if where.until else None),
        ("id IN (SELECT run_id FROM tags WHERE tag = ?)", where.tag),
        ("environment_id IN (SELECT id FROM environments WHERE sha256 = ?)", where.environment_sha256),
    ]
    used = [(condition, storable(value)) for condition, value in conditions if value is not None]
    clause = f"WHERE {' AND '.join(condition for condition, _ in used)}" if used else ""
    limit = -1 if where.last is None else max(0, where.last)
    newest_first = db.execute(
        f"SELECT id FROM runs {clause} ORDER BY started DESC, id DESC LIMIT ?", [*(value for _, value in used), limit]
    )
    return [int(row[0]) for row in newest_first][::-1]


def select_runs(db: sqlite3.Connection, ids: list[int], with_samples: bool) -> list[Run]:
    """The runs of these ids, in their order; ids that are not there are left out."""
    found: dict[int, Run] = {}
    for start in range(0, len(ids), _MOST_VARIABLES):
        some = ids[start : start + _MOST_VARIABLES]
        listed = f"({', '.join('?' * len(some))})"
        parts: dict[str, dict[int, dict[str, Any]]] = {}
        for table in ("figures", "errors", *(("samples",) if with_samples else ())):
            parts[table] = {}
            for run_id, name, value in db.execute(
                f"SELECT * FROM {table} WHERE run_id IN {listed} ORDER BY rowid", some
            ):
                parts[table].setdefault(run_id, {})[name] = value
        tags: dict[int, list[str]] = {}
        for run_id, tag in db.execute(f"SELECT * FROM tags WHERE run_id IN {listed} ORDER BY tag", some):
            tags.setdefault(run_id, []).append(tag)
        for row in db.execute(
            "SELECT runs.*, environments.sha256, environments.content FROM runs "
            f"JOIN environments ON environments.id = environment_id WHERE runs.id IN {listed}",
            some,
        ):
            own = {table: by_run.get(row["id"], {}) for table, by_run in parts.items()}
            try:
                found[row["id"]] = row_to_run(row, own, tags.get(row["id"], ()))
            except UnreadableRowError as error:
                raise LedgerError(
                    f"run {row['id']} of the ledger cannot be read: {error}. `lpx bench rm {row['id']}` takes it out"
                ) from error
    return [found[run_id] for run_id in ids if run_id in found]


def select_baselines(db: sqlite3.Connection) -> dict[str, int]:
    """Runs by name. Raises LedgerError for rows that are none."""
    found: dict[str, int] = {}
    for name, run_id in db.execute("SELECT name, run_id FROM baselines ORDER BY name"):
        if not isinstance(name, str) or not isinstance(run_id, int):
            raise LedgerError(f"the baseline {name!r} of the ledger cannot be read: it means the run {run_id!r}")
        found[name] = run_id
    return found
