"""The way through the variables: each value against the best options so far, kept when it is faster without doubt."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from time import monotonic
from typing import TYPE_CHECKING, Any

from lpx.bench.tune.comparison import LEAST_GAIN, Comparison, Side, compare, warm_up
from lpx.bench.tune.goal import Goal
from lpx.bench.tune.measurement import comparison_measurement
from lpx.bench.tune.state import TuneState
from lpx.bench.tune.variables import Exactness, Situation, Variable, variables
from lpx.bench.tune.workload import Workload, first_workload, sized
from lpx.bench.weather import MUCH_OTHERS, OthersWatch
from lpx.errors import LpxError

if TYPE_CHECKING:
    from lpx.bench.measurement import Measurement
    from lpx.engine.engine import Engine
    from lpx.options import EngineOptions

_ROUNDS_EXPECTED = 5  # of a comparison, for sizing the rounds by the budget
_LONGEST_ROUND_S, _SHORTEST_ROUND_S = 8.0, 0.5
_CHECK_SHARE = 0.15  # of the budget, kept for comparing the outcome with the start
_NO_TIME = "no time left"  # why a step was not tried
CHECK = "all together"  # the option that a step names when it compares the outcome with the start

Verdict = str  # "kept", "not kept", "not tried"


@dataclass(frozen=True, slots=True)
class Step:
    """One value that was compared, or why it was not."""

    option: str
    value: Any  # JSON
    verdict: Verdict
    why: str
    ratio: float | None = None  # speed, of the best before
    low: float | None = None  # of the interval of `CONFIDENCE`
    high: float | None = None
    rounds: int = 0
    run_id: int | None = None  # in the ledger

    @property
    def kept(self) -> bool:
        return self.verdict == "kept"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known when the tuning ends, whole or not."""

    values: dict[str, Any]  # options that make the model faster than the start
    steps: tuple[Step, ...]
    workload: Workload | None
    best: Side | None  # the last that was measured of the best options
    finished: bool  # nothing is left to try
    interrupted: bool
    others_share: float  # of all processors, that other programs used meanwhile
    excess: float  # over the limits, see `Slo.excess`; up to 1 they are kept

    @property
    def disturbed(self) -> bool:
        """Whether others used so much of the machine that other values may be best on a quiet one."""
        return self.others_share > MUCH_OTHERS

    @property
    def keeps_slo(self) -> bool:
        return self.excess <= 1

    @property
    def out_of_time(self) -> tuple[Step, ...]:
        """What was not tried because the time was over."""
        return tuple(step for step in self.steps if step.why == _NO_TIME)


Record = Callable[["Measurement", str], "int | None"]  # with what was tried, as `label` says it
Tell = Callable[[str], None]


class Tuner:
    """One tuning. `start` are the options to begin with, `fixed` names those that are not to be changed.

    `record` keeps a comparison and returns the id of its run; `save` is called when a step is done. Raises what loading
    the first engine raises.
    """

    def __init__(
        self,
        start: EngineOptions,
        goal: Goal,
        state: TuneState,
        *,
        fixed: frozenset[str] = frozenset(),
        budget_s: float = 480.0,
        record: Record = lambda measurement, tried: None,
        save: Callable[[TuneState], None] = lambda state: None,
        tell: Tell = lambda what: None,
    ) -> None:
        self._start, self._goal, self._state = start, goal, state
        self._fixed, self._record, self._save, self._tell = fixed, record, save, tell
        self._ends = monotonic() + budget_s
        self._budget_s = budget_s
        # The outcome is compared with the start at the end of each run.
        state.steps = [step for step in state.steps if step["option"] != CHECK]
        self._steps = [Step(**step) for step in state.steps]
        self._workload = None if state.workload is None else Workload(**state.workload)
        self._best: Side | None = None
        self._short_of_time = False
        self._engine: Engine | None = None  # with the best options so far

    def run(self) -> Outcome:
        """Go through all variables, or as far as budget and user let it; Ctrl-C ends it with what is known."""
        finished = interrupted = False
        watch = OthersWatch()
        try:
            self._tell("loading")
            self._engine = self._load(self._state.values)
            if not self._state.start:
                self._state.start = dict(self._situation().in_use)
            self._size_workload()
            for variable in variables(self._goal):
                self._try_variable(variable)
            self._check()
            finished = not self._short_of_time
        except KeyboardInterrupt:
            interrupted = True
        finally:
            if self._engine is not None:
                self._engine.close()
        excess = 0.0 if self._best is None else self._best.excess(self._goal.slo)
        return Outcome(
            values=dict(self._state.values),
            steps=tuple(self._steps),
            workload=self._workload,
            best=self._best,
            finished=finished,
            interrupted=interrupted,
            others_share=watch.share(),
            excess=excess,
        )

    def _size_workload(self) -> None:
        """Warm the first engine up, see what it does, and make rounds as long as the budget allows."""
        from lpx.bench.tune.workload import encode_prompts, run_round

        assert self._engine is not None
        self._tell("warming up")
        first = self._workload or first_workload(self._goal.concurrency)
        warm_up(self._engine, first)
        done = run_round(self._engine, encode_prompts(self._engine, first), first)
        self._best = Side((done,))
        if self._workload is not None:
            return
        candidates = sum(1 for variable in variables(self._goal) for _ in self._untried(variable))
        wanted = self._budget_s / (2 * _ROUNDS_EXPECTED * (candidates + 2))
        self._workload = sized(first, done.seconds, max(_SHORTEST_ROUND_S, min(_LONGEST_ROUND_S, wanted)))
        self._state.workload = self._workload.to_json()

    def _untried(self, variable: Variable) -> Iterator[Any]:
        """Values that no step is about yet; they may change with what is kept, so ask again after each step."""
        if variable.option in self._fixed or (variable.exactness == "lossy" and not self._goal.allow_lossy):
            return
        done = [step.value for step in self._steps if step.option == variable.option]
        done.append(self._state.start.get(variable.option))
        yield from (value for value in variable.values(self._situation()) if value not in done)

    def _situation(self) -> Situation:
        from lpx import _native

        assert self._engine is not None
        info = self._engine.info
        return Situation(
            goal=self._goal,
            in_use={
                name: getattr(info, name)
                for name in ("threads", "isa", "max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype")
            },
            logical_cpus=usable_processors(),
            isas=tuple(_native.available_isas()),
        )

    def _try_variable(self, variable: Variable) -> None:
        if variable.option in self._fixed:
            self._skip(variable.option, "given, so it is not changed")
        elif variable.exactness == "lossy" and not self._goal.allow_lossy:
            self._skip(variable.option, "changes answers: --allow-lossy tries it")
        while (value := next(self._untried(variable), None)) is not None:
            if monotonic() > self._ends - _CHECK_SHARE * self._budget_s:
                self._short_of_time = True
                self._steps.append(Step(variable.option, value, "not tried", _NO_TIME))
                continue
            self._try_value(variable, value)

    def _skip(self, option: str, why: str) -> None:
        if not any(step.option == option for step in self._steps):
            self._add(Step(option, None, "not tried", why))

    def _try_value(self, variable: Variable, value: Any) -> None:
        assert self._engine is not None
        assert self._workload is not None
        name = describe(variable.option, value)
        values = {**self._state.values, variable.option: value}
        self._tell(f"{name}: loading")
        try:
            candidate = self._load(values)
        except LpxError as error:
            self._add(Step(variable.option, value, "not tried", str(error)))
            return
        try:
            warm_up(candidate, self._workload)
            clock = _Clock()
            found = self._compare(self._engine, candidate, name)
            tried = label(variable.option, value)
            run_id = self._keep_record(tried, found, self._state.values, values, candidate, clock)
            verdict, why = judge(self._goal, variable.exactness, found)
            step = _step_of(variable.option, value, verdict, why, found, run_id)
            if step.kept:
                self._state.values = values
                self._engine, candidate = candidate, self._engine
            self._best = found.candidate if step.kept else found.best
            self._add(step)
        finally:
            candidate.close()

    def _compare(self, best: Engine, candidate: Engine, name: str) -> Comparison:
        assert self._workload is not None

        def tell(rounds: int, ratio: float | None) -> None:
            self._tell(f"{name}: round {rounds}, {ratio:.3f} times the speed")

        open_steps = sum(1 for variable in variables(self._goal) for _ in self._untried(variable))
        left = max(0.0, self._ends - _CHECK_SHARE * self._budget_s - monotonic())
        share = 1.5 * left / max(1, open_steps)  # most are settled early, so one may take more than its share
        return compare(best, candidate, self._workload, slo=self._goal.slo, seconds=share, tell=tell)

    def _check(self) -> None:
        """Several gains that were each significant might still be none together: compare with the start once more."""
        if not self._state.values:
            return
        assert self._engine is not None
        assert self._workload is not None
        self._tell("comparing with the start")
        start = self._load({})
        try:
            warm_up(start, self._workload)
            clock = _Clock()
            left = max(0.0, self._ends - monotonic())
            found = compare(start, self._engine, self._workload, slo=self._goal.slo, seconds=left)
            tried = label(CHECK, self._state.values)
            run_id = self._keep_record(tried, found, {}, self._state.values, self._engine, clock)
            worse = found.slower and not (self._goal.slo and found.best.excess(self._goal.slo) > 1)
            verdict = "not kept" if worse else "kept"
            why = _against_start(found, worse)
            step = _step_of(CHECK, self._state.values, verdict, why, found, run_id)
            self._best = found.best if worse else found.candidate
            if worse:
                self._state.values = {}
            self._add(step)
        finally:
            start.close()

    def _keep_record(
        self,
        tried: str,
        found: Comparison,
        best: Mapping[str, Any],
        values: Mapping[str, Any],
        candidate: Engine,
        clock: _Clock,
    ) -> int | None:
        assert self._workload is not None
        measurement = comparison_measurement(
            found,
            best=self._options(best),
            candidate=self._options(values),
            in_use=candidate.info,
            workload=self._workload,
            started=clock.started,
            seconds=monotonic() - clock.begun,
        )
        return self._record(measurement, tried)

    def _add(self, step: Step) -> None:
        self._steps.append(step)
        self._state.steps.append(dataclasses.asdict(step))
        self._save(self._state)

    def _options(self, values: Mapping[str, Any]) -> EngineOptions:
        return dataclasses.replace(self._start, **values)

    def _load(self, values: Mapping[str, Any]) -> Engine:
        from lpx.engine.engine import Engine

        return Engine.load(self._options(values))


class _Clock:
    def __init__(self) -> None:
        self.started, self.begun = datetime.now(timezone.utc), monotonic()


def _step_of(option: str, value: Any, verdict: Verdict, why: str, found: Comparison, run_id: int | None) -> Step:
    low, high = (None, None) if found.hopeless else (found.ratio.low, found.ratio.high)
    return Step(option, value, verdict, why, found.ratio.estimate, low, high, len(found.best.rounds), run_id)


def usable_processors() -> int:
    """Hardware threads that this process may run on."""
    return len(os.sched_getaffinity(0))


def judge(goal: Goal, exactness: Exactness, found: Comparison) -> tuple[Verdict, str]:
    """Whether a candidate is to be kept, and why, in words."""
    differ = _differences(exactness, found)
    if exactness == "exact" and found.different_answers:
        return "not kept", f"{differ}, which must not be: please report it"
    verdict, why = _judge_speed(goal, found)
    return verdict, f"{why}{differ}"


def _judge_speed(goal: Goal, found: Comparison) -> tuple[Verdict, str]:
    """The same by the limits and the speed alone."""
    slo, excess, before = goal.slo, found.candidate.excess(goal.slo), found.best.excess(goal.slo)
    if slo and before > 1:
        if excess <= 1:
            return "kept", f"keeps {slo.describe()}, which the best so far does not"
        if excess < 0.95 * before:
            return "kept", f"nearer to {slo.describe()}: {_missed(found.candidate)}"
        return "not kept", f"misses {slo.describe()}: {_missed(found.candidate)}"
    if slo and excess > 1:
        return "not kept", f"would miss {slo.describe()}: {_missed(found.candidate)}"
    if found.hopeless:
        return "not kept", "far slower: given up early"
    if found.faster:
        return "kept", "faster"
    if found.ratio.high < 1:
        return "not kept", "slower"
    if found.ratio.high < 1 + LEAST_GAIN:
        return "not kept", f"gains less than {LEAST_GAIN:.0%}"
    return "not kept", "no clear difference"


def _differences(exactness: Exactness, found: Comparison) -> str:
    """How many answers differ, of an option that may change them; of an exact one only where some do, wrongly."""
    count, all_of = found.different_answers, len(found.best.rounds[0].answers)
    if exactness == "exact":
        return f"{count} of {all_of} answers differ" if count else ""
    kind = "rounds in another order" if exactness == "rounding" else "keeps less precision"
    return f"; {kind}: {count} of {all_of} greedy answers differ"


def _against_start(found: Comparison, worse: bool) -> str:
    """What comparing the outcome with the start has shown, in words."""
    if worse:
        return "slower than the start: back to it"
    if found.faster:
        return "faster than the start"
    if found.slower:
        return "slower than the start, which misses the limits"
    if found.ratio.low > 1 - LEAST_GAIN and found.ratio.high < 1 + LEAST_GAIN:
        return "as fast as the start"
    return "against the start: not decided; a longer --duration tells more"


def _missed(side: Side) -> str:
    return f"p95 ttft {side.ttft_ms_p95:.0f} ms, itl {side.itl_ms_p95:.1f} ms"


def describe(option: str, value: Any) -> str:
    """An option as a table shows it: `speculative-config ngram`, `threads 1`."""
    spelled = option.replace("_", "-")
    if value is None:
        return spelled
    if isinstance(value, Mapping):
        return f"{spelled} {value.get('method', '')}".rstrip() if option != CHECK else option
    return f"{spelled} {value:g}" if isinstance(value, float) else f"{spelled} {value}"


def label(option: str, value: Any) -> str:
    """What was tried, as a tag of its run: `threads=1`, `speculative-config=ngram`, `all-together`."""
    return CHECK.replace(" ", "-") if option == CHECK else describe(option, value).replace(" ", "=", 1)
