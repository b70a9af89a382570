"""Measuring on until every condition is decided, or the time is up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import Generic, TypeVar

from lpx.bench.gate.adjusted import Comparison
from lpx.bench.gate.conditions import Condition

LEAST_SESSIONS = 4
# Of two-sided intervals. A trial looks at its figures after each session, and the chance to be wrong once adds up, so
# every look but the last is surer than what the trial is to be: wrong in 5 of 100 where the truth is the limit itself.
# tests/bench/gate/test_error_rates.py has the rates.
CONFIDENCE = 0.98
LAST_CONFIDENCE = 0.92

Sample = TypeVar("Sample")


class Outcome(Enum):
    PASSED = 0
    FAILED = 1
    UNDECIDED = 2  # the values are exit codes


@dataclass(frozen=True, slots=True)
class Decision:
    """One condition, and what is known about it. Without a comparison there were too few sessions."""

    condition: Condition
    comparison: Comparison | None

    @property
    def outcome(self) -> Outcome:
        if self.comparison is None:
            return Outcome.UNDECIDED
        ratio, least = self.comparison.ratio, self.condition.least_ratio
        if ratio.high < least:
            return Outcome.FAILED
        return Outcome.PASSED if ratio.low > least else Outcome.UNDECIDED


@dataclass(frozen=True, slots=True)
class Trial(Generic[Sample]):
    """`outcome`: failed if one condition is broken, passed if all hold, else undecided."""

    decisions: tuple[Decision, ...]
    samples: tuple[Sample, ...]
    seconds: float

    @property
    def outcome(self) -> Outcome:
        outcomes = [decision.outcome for decision in self.decisions]
        if Outcome.FAILED in outcomes:
            return Outcome.FAILED
        return Outcome.UNDECIDED if Outcome.UNDECIDED in outcomes else Outcome.PASSED


def run_trial(
    measure_session: Callable[[int], Sequence[Sample]],
    compare: Callable[[Sequence[Sample], Condition, float], Comparison | None],
    conditions: Sequence[Condition],
    *,
    seconds: float,
    progress: Callable[[int, Sequence[Decision]], None] | None = None,
    clock: Callable[[], float] = monotonic,
) -> Trial[Sample]:
    """Sessions, numbered from 0, until all conditions are decided or `seconds` have passed.

    `compare` judges all samples so far, with a confidence; None: they are too few. `progress` gets the sessions so far
    and the decisions.
    """
    started = clock()
    samples: list[Sample] = []
    decisions: tuple[Decision, ...] = tuple(Decision(condition, None) for condition in conditions)
    sessions = 0

    def decide(confidence: float) -> tuple[Decision, ...]:
        return tuple(Decision(condition, compare(samples, condition, confidence)) for condition in conditions)

    while True:
        before = clock()
        samples += measure_session(sessions)
        sessions += 1
        now = clock()
        if sessions < LEAST_SESSIONS:
            if progress is not None:
                progress(sessions, decisions)
            continue
        last = now - started + (now - before) > seconds  # the next one would end too late
        decisions = decide(LAST_CONFIDENCE if last else CONFIDENCE)
        if progress is not None:
            progress(sessions, decisions)
        if last or all(decision.outcome is not Outcome.UNDECIDED for decision in decisions):
            return Trial(decisions, tuple(samples), now - started)
