"""A line through times over numbers of tokens, and whether the times lie on one.

The slope is what one more token costs, whatever comes before and around it. It is found by least squares over the
points that remain when those far from a Theil-Sen line are left out: a moment in which the machine did something else
then moves nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median

from lpx.bench.statistics import Interval, spread, t_quantile

_FAR = 5.0  # standard deviations from the line
_ENOUGH = 8  # points, to tell a line from what lies far from it
_FLOOR = 1e-3  # of the time: noise that is always allowed
_WIDE = 0.10  # half of the interval over the slope
_BENT = 0.03  # of the time, by which a length may lie off the line
_MANY_LEFT_OUT = 0.2


@dataclass(frozen=True, slots=True)
class Slope:
    """seconds = intercept_s + tokens * seconds_per_token."""

    seconds_per_token: Interval  # 95 % by Student's t
    intercept_s: float
    points: int  # used
    left_out: int
    problems: tuple[str, ...]  # why the slope is not to be trusted; empty: it is


def fit_slope(tokens: Sequence[float], seconds: Sequence[float]) -> Slope | None:
    """The line, or None where there are fewer than two different numbers of tokens."""
    points = list(zip(tokens, seconds, strict=True))
    lengths = sorted(set(tokens))
    if len(lengths) < 2:
        return None
    rough = median((s2 - s1) / (t2 - t1) for (t1, s1), (t2, s2) in combinations(points, 2) if t1 != t2)
    base = median(s - rough * t for t, s in points)
    off = [s - base - rough * t for t, s in points]
    allowed = _FAR * max(spread(off), _FLOOR * fmean(seconds))
    kept = [point for point, distance in zip(points, off, strict=True) if abs(distance) <= allowed]
    if len(points) < _ENOUGH or len({t for t, _ in kept}) < 2:
        kept = points

    mean_t, mean_s = fmean(t for t, _ in kept), fmean(s for _, s in kept)
    square = math.fsum((t - mean_t) ** 2 for t, _ in kept)
    slope = math.fsum((t - mean_t) * (s - mean_s) for t, s in kept) / square
    intercept = mean_s - slope * mean_t
    half = math.inf
    if len(kept) > 2:
        error = math.sqrt(math.fsum((s - intercept - slope * t) ** 2 for t, s in kept) / (len(kept) - 2))
        half = t_quantile(0.975, len(kept) - 2) * error / math.sqrt(square)
    interval = Interval(slope, slope - half, slope + half)
    left_out = len(points) - len(kept)
    return Slope(interval, intercept, len(kept), left_out, tuple(_problems(kept, interval, intercept, left_out)))


def _problems(kept: Sequence[tuple[float, float]], slope: Interval, intercept: float, left_out: int) -> list[str]:
    by_length: dict[float, list[float]] = defaultdict(list)
    for t, s in kept:
        by_length[t].append(s - intercept - slope.estimate * t)
    found = []
    if slope.estimate <= 0:
        found.append("longer answers do not take longer")
        return found
    half = (slope.high - slope.low) / 2
    if half > _WIDE * slope.estimate:
        size = "is not known" if math.isinf(half) else f"is ±{100 * half / slope.estimate:.0f} %"
        found.append(f"the uncertainty of the slope {size}: raise --repeats, or take longer answers")
    if len(by_length) < 3:
        found.append("two lengths always lie on a line: give three or more")
    mean_s = fmean(s for _, s in kept)
    for t, residuals in sorted(by_length.items()):
        distance = fmean(residuals)
        noise = spread(residuals) / math.sqrt(len(residuals)) if len(residuals) > 1 else 0.0
        if abs(distance) > max(_BENT * mean_s, 3 * noise):
            found.append(
                f"the times are not on a line: answers of {t:.0f} tokens take {1e3 * abs(distance):.0f} ms "
                f"{'more' if distance > 0 else 'less'}"
            )
            break
    if left_out > _MANY_LEFT_OUT * (len(kept) + left_out):
        found.append(f"{left_out} of {len(kept) + left_out} points lie far from the others: the machine was not quiet")
    return found
