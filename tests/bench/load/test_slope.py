"""The slope of times over tokens: exact on a line, untouched by outliers, and honest about what is no line."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpx.bench.load.slope import fit_slope

LENGTHS = [16, 48, 96, 160] * 5


def noisy(noise, seed=1, base=0.5, each=0.01):
    rng = random.Random(seed)
    return [base + each * tokens + rng.gauss(0, noise) for tokens in LENGTHS]


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-4, 1.0), st.floats(0, 10))
def test_points_on_a_line_give_its_slope(each, base):
    found = fit_slope(LENGTHS, [base + each * tokens for tokens in LENGTHS])
    assert found is not None
    assert found.seconds_per_token.estimate == pytest.approx(each, rel=1e-6)
    assert found.intercept_s == pytest.approx(base, rel=1e-6, abs=1e-6)
    assert found.problems == ()
    assert (found.points, found.left_out) == (20, 0)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    held = 0
    for seed in range(200):
        found = fit_slope(LENGTHS, noisy(0.02, seed))
        held += found.seconds_per_token.low <= 0.01 <= found.seconds_per_token.high
    assert 0.91 <= held / 200 <= 0.99


def test_single_points_far_away_move_nothing():
    times = noisy(0.001)
    expected = fit_slope(LENGTHS, times).seconds_per_token.estimate
    times[3] += 30
    times[8] += 5
    found = fit_slope(LENGTHS, times)
    assert found.left_out == 2
    assert found.seconds_per_token.estimate == pytest.approx(expected, rel=0.01)
    assert found.problems == ()


def test_bad_fits_say_why():
    [noise] = fit_slope(LENGTHS, noisy(0.8)).problems[:1]
    assert "uncertainty of the slope is ±" in noise
    bent = fit_slope(LENGTHS, [0.1 + 0.0001 * tokens**2 for tokens in LENGTHS])
    assert any("not on a line" in problem for problem in bent.problems)
    two = fit_slope([16, 64] * 5, [0.16, 0.64] * 5)
    assert any("two lengths always lie on a line" in problem for problem in two.problems)
    flat = fit_slope(LENGTHS, [1.0 - 0.001 * tokens for tokens in LENGTHS])
    assert flat.problems == ("longer answers do not take longer",)
    times = noisy(0.001)
    unquiet = fit_slope(LENGTHS, [seconds + (5 * n if n % 3 == 0 else 0) for n, seconds in enumerate(times)])
    assert any("the machine was not quiet" in problem for problem in unquiet.problems)


def test_one_length_has_no_slope():
    assert fit_slope([5, 5, 5], [1, 2, 3]) is None
    assert fit_slope([], []) is None
