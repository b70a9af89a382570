"""Which runs belong on one curve, what it is called, and where the machine or its software changed between runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from lpx.bench.ledger import Run

# What a run is of, and how a curve names it. Runs that agree in all of it can be compared.
_ASPECTS: tuple[tuple[str, Callable[[Run], Any]], ...] = (
    ("{}", lambda run: run.measurement.subject.model),
    ("{}", lambda run: run.measurement.kind),
    ("{}", lambda run: run.measurement.subject.engine),
    ("{}", lambda run: run.measurement.subject.url),
    ("{}", lambda run: run.measurement.subject.quantization),
    ("KV {}", lambda run: run.measurement.subject.kv_cache_dtype),
    ("{}", lambda run: run.measurement.subject.device),
    ("{}", lambda run: run.measurement.subject.isa),
    ("{} threads", lambda run: run.measurement.subject.threads),
    ("{} in", lambda run: _rounded(run.measurement.input_len)),
    ("{} out", lambda run: _rounded(run.measurement.output_len)),
)
_BATCH: tuple[str, Callable[[Run], Any]] = ("batch {}", lambda run: run.measurement.batch_size)

_CHANGES = (
    ("cpu_model", "CPU"),
    ("os", "system"),
    ("kernel", "kernel"),
    ("container", "container"),
    ("gpus", "GPU"),
    ("nvidia_driver", "driver"),
    ("cuda", "CUDA"),
    ("python", "Python"),
    ("lpx", "LPX"),
    ("packages", "packages"),
)


@dataclass(frozen=True, slots=True)
class Curve:
    """Comparable runs, the earliest first."""

    label: str  # what sets it apart from the other curves
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """All runs of a curve with one batch size."""

    batch_size: int
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Change:
    """Something about the environment changed between two runs that follow each other."""

    moment: datetime  # start of the first run after it
    run_id: int  # of that run
    subjects: tuple[str, ...]  # "kernel", "driver"
    details: tuple[str, ...]  # "driver 550.1 → 570.2"


def curves_of(runs: Sequence[Run], figure: str, *, over_batch_size: bool = False) -> list[Curve]:
    """Runs that have the figure, by what they are of; `over_batch_size` puts all batch sizes on one curve."""
    aspects = _ASPECTS if over_batch_size else (*_ASPECTS, _BATCH)
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        if math.isfinite(run.measurement.figures.get(figure, math.nan)):
            groups.setdefault(tuple(read(run) for _, read in aspects), []).append(run)
    telling = [len({key[index] for key in groups}) > 1 for index in range(len(aspects))]
    if not any(telling):
        telling[0] = True
    return [
        Curve(
            " · ".join(
                form.format(value)
                for (form, _), value, told in zip(aspects, key, telling, strict=True)
                if told and value not in (None, "")
            )
            or "no name",
            tuple(sorted(group, key=lambda run: (run.measurement.started, run.id))),
        )
        for key, group in groups.items()
    ]


def batch_points(curve: Curve, figure: str) -> list[BatchPoint]:
    """The median of every batch size, with the least and the most."""
    values: dict[int, list[float]] = {}
    for run in curve.runs:
        if run.measurement.batch_size is not None:
            values.setdefault(run.measurement.batch_size, []).append(run.measurement.figures[figure])
    return [BatchPoint(size, statistics.median(each), min(each), max(each)) for size, each in sorted(values.items())]


def environment_changes(runs: Sequence[Run]) -> list[Change]:
    """What changed from each run to the next, by their start."""
    changes = []
    ordered = sorted(runs, key=lambda run: (run.measurement.started, run.id))
    for before, after in pairwise(ordered):
        if before.environment_sha256 == after.environment_sha256:
            continue
        old, new = before.environment.to_json(), after.environment.to_json()
        changed = [(name, title) for name, title in _CHANGES if old[name] != new[name]]
        changes.append(
            Change(
                after.measurement.started,
                after.id,
                tuple(title for _, title in changed) or ("machine",),
                tuple(f"{title}: {_difference(old[name], new[name])}" for name, title in changed),
            )
        )
    return changes


def _difference(old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        return ", ".join(f"{name} {old.get(name, 'none')} → {new.get(name, 'none')}" for name in names)
    return f"{_plain(old)} → {_plain(new)}"


def _plain(value: Any) -> str:
    return ", ".join(value) or "none" if isinstance(value, list) else str(value if value is not None else "none")


def _rounded(length: float | None) -> int | None:
    """Means of lengths differ a little from run to run."""
    return None if length is None else round(length)
