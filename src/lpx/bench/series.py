"""Repeated measurements of one figure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Series:
    """All values of one figure, in the order they were measured, with what they come to."""

    values: tuple[float, ...]
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Series:
        kept = tuple(values)
        return cls(kept, statistics.median(kept), min(kept), max(kept))
