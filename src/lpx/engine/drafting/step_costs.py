"""What a decode step costs, by its number of rows: measured once, then corrected by every step that runs; and what
lies between two steps."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from time import perf_counter

from lpx.runtime.step import Executor, SamplerSettings, SequenceInput, StepBatch

# Rows that are measured, in an order in which the first tell most; between them costs are interpolated. Behind a
# context, if there is room for one, the fewest and the most tell what attention adds.
_FEWEST, _MOST = 1, 16
_MEASURED = (1, 4, 8, 16, 2, 3, 6, 12)
_CONTEXT, _LEAST_CONTEXT = 512, 128
_MOST_SECONDS = 0.5
# Costs relative to one row, until they are measured: with fast products of signed bytes the weights that are read
# count, without them arithmetic does from few rows on.
_ASSUMED_FAST = {1: 1.0, 2: 1.1, 3: 1.15, 4: 1.25, 6: 1.45, 8: 1.7, 12: 2.3, 16: 3.0}
_ASSUMED_SLOW = {1: 1.0, 2: 1.3, 3: 1.55, 4: 1.8, 6: 2.7, 8: 3.5, 12: 5.2, 16: 6.9}
# Steps with neighbouring numbers of rows share what is learned: up to these numbers.
_CLASS_ENDS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
_OWN, _FORGET = 0.03, 0.99
_MOST_OWN = 0.2  # the measured relations are trusted more than the steps of a busy machine
# Logarithms, as are all errors: how far a step's time is from any expectation; the paces of the machine from what they
# were a step before, when they were measured at load, and when nothing is known; and the furthest that a step is
# believed to be.
_NOISE, _DRIFT, _MEASURED_DOUBT, _DOUBT, _WILDEST = 0.08, 0.02, 0.1, 0.25, 0.3
_MOST_ARITHMETIC = math.log(3.0)
_NEARBY = 1.25  # factor of the pace of arithmetic within which its share of a step is looked for
# Milliseconds from the end of a step to the begin of the next, until steps have shown them; what lies further apart
# than this many times as much was not spent on the next step alone.
_ASSUMED_BETWEEN, _LONGEST_BETWEEN, _BETWEEN_SHARE = 0.25, 4.0, 0.1


class StepCosts:
    """Milliseconds of a decode step of `rows` rows that see `context` tokens each, as a mean.

    What was measured at load changes with the machine: neighbours take memory bandwidth, or two processors become one
    core's threads. Time that weights take to be read and time of arithmetic then change apart, and as rows only add
    arithmetic, a slower one has the effect of more rows: T(rows) becomes scale * T(slower * rows). A step that runs
    corrects both factors, as a Kalman filter: what has not been seen for long is the most uncertain, and learned the
    fastest. It also corrects the costs of its own class of rows. These corrections fade while the class does not run,
    so that a number of rows that was slow once is tried again.
    """

    def __init__(self, isa: str = "") -> None:
        slow = isa in ("avx2", "portable")
        self._rows = list(_ASSUMED_SLOW)
        self._base = list((_ASSUMED_SLOW if slow else _ASSUMED_FAST).values())
        self._scale: float | None = None  # logarithm; None: no step has run
        self._arithmetic = 0.0  # logarithm: how much slower arithmetic is, as against the scale
        self._slower = 1.0
        # Of the errors of these two: variance, covariance, variance.
        self._doubt = (_DOUBT**2, 0.0, _DOUBT**2)
        self._own = [0.0] * (len(_CLASS_ENDS) + 1)  # logarithms
        self._factors = [1.0] * len(self._own)  # of the base, by class: what `_scale` and `_own` say
        self._token_ms = (0.0, 0.0)  # what each token of the context adds to a step and to each of its rows
        # From one call of the executor to the next: choosing rows, looking for drafts, tokens to text.
        self.between_ms = _ASSUMED_BETWEEN

    def measure(self, executor: Executor, vocab_size: int, max_rows: int, max_model_len: int) -> None:
        """Measure on an executor whose KV blocks are all free; takes half a second at most."""
        facts = executor.info
        room = min(max_model_len, facts.num_blocks * facts.block_size)
        context = min(_CONTEXT, room - _MOST) if room >= _LEAST_CONTEXT + _MOST and max_rows >= _MOST else 0
        best = _measured(executor, vocab_size, min(max_rows, room), context)
        self._take_in({rows: ms for (rows, behind), ms in best.items() if not behind})
        self._take_in_context(best, context)

    def _take_in(self, best: Mapping[int, float]) -> None:
        """Measured milliseconds by rows."""
        if 1 not in best or len(best) < 2:
            return
        # What was not reached keeps its assumed relation to the nearest smaller number of rows that was.
        base: list[float] = []
        for at, rows in enumerate(self._rows):
            ms = best.get(rows)
            if ms is None:
                ms = base[-1] * self._base[at] / self._base[at - 1]
            base.append(max(ms, base[-1]) if base else ms)
        self._base = base
        self._scale = 0.0
        self._doubt = (_MEASURED_DOUBT**2, 0.0, _MEASURED_DOUBT**2)
        self._refresh()

    def _take_in_context(self, best: Mapping[tuple[int, int], float], context: int) -> None:
        """Measured milliseconds by rows and by the tokens before them."""
        if context and (_MOST, context) in best:  # the last of the points that tell
            few, many = (best[rows, context] - best[rows, 0] for rows in (_FEWEST, _MOST))
            of_row = max(0.0, (many - few) / (_MOST - _FEWEST))
            self._token_ms = max(0.0, few - of_row) / context, of_row / context

    @property
    def known(self) -> bool:
        """Whether a step has run."""
        return self._scale is not None

    def ms(self, rows: int, context: float = 0.0) -> float:
        """Of one step; in an unknown unit before the first has run."""
        cost = self._estimate(rows, context)
        return cost if rows == 1 else max(cost, self._estimate(1, context))  # more rows are never faster

    def shown(self) -> dict[int, float]:
        """Milliseconds by rows, for people; empty while costs are not known."""
        return {rows: self.ms(rows) for rows in (1, 2, 4, 8, 16)} if self.known else {}

    def observe(self, rows: int, ms: float, context: float = 0.0) -> None:
        """Take in a decode step that ran."""
        if ms <= 0:
            return
        if self._scale is None:
            self._scale = math.log(ms / self._interpolated(rows))  # nothing is known about the context
            self._refresh()
            return
        own = bisect_left(_CLASS_ENDS, rows)
        expected = self._at_pace(rows, context, self._slower) * self._factors[own]
        error = max(-_WILDEST, min(_WILDEST, math.log(ms / expected)))
        share = 0.0  # of arithmetic in what was expected; one row is what the scale is about
        if rows > 1:
            more, less = (self._at_pace(rows, context, self._slower * by) for by in (_NEARBY, 1 / _NEARBY))
            share = math.log(more / less) / (2 * math.log(_NEARBY))
        self._correct(error, share)
        for i in range(len(self._own)):
            self._own[i] *= _FORGET
        self._own[own] = max(-_MOST_OWN, min(_MOST_OWN, self._own[own] + _OWN * error))
        self._refresh()

    def _correct(self, error: float, share: float) -> None:
        """Of a step whose time depends on the scale, and by `share` on how much slower arithmetic is."""
        scale, both, arithmetic = self._doubt
        scale, arithmetic = (min(doubt + _DRIFT**2, _DOUBT**2) for doubt in (scale, arithmetic))
        of_scale, of_arithmetic = scale + share * both, both + share * arithmetic
        total = of_scale + share * of_arithmetic + _NOISE**2
        self._scale = (self._scale or 0.0) + of_scale / total * error
        slower = self._arithmetic + of_arithmetic / total * error
        self._arithmetic = max(-_MOST_ARITHMETIC, min(_MOST_ARITHMETIC, slower))
        self._doubt = (
            scale - of_scale * of_scale / total,
            both - of_scale * of_arithmetic / total,
            arithmetic - of_arithmetic * of_arithmetic / total,
        )

    def observe_between(self, ms: float) -> None:
        """Take in the time between two steps, of which the second was there to be run when the first had ended."""
        self.between_ms += _BETWEEN_SHARE * (min(ms, _LONGEST_BETWEEN * self.between_ms) - self.between_ms)

    def _refresh(self) -> None:
        self._factors = [math.exp((self._scale or 0.0) + own) for own in self._own]
        self._slower = math.exp(self._arithmetic)

    def _estimate(self, rows: int, context: float) -> float:
        return self._at_pace(rows, context, self._slower) * self._factors[bisect_left(_CLASS_ENDS, rows)]

    def _at_pace(self, rows: int, context: float, slower: float) -> float:
        """With arithmetic that many times slower than at load; before the corrections of the scale and of the class."""
        of_step, of_row = self._token_ms
        alike = slower * rows  # rows that took as long at load
        return self._interpolated(alike) + context * (of_step + of_row * alike)

    def _interpolated(self, rows: float) -> float:
        table, base = self._rows, self._base
        if rows <= table[0]:
            return base[0]
        at = bisect_left(table, rows)
        if at < len(table) and table[at] == rows:
            return base[at]
        if at == len(table):  # beyond: as the last rows
            slope = (base[-1] - base[-3]) / (table[-1] - table[-3])
            return base[-1] + slope * (rows - table[-1])
        low, high = table[at - 1], table[at]
        return base[at - 1] + (base[at] - base[at - 1]) * (rows - low) / (high - low)


def _measured(executor: Executor, vocab_size: int, most: int, context: int) -> dict[tuple[int, int], float]:
    """The fastest of up to three greedy steps of one sequence, by rows and by tokens before them: none or `context`.

    What these tokens hold makes no difference to the time, so they are not computed.
    """
    block_table = range(-(-(context + min(most, _MOST)) // executor.info.block_size))
    points = [(rows, 0) for rows in _MEASURED]
    if context:
        points[4:4] = [(_FEWEST, context), (_MOST, context)]

    def run(rows: int, behind: int) -> float:
        token_ids = [row % vocab_size for row in range(rows)]
        step = SequenceInput(token_ids, behind, block_table, sample_rows=rows, sampling=SamplerSettings())
        started = perf_counter()
        executor.step(StepBatch([step]))
        return 1e3 * (perf_counter() - started)

    best: dict[tuple[int, int], float] = {}
    end = perf_counter() + _MOST_SECONDS
    run(1, 0)  # not counted: threads and caches wake up
    for _ in range(3):
        for point in points:
            if point[0] <= most and perf_counter() < end:
                best[point] = min(best.get(point, math.inf), max(run(*point), 1e-6))
    return best
