"""Counts of figures by size, at a fraction of a microsecond an observation."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate


class Histogram:
    """Counts figures by the buckets whose upper bound they do not exceed."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds  # ascending
        self._counts = [0] * (len(bounds) + 1)  # the last one has no bound
        self.total = 0.0

    def observe(self, figure: float, count: int = 1) -> None:
        """Note `count` figures of that size."""
        self._counts[bisect_left(self._bounds, figure)] += count
        self.total += figure * count

    @property
    def count(self) -> int:
        """How many figures were observed."""
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, figures up to it), as Prometheus has them."""
        bounds = [*map(repr, self._bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))
