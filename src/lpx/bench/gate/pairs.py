"""Two sides in alternation: the strongest form of a gate, because both have the same weather."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Protocol

from lpx.bench.gate.adjusted import TRIM, Comparison
from lpx.bench.gate.conditions import is_speed
from lpx.bench.gate.pieces import DECODE, PHASES, PREFILL, phase_of
from lpx.bench.gate.sessions import EngineWorkload, StreamEngine, changed_settings, open_stream_engine
from lpx.bench.headline import BAD_FIT
from lpx.bench.measurement import Measurement, Subject
from lpx.bench.sides.spec import EngineSide, ServerSide, Side, parse_side, parse_sides
from lpx.bench.statistics import trimmed_interval
from lpx.bench.workloads import measure_again
from lpx.errors import ConfigError

_ENGINE_WORKLOAD = {"input_len": 128, "output_len": 128, "batch_size": 1}
_SERVER_WORKLOAD = {"num_prompts": 8, "max_concurrency": 1}  # of the fixed set


@dataclass(frozen=True, slots=True)
class Pair:
    """The same piece of work on both sides, one right after the other. Figures are above 0."""

    phase: str
    session: int
    ours: Mapping[str, float]
    theirs: Mapping[str, float]

    def log_ratio(self, figure: str) -> float:
        """Of our performance over theirs; above 0, ours is better."""
        ratio = math.log(self.ours[figure] / self.theirs[figure])
        return ratio if is_speed(figure) else -ratio


class PairedWorkload(Protocol):
    @property
    def subjects(self) -> tuple[Subject, Subject] | None:
        """Ours and theirs; None before the first session."""
        ...

    def session(self, number: int) -> list[Pair]: ...


class EnginePairs:
    """Two engines, each in a process of its own and loaded anew for each session; one sleeps while the other works."""

    def __init__(self, ours: EngineSide, theirs: EngineSide, input_len: int, output_len: int, batch_size: int) -> None:
        self._sides = [
            (
                side,
                EngineWorkload(engine=side.settings, input_len=input_len, output_len=output_len, batch_size=batch_size),
            )
            for side in (ours, theirs)
        ]
        self.subjects: tuple[Subject, Subject] | None = None

    def session(self, number: int) -> list[Pair]:
        with ExitStack() as stack:
            ours, theirs = (
                stack.enter_context(open_stream_engine(side.name, workload, side.python))
                for side, workload in self._sides
            )
            self.subjects = ours.subject, theirs.subject
            return list(_pairs(number, ours, theirs))


def _pairs(session: int, ours: StreamEngine, theirs: StreamEngine) -> Iterator[Pair]:
    # The steps of a piece may differ by a few; both decode from the same contexts on.
    pieces = min(ours.pieces, theirs.pieces)
    turned = bool(session % 2)
    for prompts in ours.rounds(session):
        order = (theirs, ours) if turned else (ours, theirs)
        done = {engine: engine.prefill(prompts) for engine in order}
        yield Pair(PREFILL, session, done[ours], done[theirs])
        for number in range(pieces):
            order = (ours, theirs) if (number % 2 == 0) is not turned else (theirs, ours)
            done = {engine: engine.decode() for engine in order}
            if not all(done.values()):  # at the end of their context
                break
            yield Pair(DECODE, session, done[ours], done[theirs])


class ServerPairs:
    """The same load on two servers in turns."""

    def __init__(self, kind: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
        """`ours` and `theirs` are settings of a measurement of this kind."""
        self._kind, self._settings = kind, (ours, theirs)
        self.subjects: tuple[Subject, Subject] | None = None

    def session(self, number: int) -> list[Pair]:
        order = (1, 0) if number % 2 else (0, 1)
        measured = {at: measure_again(self._kind, self._settings[at]) for at in order}
        for each in measured.values():
            if each.errors:
                failed = ", ".join(f"{count} {name}" for name, count in each.errors.items())
                raise ConfigError(f"requests to {each.subject.url} failed ({failed}): such times cannot be judged")
        self.subjects = measured[0].subject, measured[1].subject
        pairs = []
        for phase in PHASES:
            names = [
                name
                for name, value in measured[0].figures.items()
                if phase_of(name) == phase and name != BAD_FIT and value > 0 and measured[1].figures.get(name, 0.0) > 0
            ]
            if names:
                ours, theirs = ({name: measured[at].figures[name] for name in names} for at in (0, 1))
                pairs.append(Pair(phase, number, ours, theirs))
        return pairs


@dataclass(frozen=True, slots=True)
class PairPlan:
    """What is measured on which sides; `settings` are those of a measurement of `kind`, but for what the sides say."""

    ours: Side
    theirs: Side
    kind: str
    settings: Mapping[str, Any]

    def described(self) -> dict[str, Any]:
        """As settings of a measurement."""
        return {"sides": [asdict(self.ours), asdict(self.theirs)], "workload": {"kind": self.kind, **self.settings}}


def paired_workload(
    ours: str | None,
    theirs: str,
    measured: Measurement | None,
    changed: Iterable[str],
    lengths: Mapping[str, int | None],
) -> PairPlan:
    """The plan for two sides, as they are written, on the workload of a measurement or of these `lengths`.

    The sides have the engine options of the measurement unless they say otherwise, and ours those that are `changed`.
    Raises ConfigError.
    """
    changes = tuple(changed)
    if measured is None:
        if changes:
            raise ConfigError(
                "--set changes the workload of a --baseline; without one, write the options into the side"
            )
        first, second = parse_sides((ours or "lpx", theirs))
        kind = "serve" if isinstance(first, ServerSide) else "latency"
        given = {name: value for name, value in lengths.items() if value is not None}
        if kind == "serve" and given:
            raise ConfigError("lengths are for engines; a load on servers comes with --baseline")
        default = _SERVER_WORKLOAD if kind == "serve" else _ENGINE_WORKLOAD
        return PairPlan(first, second, kind, {**default, **given})
    if any(value is not None for value in lengths.values()):
        raise ConfigError("a --baseline has lengths of its own; leave --input-len, --output-len and --batch-size out")
    settings = changed_settings(measured, changes)
    engine = settings.pop("engine", {})
    base = dict(measured.settings).get("engine", {})
    if measured.kind == "latency":
        return PairPlan(
            parse_side(ours or "lpx", "now", engine), parse_side(theirs, "before", base), "latency", settings
        )
    return PairPlan(
        parse_side(ours or str(settings["base_url"]), "now"), parse_side(theirs, "before"), measured.kind, settings
    )


def open_pairs(plan: PairPlan) -> PairedWorkload:
    """Raises ConfigError for sides that cannot be put into one workload."""
    ours, theirs, settings = plan.ours, plan.theirs, plan.settings
    if isinstance(ours, EngineSide) and isinstance(theirs, EngineSide):
        return EnginePairs(ours, theirs, **{name: settings[name] for name in _ENGINE_WORKLOAD})
    if isinstance(ours, ServerSide) and isinstance(theirs, ServerSide):
        both = [
            {**settings, "base_url": side.url, "model": side.model, "endpoint_type": side.endpoint_type}
            for side in (ours, theirs)
        ]
        return ServerPairs(plan.kind, both[0], both[1])
    raise ConfigError("a gate compares two servers or two configurations of LPX; `lpx bench compare` takes one of each")


def compare_pairs(pairs: Sequence[Pair], figure: str, confidence: float) -> Comparison | None:
    """The ratio of our performance to theirs over sessions; None when no session has the figure on both sides."""
    sessions: dict[int, list[Pair]] = {}
    for pair in pairs:
        if figure in pair.ours and figure in pair.theirs:
            sessions.setdefault(pair.session, []).append(pair)
    if not sessions:
        return None
    logs = [median(pair.log_ratio(figure) for pair in session) for session in sessions.values()]
    held = [pair for session in sessions.values() for pair in session]
    return Comparison(
        ratio=trimmed_interval(logs, confidence, TRIM).scaled(math.exp),
        before=median(pair.theirs[figure] for pair in held),
        after=median(pair.ours[figure] for pair in held),
        sessions=(len(sessions), len(sessions)),
        memory_share=None,
        weather=(None, None),
    )
