"""What the time of the work may make of the weather, and what sessions say about it."""

import numpy as np
import pytest

from lpx.bench.gate.adjusted import _explained, compare_pieces
from lpx.bench.gate.response import Response
from lpx.bench.statistics import centre
from lpx.bench.weather import Look
from tests.bench.gate.synthetic_machine import DECODE_SPEED, MULTIPLY, READ, Engine, Run

USUAL = (0.82, 0.12)
REFERENCE = Look(READ, MULTIPLY)


def sessions_of(kind, seed, engine, count=16):
    run = Run(kind, seed)
    return [run.session(number, engine) for number in range(count)]


def pieces_of(sessions):
    return [piece for session in sessions for piece in session]


def test_time_follows_the_memory_up_to_the_knee_and_less_beyond():
    response = Response.grid([30e9, 60e9], REFERENCE, USUAL)
    times, felt = response.times([Look(read, MULTIPLY) for read in (20e9, 30e9, 40e9, 60e9)])
    assert times[:, 2] == pytest.approx(0)  # the reference
    assert (np.diff(times, axis=1) <= 1e-12).all()  # never slower for a faster memory
    flat = (response.beyond == 0) & (response.knees < 31e9)
    assert times[flat][:, 1:] == pytest.approx(0)
    assert felt[flat][:, 2:] == pytest.approx(0)
    straight = (response.shares == 1) & (response.knees > 59e9)
    assert times[straight][:, 0] == pytest.approx(np.log(2))
    assert (response.felt(Look(30e9, MULTIPLY), REFERENCE) <= 1 + 1e-9).all()


def test_what_is_beyond_the_speeds_that_were_seen_counts_at_the_ends_of_the_grid():
    response = Response.grid([39e9, 41e9], REFERENCE, USUAL)
    prior = np.exp(response.log_prior)
    ends = (response.knees < 39.1e9) | (response.knees > 40.9e9)
    assert prior[ends].sum() > 0.95 * prior.sum()


def test_the_middle_of_sessions_is_the_trimmed_mean_that_all_comparisons_use():
    sessions = sessions_of("calm", 0, Engine())
    found = _explained(sessions, DECODE_SPEED, None)
    expected = centre(found.values[0].tolist(), 0.1)
    assert found.middle[0] == pytest.approx(expected.mean)
    assert found.error[0] == pytest.approx(expected.error)
    assert found.degrees == expected.degrees


def test_looks_that_differ_by_their_error_alone_say_nothing_about_the_response():
    """A memory that seems to change while the times do not is no sign of a work that does not feel it."""
    calm = [pieces_of(sessions_of("slow", seed, Engine())) for seed in (1, 2)]
    share = compare_pieces(*calm, DECODE_SPEED, 0.95, USUAL).memory_share
    assert share.high > 0.75


def test_one_session_has_no_bounds():
    one = pieces_of(sessions_of("calm", 0, Engine(), count=1))
    ratio = compare_pieces(one, one, DECODE_SPEED, 0.95, USUAL).ratio
    assert (ratio.low, ratio.high) == (0, float("inf"))
