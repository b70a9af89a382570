"""Percentiles and intervals: known values, and how often an interval holds the truth."""

import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.bench.statistics import (
    alternating_ratio,
    mean_interval,
    percentile,
    spread,
    summary,
    t_quantile,
    trimmed_interval,
)

# Quantiles of Student's t from its tables: probability, degrees of freedom, value.
T_TABLE = [
    (0.975, 1, 12.7062),
    (0.975, 2, 4.30265),
    (0.975, 5, 2.57058),
    (0.95, 10, 1.81246),
    (0.99, 30, 2.45726),
    (0.9, 3, 1.63774),
    (0.975, 1e6, 1.95997),
]


@pytest.mark.parametrize(("probability", "degrees", "value"), T_TABLE)
def test_t_quantiles_are_those_of_the_tables(probability, degrees, value):
    assert t_quantile(probability, degrees) == pytest.approx(value, rel=1e-5)
    assert t_quantile(1 - probability, degrees) == pytest.approx(-value, rel=1e-5)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_are_numpys(values, percent):
    import numpy as np

    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), abs=1e-6)


def test_what_cannot_be_computed_is_refused():
    for refused in (lambda: percentile([], 50), lambda: percentile([1.0], 101), lambda: mean_interval([])):
        with pytest.raises(ValueError, match=r"."):
            refused()
    with pytest.raises(ValueError, match="2 rounds of one side and 1"):
        alternating_ratio([1.0, 2.0], [1.0])
    assert summary("ttft_ms", []) == {}


def test_summary_has_the_names_of_figures():
    assert summary("ttft_ms", [float(value) for value in range(1, 102)]) == {
        "ttft_ms_mean": 51,
        "ttft_ms_median": 51,
        "ttft_ms_p90": 91,
        "ttft_ms_p95": 96,
        "ttft_ms_p99": 100,
    }


def test_one_value_tells_nothing_about_its_spread():
    interval = mean_interval([3.0])
    assert (interval.estimate, interval.low, interval.high) == (3.0, -math.inf, math.inf)


@pytest.mark.parametrize("interval_of", [mean_interval, trimmed_interval])
def test_intervals_hold_the_truth_about_as_often_as_they_say(interval_of):
    draw = random.Random(1)
    tries, held = 400, 0
    for _ in range(tries):
        interval = interval_of([draw.gauss(10, 2) for _ in range(25)])
        held += interval.low <= 10 <= interval.high
    assert 0.9 <= held / tries <= 0.99


def test_outliers_move_the_mean_but_not_the_trimmed_one():
    draw = random.Random(2)
    values = [draw.gauss(100, 1) for _ in range(17)] + [10.0, 20.0, 15.0]
    assert mean_interval(values).estimate < 90
    interval = trimmed_interval(values)
    assert interval.low <= 100 <= interval.high
    assert interval.high - interval.low < 4
    assert spread(values) < 3


def test_what_both_sides_share_drops_out_of_their_ratio():
    draw = random.Random(3)
    weather = [draw.uniform(0.5, 1.0) for _ in range(12)]  # the machine is half as fast in some rounds
    ours = [110 * share * draw.gauss(1, 0.01) for share in weather]
    theirs = [100 * share * draw.gauss(1, 0.01) for share in weather]
    ratio = alternating_ratio(ours, theirs)
    assert ratio.low < 1.1 < ratio.high
    assert ratio.high - ratio.low < 0.05
    assert fmean(ours) / fmean(theirs) == pytest.approx(1.1, abs=0.03)
