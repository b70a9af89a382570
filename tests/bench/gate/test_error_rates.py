"""How often a gate is right, on a made-up machine whose weather changes. The seeds are fixed, so the rates are, too.

Where sessions differ by 3 % (16 seeds, at most 120 seconds), 8 % slower failed in 15 tries against a baseline of 24
sessions and in 10 against one of 4; unchanged passed in 16 and 13; the rest was undecided. What lies at the limit
itself was called slower in 2 of 16 tries and passed in 1; with 60 seconds in 2 and 0.

With 50 seeds, a limit of -5 % and at most 40 seconds, what was unchanged passed in 50 tries of calm weather, 46 of
drifting, 50 of bimodal and 50 with bursts; what was 8 % slower failed in 50, 40, 50 and 50. All others were left
undecided: none was judged wrongly. With an engine that is no faster with a memory of more than 40 GB/s, 50 and 50 in
weather that swings from 33 to 60 GB/s; where the baseline had 33 GB/s and the gate 50, or the other way round, all
were left undecided. Where the memory drifted around 33 GB/s in one run and around 50 in the other, 6 of 640 tries were
judged wrongly (shares of memory from 0.5 to 0.95, saturated from 30, 40, 50 or 70 GB/s on, sharply or softly).
"""

from collections import Counter
from dataclasses import replace

import pytest

from lpx.bench.gate.adjusted import USUAL_SHARES, compare_pieces
from lpx.bench.gate.conditions import parse_condition
from lpx.bench.gate.gate import BASELINE_SESSIONS, GATE_SECONDS
from lpx.bench.gate.pairs import Pair, compare_pairs
from lpx.bench.gate.sharpness import smallest_changes
from lpx.bench.gate.trial import Outcome, run_trial
from tests.bench.gate.synthetic_machine import DECODE_SPEED, Engine, Run

CONDITION = parse_condition("decode:-5%")
TRIES = 10
SESSIONS, SECONDS = 16, 40  # of the baseline, and of the gate


def against_baseline(kind, seed, slower, engine=Engine()):
    """`kind` is of both runs, or of the baseline's and of now."""
    kinds = (kind, kind) if isinstance(kind, str) else kind
    earlier, later = (Run(each, 2 * seed + at) for at, each in enumerate(kinds))
    changed = replace(engine, speed=engine.speed * (1 - slower))
    baseline = [piece for number in range(SESSIONS) for piece in earlier.session(number, engine)]
    return run_trial(
        lambda number: later.session(number, changed),
        lambda pieces, condition, confidence: compare_pieces(
            baseline, pieces, condition.figure, confidence, USUAL_SHARES["decode"]
        ),
        [CONDITION],
        seconds=SECONDS,
        clock=lambda: later.seconds,
    ).outcome


def against_baseline_of(sessions, seed, speed, seconds):
    """The outcome on a machine whose sessions differ by 3 %; `speed` is told the smallest change by that baseline."""
    earlier, later = Run("calm", 2 * seed, spread=0.03), Run("calm", 2 * seed + 1, spread=0.03)
    baseline = [piece for number in range(sessions) for piece in earlier.session(number, Engine())]
    slower = Engine(speed=300 * speed(smallest_changes(baseline, lambda figure: USUAL_SHARES["decode"])[DECODE_SPEED]))
    return run_trial(
        lambda number: later.session(number, slower),
        lambda pieces, condition, confidence: compare_pieces(
            baseline, pieces, condition.figure, confidence, USUAL_SHARES["decode"]
        ),
        [CONDITION],
        seconds=seconds,
        clock=lambda: later.seconds,
    ).outcome


def in_alternation(kind, seed, slower):
    run = Run(kind, seed)

    def session(number):
        ours, theirs = run.paired_session(number, Engine(speed=300 * (1 - slower)), Engine())
        return [Pair(a.phase, number, a.figures, b.figures) for a, b in zip(ours, theirs, strict=True)]

    return run_trial(
        session,
        lambda pairs, condition, confidence: compare_pairs(pairs, condition.figure, confidence),
        [CONDITION],
        seconds=SECONDS,
        clock=lambda: run.seconds,
    ).outcome


def saturated(kind, seed, slower):
    """With an engine that is no faster with a memory of more than 40 GB/s."""
    return against_baseline(kind, seed, slower, Engine(cap=1.0))


def outcomes(way, kind, slower):
    return Counter(way(kind, seed, slower) for seed in range(TRIES))


@pytest.mark.parametrize("kind", ["calm", "bimodal", "bursts"])
def test_baseline_catches_8_percent_and_passes_what_is_unchanged(kind):
    assert outcomes(against_baseline, kind, 0.08)[Outcome.FAILED] >= 9
    assert outcomes(against_baseline, kind, 0.0)[Outcome.PASSED] >= 9


def test_memory_that_wanders_makes_it_careful_but_not_wrong():
    slower, same = (outcomes(against_baseline, "drift", slower) for slower in (0.08, 0.0))
    assert slower[Outcome.PASSED] == same[Outcome.FAILED] == 0
    assert slower[Outcome.FAILED] >= 7
    assert same[Outcome.PASSED] >= 8


@pytest.mark.parametrize("engine", [against_baseline, saturated])
@pytest.mark.parametrize("kinds", [("slow", "fast"), ("fast", "slow")])
def test_what_the_work_makes_of_a_memory_that_no_run_has_shown_is_not_made_up(kinds, engine):
    assert outcomes(engine, kinds, 0.0)[Outcome.FAILED] == 0
    assert outcomes(engine, kinds, 0.08)[Outcome.PASSED] == 0


@pytest.mark.parametrize("engine", [against_baseline, saturated])
@pytest.mark.parametrize("kinds", ["swings", ("swings", "slow")])
def test_what_the_baseline_has_seen_of_the_memory_is_enough(kinds, engine):
    assert outcomes(engine, kinds, 0.08)[Outcome.FAILED] >= 9
    assert outcomes(engine, kinds, 0.0)[Outcome.PASSED] >= 9


@pytest.mark.parametrize("kind", ["calm", "drift", "bimodal", "bursts"])
def test_alternation_is_right_in_any_weather(kind):
    assert outcomes(in_alternation, kind, 0.08)[Outcome.FAILED] >= 9
    assert outcomes(in_alternation, kind, 0.0)[Outcome.PASSED] >= 9


def test_a_baseline_of_the_default_length_catches_8_percent_where_sessions_differ_by_3_percent():
    found = [against_baseline_of(BASELINE_SESSIONS, seed, lambda smallest: 0.92, GATE_SECONDS) for seed in range(4)]
    assert found.count(Outcome.FAILED) >= 3
    assert Outcome.PASSED not in found


def test_a_change_as_far_from_the_limit_as_is_said_of_a_baseline_is_judged():
    found = [against_baseline_of(8, seed, lambda smallest: 0.95 * (1 - smallest), 25) for seed in range(4)]
    assert found.count(Outcome.FAILED) >= 3
    assert Outcome.PASSED not in found


def test_what_lies_at_the_limit_is_mostly_left_undecided():
    found = [against_baseline("calm", seed, 0.05) for seed in range(4)]
    assert found.count(Outcome.UNDECIDED) >= 2


def test_without_the_weather_a_slower_memory_would_be_taken_for_a_slower_build():
    """The reason for the looks: the same rounds, compared as they are."""
    fair, foul = Run("calm", 1), Run("calm", 2)
    foul.weather.pass_time = lambda seconds: setattr(foul.weather, "memory", 0.7)
    before = [piece for number in range(8) for piece in fair.session(number, Engine())]
    after = [piece for number in range(8) for piece in foul.session(number, Engine())]
    adjusted = compare_pieces(before, after, DECODE_SPEED, 0.95, USUAL_SHARES["decode"])
    assert adjusted.ratio.low < 1 < adjusted.ratio.high
    # Nobody knows how much of the slower memory is felt, so the middle lies between all and nothing of it.
    assert adjusted.ratio.estimate == pytest.approx(1, abs=0.12)
    blind = [[replace(piece, weather=None) for piece in pieces] for pieces in (before, after)]
    assert compare_pieces(*blind, DECODE_SPEED, 0.95).ratio.high < 0.85
