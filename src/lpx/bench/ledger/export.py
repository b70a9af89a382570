"""Runs for other programs: JSON with everything, CSV with one line a run.

Spreadsheets take text that begins with certain characters for a formula. Names of models and servers come from
elsewhere, so in CSV such text gets an apostrophe in front, which spreadsheets read as "this is text".
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import timezone
from typing import Any

from lpx.bench.ledger.run import Run

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_SUBJECT = ("model", "model_sha256", "quantization", "kv_cache_dtype", "engine", "engine_version", "device", "isa")
_ENVIRONMENT = ("cpu_model", "os", "kernel", "container", "nvidia_driver", "cuda", "python", "lpx")


def run_to_json(run: Run) -> dict[str, Any]:
    """Plain values; what is no number becomes null. Without samples where the run was read without."""
    measured = run.measurement
    values: dict[str, Any] = {
        "id": run.id,
        "kind": measured.kind,
        "started": measured.started.astimezone(timezone.utc).isoformat().replace("+00:00", "Z"),
        "seconds": measured.seconds,
        "subject": asdict(measured.subject),
        "batch_size": measured.batch_size,
        "input_len": measured.input_len,
        "output_len": measured.output_len,
        "settings": dict(measured.settings),
        "figures": dict(measured.figures),
        "errors": dict(measured.errors),
        "tags": list(run.tags),
        "note": run.note,
        "environment_sha256": run.environment_sha256,
        "environment": run.environment.to_json(),
    }
    if measured.samples:
        values["samples"] = {name: list(series) for name, series in measured.samples.items()}
    found: dict[str, Any] = _finite(values)
    return found


def to_json(runs: Iterable[Run]) -> str:
    """One array."""
    return json.dumps([run_to_json(run) for run in runs], ensure_ascii=False, indent=2) + "\n"


def to_csv(runs: Sequence[Run]) -> str:
    """A head line, then a line a run with a column for every figure that any of them has."""
    figures = sorted({name for run in runs for name in run.measurement.figures})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")  # RFC 4180
    writer.writerow(
        [
            *("id", "started", "kind", *_SUBJECT, "threads", "url", "batch_size", "input_len", "output_len", "seconds"),
            *(_cell(name) for name in figures),
            *("errors", "tags", "note", *_ENVIRONMENT, "environment_sha256", "settings"),
        ]
    )
    for run in runs:
        plain = run_to_json(run)
        subject, environment = plain["subject"], plain["environment"]
        row = [
            *(plain["id"], plain["started"], plain["kind"], *(subject[name] for name in _SUBJECT)),
            *(subject["threads"], subject["url"]),
            *(plain[name] for name in ("batch_size", "input_len", "output_len", "seconds")),
            *(plain["figures"].get(name) for name in figures),
            *(sum(plain["errors"].values()), " ".join(plain["tags"]), plain["note"]),
            *(environment[name] for name in _ENVIRONMENT),
            *(plain["environment_sha256"], json.dumps(plain["settings"], ensure_ascii=False)),
        ]
        writer.writerow([_cell(value) for value in row])
    return out.getvalue()


def _cell(value: Any) -> Any:
    """Numbers as they are, nothing for None, and text that no spreadsheet computes."""
    if isinstance(value, str):
        # The NUL is what C programs take for the end; leading blanks are skipped by some before they look.
        text = value.replace("\0", "")
        return f"'{text}" if text.lstrip(" \u00a0\u3000\ufeff").startswith(_FORMULA_STARTS) else text
    return value


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return value
