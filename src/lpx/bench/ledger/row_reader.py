"""Runs from rows that anybody may have written: every value is checked, for SQLite keeps any value in any column."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any

from lpx.bench.ledger.run import Run
from lpx.bench.measurement import Measurement, Subject
from lpx.doctor.environment import Environment

SUBJECT = tuple(field.name for field in fields(Subject))
TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
MOST_LEVELS = 50  # of lists and objects in each other; settings have four
_YEARS = range(1000, 9999)  # that still are years in every time zone, and sort as text


class UnreadableRowError(Exception):
    """A row holds what no LPX writes; the message names the column."""


def row_to_run(row: sqlite3.Row, parts: Mapping[str, Mapping[Any, Any]], tags: Iterable[Any]) -> Run:
    """`row` of runs with its environment; `parts` are its figures, errors and samples by name.

    Raises UnreadableRowError.
    """
    subject: dict[str, Any] = {
        name: _whole(name, row[name]) if name == "threads" else _text(name, row[name], name not in ("model", "engine"))
        for name in SUBJECT
    }
    return Run(
        id=row["id"],
        measurement=Measurement(
            kind=_text("kind", row["kind"]),
            subject=Subject(**subject),
            settings=_object("settings", row["settings"]),
            figures={_text("figures", name): _number(name, value) for name, value in parts["figures"].items()},
            samples={
                _text("samples", name): _series(name, series) for name, series in parts.get("samples", {}).items()
            },
            errors={_text("errors", kind): _whole(kind, count) or 0 for kind, count in parts["errors"].items()},
            batch_size=_whole("batch_size", row["batch_size"]),
            input_len=_length("input_len", row["input_len"]),
            output_len=_length("output_len", row["output_len"]),
            started=_moment("started", row["started"]),
            seconds=_finite("seconds", row["seconds"]),
        ),
        environment=_environment(row["content"]),
        environment_sha256=_text("sha256", row["sha256"]),
        tags=tuple(_text("tags", tag) for tag in tags),
        note=_text("note", row["note"]),
    )


def levels_of(values: Any) -> int:
    """How deep lists and objects lie in each other; more than `MOST_LEVELS` are not counted to the end."""
    levels, inside = 0, [values]
    while inside and levels <= MOST_LEVELS:
        inside = [
            part
            for each in inside
            if isinstance(each, (dict, list, tuple))
            for part in (each.values() if isinstance(each, dict) else each)
        ]
        levels += 1
    return levels


def _refuse(column: Any, wanted: str, value: Any) -> UnreadableRowError:
    shown = repr(value)
    return UnreadableRowError(f"{str(column)[:60]} is {shown if len(shown) <= 60 else shown[:57] + '…'}, not {wanted}")


def _text(column: str, value: Any, optional: bool = False) -> Any:
    if isinstance(value, str) or (optional and value is None):
        return value
    raise _refuse(column, "text", value)


def _whole(column: str, value: Any) -> int | None:
    if value is None or isinstance(value, int):
        return value
    raise _refuse(column, "a whole number", value)


def _number(name: Any, value: Any) -> float:
    """SQLite keeps what is not a number as NULL."""
    if value is None:
        return math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    raise _refuse(name, "a number", value)


def _finite(column: str, value: Any) -> float:
    number = _number(column, value)
    if not math.isfinite(number):
        raise _refuse(column, "a finite number", value)
    return number


def _length(column: str, value: Any) -> Any:
    """Lengths are means where requests differ."""
    if value is None:
        return None
    number = _finite(column, value)
    return int(number) if number == int(number) else number


def _moment(column: str, value: Any) -> datetime:
    try:
        moment = datetime.strptime(_text(column, value), TIME).replace(tzinfo=timezone.utc)
    except ValueError:
        raise _refuse(column, "a time such as 2026-01-31T09:05:00.000000Z", value) from None
    if moment.year not in _YEARS:
        raise _refuse(column, f"in the years from {_YEARS[0]} to {_YEARS[-1]}", value)
    return moment


def _json(column: str, text: Any) -> Any:
    try:
        values = json.loads(_text(column, text))
    except (ValueError, RecursionError):
        raise _refuse(column, "JSON", text) from None
    if levels_of(values) > MOST_LEVELS:
        raise _refuse(column, f"JSON of at most {MOST_LEVELS} levels", text)
    return values


def _object(column: str, text: Any) -> dict[str, Any]:
    values = _json(column, text)
    if not isinstance(values, dict):
        raise _refuse(column, "a JSON object", text)
    return values


def _series(name: str, text: Any) -> tuple[float, ...]:
    values = _json(name, text)
    if not isinstance(values, list):
        raise _refuse(name, "a JSON list", text)
    return tuple(_number(name, value) for value in values)


def _environment(text: Any) -> Environment:
    try:
        return Environment.from_json(_object("environment", text))
    except TypeError as error:
        raise UnreadableRowError(f"the environment's {error}") from None
