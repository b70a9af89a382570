"""When a comparison ends, and what it finds."""

from __future__ import annotations

import pytest

from lpx.bench.statistics import Interval
from lpx.bench.tune import Goal, Slo
from lpx.bench.tune.comparison import MOST_ROUNDS, Comparison, Side, compare
from lpx.bench.tune.tuner import judge
from lpx.bench.tune.workload import Round, Workload


def run(monkeypatch, ratios, slo=None, best_ttft=10.0, seconds=1e9):
    """Compare a candidate that is `ratios` times as fast, round by round; returns it and the order of the sides."""
    order = []

    def run_round(engine, prompts, workload):
        number = sum(1 for each in order if each == engine)
        order.append(engine)
        score = 1.0 if engine == "best" else ratios[min(number, len(ratios) - 1)]
        return Round(score, 1.0, 3, (best_ttft,), (1.0,), ((1,),))

    monkeypatch.setattr("lpx.bench.tune.comparison.run_round", run_round)
    monkeypatch.setattr("lpx.bench.tune.comparison.encode_prompts", lambda engine, workload: [[1]])
    found = compare("best", "candidate", Workload(), slo=slo or Slo(), seconds=seconds)
    return found, order


def test_sides_take_turns_in_going_first(monkeypatch):
    _, order = run(monkeypatch, [1.1, 0.9, 1.1, 0.9, 1.1, 0.9, 1.1, 0.9])
    assert order[:4] == ["best", "candidate", "candidate", "best"]
    assert len(order) == 2 * MOST_ROUNDS


def test_a_clear_gain_needs_three_rounds(monkeypatch):
    found, _ = run(monkeypatch, [1.2, 1.21, 1.19])
    assert found.faster
    assert len(found.best.rounds) == 3
    assert found.ratio.estimate == pytest.approx(1.2, rel=1e-3)


def test_a_hopeless_candidate_is_given_up(monkeypatch):
    assert len(run(monkeypatch, [0.5])[0].best.rounds) == 1
    assert len(run(monkeypatch, [0.8, 0.7])[0].best.rounds) == 2
    found, _ = run(monkeypatch, [0.8, 0.95, 0.96, 0.95])
    assert not found.hopeless
    assert not found.faster


def test_a_gain_too_small_to_matter_is_none(monkeypatch):
    found, _ = run(monkeypatch, [1.006, 1.007, 1.008])
    assert len(found.best.rounds) == 3
    assert not found.faster
    assert judge(Goal("latency"), "exact", found)[1] == "gains less than 2%"


@pytest.mark.parametrize("ratios", [[0.5], [0.9, 0.91, 0.9], [1.006, 1.007, 1.008], [1.2, 0.9], [1.2, 1.21, 1.19]])
@pytest.mark.parametrize("slo", [Slo(), Slo(5.0, None)])
def test_answers_that_differ_are_counted_whatever_the_verdict_unless_an_option_is_exact(monkeypatch, ratios, slo):
    found, _ = run(monkeypatch, ratios)
    goal = Goal("latency", slo)
    assert judge(goal, "rounding", found)[1].endswith("; rounds in another order: 0 of 1 greedy answers differ")
    assert judge(goal, "lossy", found)[1].endswith("; keeps less precision: 0 of 1 greedy answers differ")
    assert "answers" not in judge(goal, "exact", found)[1]


def test_time_ends_an_open_comparison_after_three_rounds(monkeypatch):
    found, _ = run(monkeypatch, [1.2, 0.9, 1.2, 0.9], seconds=0.0)
    assert len(found.best.rounds) == 3
    assert judge(Goal("latency"), "exact", found) == ("not kept", "no clear difference")


def test_limits_that_are_missed_are_looked_at_whatever_the_speed(monkeypatch):
    found, _ = run(monkeypatch, [0.5], slo=Slo(5.0, None), best_ttft=10.0)
    assert len(found.best.rounds) == 3


def side(ttft=10.0, itl=1.0, answers=((1,), (2,))):
    return Side((Round(1.0, 1.0, 2, (ttft,) * 2, (itl,) * 2, answers),))


def comparison(best, candidate, low=1.05, estimate=1.1, high=1.15):
    different = sum(a != b for a, b in zip(best.rounds[0].answers, candidate.rounds[0].answers, strict=True))
    return Comparison(best, candidate, Interval(estimate, low, high), False, different)


SLO = Goal("throughput", Slo(20.0, None), 8)


@pytest.mark.parametrize(
    ("best", "candidate", "interval", "verdict", "said"),
    [
        (10, 15, (1.05, 1.1, 1.15), "kept", "faster"),
        (10, 25, (1.05, 1.1, 1.15), "not kept", "would miss ttft:20: p95 ttft 25 ms"),
        (30, 15, (0.7, 0.8, 0.9), "kept", "keeps ttft:20, which the best so far does not"),
        (30, 25, (0.7, 0.8, 0.9), "kept", "nearer to ttft:20"),
        (30, 31, (1.05, 1.1, 1.15), "not kept", "misses ttft:20"),
        (10, 15, (0.8, 0.9, 0.95), "not kept", "slower"),
    ],
)
def test_no_candidate_that_breaks_the_limits_is_kept(best, candidate, interval, verdict, said):
    low, estimate, high = interval
    found = comparison(side(best), side(candidate), low, estimate, high)
    assert judge(SLO, "exact", found)[0] == verdict
    assert said in judge(SLO, "exact", found)[1]


def test_answers_that_differ_are_said_or_refused():
    found = comparison(side(), side(answers=((1,), (3,))))
    assert judge(Goal("latency"), "exact", found) == (
        "not kept",
        "1 of 2 answers differ, which must not be: please report it",
    )
    assert (
        judge(Goal("latency"), "rounding", found)[1] == "faster; rounds in another order: 1 of 2 greedy answers differ"
    )
    assert "keeps less precision: 1 of 2" in judge(Goal("latency"), "lossy", found)[1]
    assert judge(Goal("latency"), "exact", comparison(side(), side())) == ("kept", "faster")


def test_the_95th_percentile_is_over_all_rounds():
    rounds = tuple(Round(1.0, 1.0, 1, (float(n),), (1.0,), ((1,),)) for n in range(1, 101))
    assert Side(rounds).ttft_ms_p95 == pytest.approx(95.05)
