"""Two engines in alternation on the same requests, until it is clear which is faster, or that it will not be.

Both are loaded and the idle one sleeps. In each round both run, the first of the two changing, so that whatever changes
on the machine from round to round meets both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from lpx.bench.statistics import Interval, alternating_ratio, percentile
from lpx.bench.tune.goal import Slo
from lpx.bench.tune.workload import Round, Workload, encode_prompts, joined, run_round

if TYPE_CHECKING:
    from lpx.engine.engine import Engine

# An interval that is looked at after every round is wrong more often than its confidence says, hence the high one.
CONFIDENCE = 0.99
LEAST_GAIN = 0.02  # a smaller one is not worth another option
LEAST_ROUNDS, MOST_ROUNDS = 3, 9
_HOPELESS_AT_ONCE, _HOPELESS_TWICE = 0.6, 0.85  # speeds after one round, and in both of two

Tell = Callable[[int, float | None], None]  # rounds done, ratio so far


@dataclass(frozen=True, slots=True)
class Side:
    """What one engine showed."""

    rounds: tuple[Round, ...]

    @property
    def scores(self) -> list[float]:
        return [done.score for done in self.rounds]

    @property
    def ttft_ms_p95(self) -> float:
        return percentile(joined([done.ttft_ms for done in self.rounds]), 95)

    @property
    def itl_ms_p95(self) -> float:
        return percentile(joined([done.itl_ms for done in self.rounds]), 95)

    def excess(self, slo: Slo) -> float:
        return slo.excess(self.ttft_ms_p95, self.itl_ms_p95)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many times the speed of `best` the `candidate` has."""

    best: Side
    candidate: Side
    ratio: Interval
    hopeless: bool  # given up after a round or two
    different_answers: int  # of one round of requests

    @property
    def faster(self) -> bool:
        return not self.hopeless and self.ratio.low > 1 and self.ratio.estimate >= 1 + LEAST_GAIN

    @property
    def slower(self) -> bool:
        return self.hopeless or self.ratio.high < 1


def compare(
    best: Engine,
    candidate: Engine,
    workload: Workload,
    *,
    slo: Slo,
    seconds: float = math.inf,
    most_rounds: int = MOST_ROUNDS,
    tell: Tell = lambda rounds, ratio: None,
) -> Comparison:
    """At least three rounds (fewer when it is hopeless), then on while the answer is open, for about `seconds`.

    Raises what the engines raise.
    """
    prompts = encode_prompts(best, workload)
    rounds: tuple[list[Round], list[Round]] = ([], [])
    engines = (best, candidate)
    started = monotonic()
    while True:
        number = len(rounds[0])
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            rounds[side].append(run_round(engines[side], prompts, workload))
        found = _judge(rounds)
        tell(number + 1, found.ratio.estimate)
        if _settled(found, slo) or number + 1 >= most_rounds:
            return found
        each = (monotonic() - started) / (number + 1)
        if number + 1 >= LEAST_ROUNDS and monotonic() - started + each > seconds:
            return found


def _judge(rounds: tuple[Sequence[Round], Sequence[Round]]) -> Comparison:
    best, candidate = (Side(tuple(side)) for side in rounds)
    ratios = [ours / theirs for ours, theirs in zip(candidate.scores, best.scores, strict=True)]
    hopeless = (len(ratios) == 1 and ratios[0] < _HOPELESS_AT_ONCE) or (
        len(ratios) == 2 and max(ratios) < _HOPELESS_TWICE
    )
    return Comparison(
        best=best,
        candidate=candidate,
        ratio=alternating_ratio(candidate.scores, best.scores, CONFIDENCE),
        hopeless=hopeless,
        different_answers=sum(
            ours != theirs for ours, theirs in zip(rounds[1][0].answers, rounds[0][0].answers, strict=True)
        ),
    )


def _settled(found: Comparison, slo: Slo) -> bool:
    """Whether more rounds would change nothing."""
    rounds = len(found.best.rounds)
    if slo and found.best.excess(slo) > 1:  # a slower candidate that keeps the limits is wanted then
        return rounds >= LEAST_ROUNDS
    if found.hopeless:
        return True
    return rounds >= LEAST_ROUNDS and (found.faster or found.ratio.high < 1 + LEAST_GAIN)


def warm_up(engine: Engine, workload: Workload) -> Round:
    """A short round that does not count: pages are touched, and drafting learns what rows cost."""
    prompts, concurrency = min(2, workload.prompts), min(4, workload.concurrency)
    short = Workload(prompts, min(32, workload.max_tokens), concurrency, max(prompts, concurrency))
    return run_round(engine, encode_prompts(engine, short), short)
