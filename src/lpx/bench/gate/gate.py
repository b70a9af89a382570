"""The gate: a workload measured now against its baseline, or one side against another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from statistics import median
from time import monotonic, sleep
from typing import Any, TypeVar

from lpx.bench.gate.adjusted import Comparison, compare_pieces
from lpx.bench.gate.conditions import Condition, short_name
from lpx.bench.gate.likeness import Difference, machine_differences, refuse_unlike, subject_differences
from lpx.bench.gate.pairs import Pair, PairedWorkload, compare_pairs
from lpx.bench.gate.pieces import Piece, by_session, figures_of, pieces_of, pieces_with, samples_of
from lpx.bench.gate.sessions import Workload
from lpx.bench.gate.trial import LEAST_SESSIONS, Decision, Outcome, Trial, run_trial
from lpx.bench.ledger import Run
from lpx.bench.measurement import Measurement, Subject
from lpx.bench.weather import OthersWatch
from lpx.doctor.environment import Environment
from lpx.errors import LpxError

MOST_OTHERS = 0.15
GATE_SECONDS = 120.0
# So that 8 % can be told from a limit of 5 % where sessions differ by 3 %; tests/bench/gate/test_error_rates.py.
BASELINE_SESSIONS = 24
BASELINE_SECONDS = 600.0
MOST_SESSIONS = 100
_HOPELESS_SESSIONS = 8  # all of them disturbed: the others will be, too
_LOOKS = 3  # for other programs, a second each
_OFTEN_UNLIKE = frozenset({"machine", "device", "engine"})  # the sides of a pair

Progress = Callable[[int, float], None]  # sessions and seconds so far
T = TypeVar("T")


class CannotJudgeError(LpxError):
    """The gate cannot say whether anything is slower."""

    exit_code = 2
    help_code = "LPX-E091"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """What the gate says."""

    against: str  # the baseline or the other side, as the user knows it
    outcome: Outcome
    decisions: tuple[Decision, ...]
    reasons: tuple[str, ...]  # why nothing can be said, and what would help
    differences: tuple[Difference, ...]
    before: Subject
    after: Subject
    seconds: float
    most_seconds: float
    others_share: float | None  # that other programs used, the middle of all pieces
    measurement: Measurement  # of what was measured now


def measure_baseline(
    workload: Workload,
    kind: str,
    settings: Mapping[str, Any],
    *,
    sessions: int = BASELINE_SESSIONS,
    seconds: float = BASELINE_SECONDS,
    most_others: float = MOST_OTHERS,
    progress: Progress | None = None,
) -> Measurement:
    """So many undisturbed sessions, or as many as there is time for in `seconds`, four at least.

    How many there are does not depend on what they show, so the gate's rule is as right as with a fixed number. Raises
    CannotJudgeError when other programs left too few of them undisturbed.
    """
    started, began = monotonic(), datetime.now(timezone.utc)
    pieces: list[Piece] = []
    for number in range(MOST_SESSIONS):
        before = monotonic()
        pieces += workload.session(number)
        now = monotonic()
        if progress is not None:
            progress(number + 1, now - started)
        quiet = len(by_session(undisturbed(pieces, most_others)))
        if quiet >= max(sessions, LEAST_SESSIONS) or (number + 1 >= _HOPELESS_SESSIONS and not quiet):
            break
        if number + 1 >= LEAST_SESSIONS and now - started + (now - before) > seconds:
            break
    _refuse_disturbed(pieces, most_others, "the baseline")
    return _measurement(workload, kind, settings, pieces, began, monotonic() - started)


def check_quiet(most_others: float = MOST_OTHERS) -> None:
    """Look at the machine for a moment, before minutes go into measuring on it.

    Raises CannotJudgeError when other programs use more than `most_others` of the processors all that time.
    """
    share = 0.0
    for _ in range(_LOOKS):
        watch = OthersWatch()
        sleep(1.0)
        share = watch.share()
        if share <= most_others:
            return
    raise CannotJudgeError(
        f"other programs use {100 * share:.0f} % of the processors, or a hypervisor gives them away: what is measured "
        f"now would say little. End them and try again, or allow more with --most-others (now {100 * most_others:g} %)"
    )


def run_gate(
    baseline: Run,
    workload: Workload,
    conditions: Sequence[Condition],
    *,
    name: str,
    environment: Environment,
    model_sha256: str | None = None,
    allowed: frozenset[str] = frozenset(),
    settings: Mapping[str, Any] | None = None,
    seconds: float = GATE_SECONDS,
    most_others: float = MOST_OTHERS,
    progress: Progress | None = None,
) -> GateReport:
    """Measure the workload of `baseline` until every condition is decided or `seconds` have passed.

    `settings` are what is measured, where that is not the baseline's own; `model_sha256` is of the model as it is now.
    Raises UnlikeError for another machine, model or engine than the baseline's unless they are `allowed`, and
    CannotJudgeError for a baseline that holds too little.
    """
    measured = baseline.measurement
    earlier = pieces_of(measured.samples)
    if not earlier:
        raise CannotJudgeError(
            f"run {baseline.id} was not measured for a gate: one run says nothing about how much its figures vary. "
            f"`lpx bench baseline set {name} {baseline.id}` measures its workload so"
        )
    _check_figures(conditions, earlier, measured.kind)
    _refuse_disturbed(earlier, most_others, "the baseline")
    quiet = undisturbed(earlier, most_others)
    differences = machine_differences(baseline.environment, environment)
    refuse_unlike(differences, allowed)
    found: list[Difference] = []

    def session(number: int) -> list[Piece]:
        pieces = workload.session(number)
        if number == 0 and workload.subject is not None:  # before the other sessions take their time
            found.extend(subject_differences(measured.subject, _hashed(workload.subject, model_sha256)))
            refuse_unlike(found, allowed)
        return pieces

    def compare(pieces: Sequence[Piece], condition: Condition, confidence: float) -> Comparison | None:
        kept = undisturbed(pieces, most_others)
        if len(by_session(pieces_with(kept, condition.figure))) < LEAST_SESSIONS:
            return None
        usual = workload.usual_share(condition.figure)
        return compare_pieces(quiet, kept, condition.figure, confidence, usual)

    began = datetime.now(timezone.utc)
    trial = _run(session, compare, conditions, seconds, progress)
    subject = workload.subject
    assert subject is not None
    others = median(piece.others_share for piece in trial.samples)
    made = _measurement(workload, measured.kind, settings or measured.settings, trial.samples, began, trial.seconds)
    return GateReport(
        against=f"baseline {name} (run {baseline.id}, {measured.started:%Y-%m-%d %H:%M} UTC)",
        outcome=trial.outcome,
        decisions=trial.decisions,
        reasons=_reasons(trial, others, most_others, paired=False),
        differences=(*differences, *found),
        before=measured.subject,
        after=_hashed(subject, model_sha256),
        seconds=trial.seconds,
        most_seconds=seconds,
        others_share=others,
        measurement=replace(made, subject=_hashed(subject, model_sha256)),
    )


def run_paired_gate(
    workload: PairedWorkload,
    conditions: Sequence[Condition],
    *,
    against: str,
    settings: Mapping[str, Any],
    allowed: frozenset[str] = frozenset(),
    seconds: float = GATE_SECONDS,
    progress: Progress | None = None,
) -> GateReport:
    """Measure both sides in alternation until every condition is decided or `seconds` have passed.

    Sides may differ in whatever the user likes, but for the model, unless that is `allowed`. Raises UnlikeError, and
    CannotJudgeError for a figure that the workload does not have.
    """

    def session(number: int) -> list[Pair]:
        pairs = workload.session(number)
        if number == 0 and workload.subjects is not None:
            refuse_unlike(subject_differences(workload.subjects[1], workload.subjects[0]), allowed | _OFTEN_UNLIKE)
        names = {name for pair in pairs for name in pair.ours}
        _check_names(conditions, names, "this workload")
        return pairs

    def compare(pairs: Sequence[Pair], condition: Condition, confidence: float) -> Comparison | None:
        return compare_pairs(pairs, condition.figure, confidence)

    began = datetime.now(timezone.utc)
    trial = _run(session, compare, conditions, seconds, progress)
    assert workload.subjects is not None
    ours, theirs = workload.subjects
    figures = {
        f"{short_name(each.condition.figure)}_ratio": each.comparison.ratio.estimate
        for each in trial.decisions
        if each.comparison is not None
    }
    return GateReport(
        against=against,
        outcome=trial.outcome,
        decisions=trial.decisions,
        reasons=_reasons(trial, None, 1.0, paired=True),
        differences=tuple(subject_differences(theirs, ours)),
        before=theirs,
        after=ours,
        seconds=trial.seconds,
        most_seconds=seconds,
        others_share=None,
        measurement=Measurement(
            kind="compare", subject=ours, settings=settings, figures=figures, started=began, seconds=trial.seconds
        ),
    )


def _run(
    session: Callable[[int], Sequence[T]],
    compare: Callable[[Sequence[T], Condition, float], Comparison | None],
    conditions: Sequence[Condition],
    seconds: float,
    progress: Progress | None,
) -> Trial[T]:
    started = monotonic()

    def tell(sessions: int, decisions: Sequence[Decision]) -> None:
        if progress is not None:
            progress(sessions, monotonic() - started)

    return run_trial(session, compare, conditions, seconds=seconds, progress=tell)


def _measurement(
    workload: Workload,
    kind: str,
    settings: Mapping[str, Any],
    pieces: Sequence[Piece],
    began: datetime,
    seconds: float,
) -> Measurement:
    subject = workload.subject
    assert subject is not None
    return Measurement(
        kind=kind,
        subject=subject,
        settings=settings,
        figures=figures_of(pieces),
        samples=samples_of(pieces),
        batch_size=settings.get("batch_size") or settings.get("max_concurrency"),
        input_len=settings.get("input_len"),
        output_len=settings.get("output_len"),
        started=began,
        seconds=seconds,
    )


def undisturbed(pieces: Sequence[Piece], most_others: float = MOST_OTHERS) -> list[Piece]:
    """Those beside which other programs used no more than this share of the processors."""
    return [piece for piece in pieces if piece.others_share <= most_others]


def _refuse_disturbed(pieces: Sequence[Piece], most_others: float, what: str) -> None:
    if len(by_session(undisturbed(pieces, most_others))) < LEAST_SESSIONS:
        others = median(piece.others_share for piece in pieces)
        raise CannotJudgeError(
            f"while {what} was measured, other programs used {100 * others:.0f} % of the processors, or a hypervisor "
            "gave them away, and its figures say little. End them and measure again, or allow more with --most-others "
            f"(now {100 * most_others:g} %)"
        )


def _check_figures(conditions: Sequence[Condition], pieces: Sequence[Piece], kind: str) -> None:
    _check_names(conditions, figures_of(pieces).keys(), f"a baseline of the kind {kind!r}")


def _check_names(conditions: Sequence[Condition], names: Any, what: str) -> None:
    for condition in conditions:
        if condition.figure not in names:
            there = ", ".join(sorted(short_name(name) for name in names))
            raise CannotJudgeError(f"{what} has no figure {condition.name}; it has {there}")


def _hashed(subject: Subject, model_sha256: str | None) -> Subject:
    return subject if subject.model_sha256 or model_sha256 is None else replace(subject, model_sha256=model_sha256)


def _reasons(trial: Trial[Any], others: float | None, most_others: float, *, paired: bool) -> tuple[str, ...]:
    """Why a condition is undecided, each with what would help."""
    reasons: list[str] = []
    undecided = [each for each in trial.decisions if each.outcome is Outcome.UNDECIDED]
    if not undecided:
        return ()
    if any(each.comparison is None for each in undecided):
        share = "" if others is None else f": other programs used {100 * others:.0f} % of the processors"
        reasons.append(f"Too few sessions were undisturbed{share}. End them and try again, or raise --most-others.")
    for each in undecided:
        if each.comparison is None:
            continue
        if not paired and each.comparison.weather[0] is None:
            reasons.append(
                f"{each.condition.name}: the server is on another machine, whose weather cannot be seen; only "
                "--against, with both servers in alternation, can tell."
            )
            continue
        if each.comparison.weather_hides_it:
            reasons.append(_weather_reason(each))
        elif not paired and 2 * each.comparison.sessions[0] <= each.comparison.sessions[1]:
            reasons.append(
                f"{each.condition.name}: the limit lies inside the interval, and most of that comes from the baseline, "
                f"which has {each.comparison.sessions[0]} sessions: make it anew with more time (lpx bench baseline "
                "set), or compare in alternation with --against."
            )
        else:
            more = " or compare in alternation with --against" if not paired else ""
            reasons.append(
                f"{each.condition.name}: the limit lies inside the interval. Give it more time (--duration){more}."
            )
    return tuple(dict.fromkeys(reasons))


def _weather_reason(decision: Decision) -> str:
    """Why sessions now and in the baseline cannot be brought into the same weather."""
    assert decision.comparison is not None
    before, after = decision.comparison.weather
    felt = decision.comparison.memory_share
    assert before is not None
    assert after is not None
    assert felt is not None
    return (
        f"{decision.condition.name}: memory is read at {after.read_bytes_per_second / 1e9:.1f} GB/s now and was at "
        f"{before.read_bytes_per_second / 1e9:.1f} when the baseline was measured; how much of that the workload feels "
        f"is not known well enough ({100 * felt.low:.0f} % to {100 * felt.high:.0f} %). More time helps only if the "
        "weather changes: compare in alternation with --against, make the baseline anew now, or make one over more "
        "time and weather (lpx bench baseline set, --duration)."
    )
