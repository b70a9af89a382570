"""Statistics of repeated measurements: percentiles, intervals, ratios of sides that were measured in alternation.

Pure functions; what draws random numbers does so from a fixed seed. Speeds and times are compared by their ratio, so
the work is done on logarithms, where a factor is a difference and an interval of a ratio comes out right on both sides.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

PERCENTILES = (50, 90, 95, 99)

_SCALE_OF_MAD = 1.4826  # makes the median absolute deviation the standard deviation of normal noise


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate, and where the true value is with the given confidence."""

    estimate: float
    low: float
    high: float
    confidence: float = 0.95

    def scaled(self, function: Callable[[float], float]) -> Interval:
        """The interval of a growing or falling function of the value."""
        ends = sorted((function(self.low), function(self.high)))
        return Interval(function(self.estimate), ends[0], ends[1], self.confidence)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, linear between neighbours (as NumPy's default).

    Raises ValueError for no values and for a percent outside 0 to 100.
    """
    if not values:
        raise ValueError("no values")
    if not 0 <= percent <= 100:
        raise ValueError(f"a percentile is from 0 to 100, not {percent}")
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def summary(name: str, values: Sequence[float]) -> dict[str, float]:
    """`<name>_mean`, `_median`, `_p90`, `_p95` and `_p99` of the values; nothing of no values."""
    if not values:
        return {}
    return {
        f"{name}_mean": fmean(values),
        f"{name}_median": median(values),
        **{f"{name}_p{percent}": percentile(values, percent) for percent in PERCENTILES if percent != 50},
    }


def spread(values: Sequence[float]) -> float:
    """The standard deviation that most of the values show, whatever a few outliers do (from the median deviation)."""
    middle = median(values)
    return _SCALE_OF_MAD * median(abs(value - middle) for value in values)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The mean with its interval by Student's t: for figures whose noise is about normal, such as means of rounds.

    Of one value the interval is without bounds. Raises ValueError for no values.
    """
    return trimmed_interval(values, confidence, trim=0)


@dataclass(frozen=True, slots=True)
class Centre:
    """Where values lie, and how well that is known."""

    mean: float
    error: float  # standard error of the mean
    degrees: int  # of freedom of the error; 0: one value, whose error nobody knows


def centre(values: Sequence[float], trim: float = 0.2) -> Centre:
    """The mean without the `trim` smallest and largest shares: a round in which something else happened moves nothing.

    Of fewer than five values nothing is cut. Raises ValueError for no values.
    Source: Yuen (1974), The two-sample trimmed t for unequal population variances.
    """
    if not values:
        raise ValueError("no values")
    count = len(values)
    cut = math.floor(trim * count) if count >= 5 else 0
    ordered = sorted(values)
    kept = ordered[cut : count - cut]
    if count == 1:
        return Centre(ordered[0], math.inf, 0)
    drawn_in = [*[kept[0]] * cut, *kept, *[kept[-1]] * cut]  # winsorized
    error = stdev(drawn_in) * math.sqrt(count - 1) / math.sqrt(len(kept) * (len(kept) - 1))
    return Centre(fmean(kept), error, len(kept) - 1)


def trimmed_interval(values: Sequence[float], confidence: float = 0.95, trim: float = 0.2) -> Interval:
    """The trimmed mean with its interval; see `centre`."""
    found = centre(values, trim)
    return interval_around(found.mean, found.error, found.degrees, confidence)


def interval_around(estimate: float, error: float, degrees: float, confidence: float = 0.95) -> Interval:
    """The interval by Student's t of an estimate whose standard error has so many degrees of freedom."""
    if degrees <= 0 or math.isinf(error):
        return Interval(estimate, -math.inf, math.inf, confidence)
    half = t_quantile((1 + confidence) / 2, degrees) * error
    return Interval(estimate, estimate - half, estimate + half, confidence)


def alternating_ratio(ours: Sequence[float], theirs: Sequence[float], confidence: float = 0.95) -> Interval:
    """How many times `theirs` `ours` is, from rounds in which both were measured one after the other.

    Each round gives one ratio, so whatever changes from round to round (the machine's memory, other programs) drops
    out; the rounds at both ends of the order are trimmed. Values must be above 0. Raises ValueError when the rounds do
    not pair up or there is none.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} rounds of one side and {len(theirs)} of the other")
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    return trimmed_interval(logs, confidence).scaled(math.exp)


@functools.lru_cache(maxsize=1024)
def t_quantile(probability: float, degrees: float) -> float:
    """The quantile of Student's t distribution, by bisection of its cumulative distribution."""
    if not 0 < probability < 1:
        raise ValueError(f"a probability is between 0 and 1, not {probability}")
    if degrees <= 0:
        raise ValueError(f"degrees of freedom are above 0, not {degrees}")
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    low, high = 0.0, 1.0
    while _t_below(high, degrees) < probability:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        if _t_below(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _t_below(t: float, degrees: float) -> float:
    """The probability of a value below t >= 0: 1 - I_x(degrees / 2, 1 / 2) / 2 with x = degrees / (degrees + t^2)."""
    return 1 - _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t)) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges fast
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        a * math.log(x) + b * math.log1p(-x) - math.log(a) - math.lgamma(a) - math.lgamma(b) + math.lgamma(a + b)
    )
    fraction, c, d = 1.0, 1.0, 0.0
    for step in range(400):  # Lentz's way of going through a continued fraction
        m = step // 2
        if step == 0:
            numerator = 1.0
        elif step % 2 == 0:
            numerator = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            numerator = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / _not_zero(1 + numerator * d)
        c = _not_zero(1 + numerator / c)
        fraction *= c * d
        if abs(1 - c * d) < 1e-15:
            break
    return front * (fraction - 1)


def _not_zero(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300
