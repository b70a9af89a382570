"""How long requests take, as clients see it: histograms that cost a fraction of a microsecond an observation.

Nothing here needs the Prometheus library, which is loaded by the first look at /metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

# Seconds: 1, 2 and 5 of each power of ten, from 0.1 ms, since small models make thousands of tokens a second.
BUCKETS = tuple(float(f"{digit}e{power}") for power in range(-4, 3) for digit in (1, 2, 5))


class Histogram:
    """Counts of durations, by the buckets whose upper bound they do not exceed."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)  # the last one has no bound
        self.total = 0.0  # seconds

    def observe(self, seconds: float, count: int = 1) -> None:
        """Note `count` durations of so many seconds each."""
        self._counts[bisect_left(BUCKETS, seconds)] += count
        self.total += seconds * count

    @property
    def count(self) -> int:
        """How many durations were observed."""
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it), as Prometheus has them."""
        bounds = [*map(repr, BUCKETS), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))


class Latencies:
    """Of all generating requests since the start; each choice counts."""

    def __init__(self) -> None:
        self.time_to_first_token = Histogram()
        self.inter_token = Histogram()
        self.end_to_end = Histogram()
