"""A measurement as the ledger holds it, and which of them somebody wants."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lpx.bench.measurement import Measurement
from lpx.doctor.environment import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One recorded measurement."""

    id: int  # never used again, even after the run is removed
    measurement: Measurement
    environment: Environment
    environment_sha256: str  # as it was when recorded; equal for runs under equal conditions
    tags: tuple[str, ...] = ()  # sorted
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs: all conditions that are set must hold."""

    model: str | None = None  # part of the name, in any case of ASCII letters
    kind: str | None = None
    engine: str | None = None
    device: str | None = None  # part of the name, as for the model
    quantization: str | None = None  # part of it, as for the model
    batch_size: int | None = None
    since: datetime | None = None  # started then or later; without a time zone it is UTC
    until: datetime | None = None  # started before
    tag: str | None = None
    environment_sha256: str | None = None
    last: int | None = None  # only the newest so many of those that are left
