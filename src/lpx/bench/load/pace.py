"""When requests are due."""

from __future__ import annotations

import random
from collections.abc import Iterator

from lpx.bench.load.settings import LoadSettings


def due_times(settings: LoadSettings, count: int, rng: random.Random) -> Iterator[float]:
    """Seconds since the start at which each of `count` requests is due, the first at 0.

    The times between are gamma distributed with the mean 1/rate and the shape `burstiness`: 1 makes a Poisson process,
    less comes in bursts, more is more even. A ramp changes the rate from request to request.
    """
    due = 0.0
    for number in range(count):
        yield due
        rate = request_rate(settings, number / max(count - 1, 1))
        due += rng.gammavariate(settings.burstiness, 1.0 / (rate * settings.burstiness))


def request_rate(settings: LoadSettings, progress: float) -> float:
    """Requests a second at a point from 0 to 1 of the load."""
    if settings.ramp_up_strategy is None:
        assert settings.request_rate is not None
        return settings.request_rate
    start, end = settings.ramp_up_start_rps, settings.ramp_up_end_rps
    assert start is not None
    assert end is not None
    if settings.ramp_up_strategy == "linear":
        return start + (end - start) * progress
    return float(start * (end / start) ** progress)
