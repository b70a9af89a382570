"""What a machine or a card offers: memory, bandwidth, and where these figures come from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lpx.errors import ConfigError

if TYPE_CHECKING:
    from lpx.doctor.gpu_table import Gpu

# What drivers, contexts and a desktop leave of a card's memory; where the system lives in it, too, less.
_SHARE_OF_CARD, _SHARE_OF_UNIFIED = 0.9, 0.75
_RECENT_ROOFLINES = 50


@dataclass(frozen=True, slots=True)
class FitTarget:
    """Where a model is to run."""

    kind: str  # "cpu" or "gpu"
    name: str
    total_bytes: int
    usable_bytes: int
    bytes_per_second: float | None  # None: not known
    bandwidth_source: str  # "measured now", "run 12 of the ledger", "listed", …
    threads: int | None = None
    gpu: Gpu | None = None


def machine_target(
    *,
    bytes_per_second: float | None = None,
    source: str = "given",
    ledger: Path | None = None,
    threads: int | None = None,
    memory_bytes: int | None = None,
) -> FitTarget:
    """This machine, within the limits of its control group.

    Without a bandwidth (and `source`, which tells where it is from) that of the last `lpx bench roofline` on such a
    machine is taken from the ledger, if there is one. `memory_bytes` is counted with in place of what is free.
    """
    import psutil  # type: ignore[import-untyped]

    from lpx.doctor.environment import read_environment
    from lpx.runtime.cpu.topology import default_threads
    from lpx.runtime.memory import available_bytes

    if bytes_per_second is None:
        bytes_per_second, source = _last_roofline(ledger)
    environment = read_environment()
    limit = environment.memory_limit_bytes
    total = int(psutil.virtual_memory().total)
    return FitTarget(
        kind="cpu",
        name=environment.cpu_model or "this machine",
        total_bytes=(min(total, limit) if limit else total) if memory_bytes is None else memory_bytes,
        usable_bytes=available_bytes() if memory_bytes is None else memory_bytes,
        bytes_per_second=bytes_per_second,
        bandwidth_source=source,
        threads=default_threads() if threads is None else threads,
    )


def gpu_target(name: str, *, bytes_per_second: float | None = None, memory_bytes: int | None = None) -> FitTarget:
    """A card of the table; `memory_bytes` overrides its memory. Raises ConfigError with the nearest names."""
    from lpx.doctor.gpu_table import find, nearest_names

    gpu = find(name)
    if gpu is None:
        near = nearest_names(name)
        hint = f"; near are {', '.join(near)}" if near else ""
        raise ConfigError(f"the GPU {name!r} is not in the table{hint}. lpx fit --gpus lists all")
    total = gpu.memory_bytes if memory_bytes is None else memory_bytes
    return FitTarget(
        kind="gpu",
        name=gpu.name,
        total_bytes=total,
        usable_bytes=int(total * (_SHARE_OF_UNIFIED if gpu.unified else _SHARE_OF_CARD)),
        bytes_per_second=gpu.bytes_per_second if bytes_per_second is None else bytes_per_second,
        bandwidth_source="listed" if bytes_per_second is None else "given",
        gpu=gpu,
    )


def _last_roofline(path: Path | None) -> tuple[float | None, str]:
    """Of a machine like this one; a ledger that cannot be read has none."""
    from lpx.bench.ledger import Ledger, LedgerError, RunFilter
    from lpx.doctor.environment import read_environment

    here = read_environment()
    try:
        runs = Ledger(path).find(RunFilter(kind="roofline", last=_RECENT_ROOFLINES))
    except (LedgerError, OSError):
        return None, "unknown"
    for run in reversed(runs):
        there = run.environment
        alike = (there.cpu_model, there.usable_cpus, there.memory_bytes) == (
            here.cpu_model,
            here.usable_cpus,
            here.memory_bytes,
        )
        speed = run.measurement.figures.get("read_bytes_per_second")
        if alike and speed and math.isfinite(speed) and speed > 0:
            return speed, f"run {run.id} of the ledger"
    return None, "unknown"
