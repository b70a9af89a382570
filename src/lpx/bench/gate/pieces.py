"""What is compared: short pieces of a workload, each beside what the machine gave in the same moment.

Pieces come in sessions: in each, the engine is loaded anew, so that what differs from one load to the next, such as
where its memory lies, shows as spread between sessions instead of hiding in all pieces of a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, stdev

from lpx.bench.gate.conditions import is_speed
from lpx.bench.headline import BAD_FIT
from lpx.bench.weather import Look
from lpx.errors import ConfigError

PREFILL, DECODE = "prefill", "decode"
PHASES = (PREFILL, DECODE)

_SESSION, _OTHERS = "session", "others_share"
_SESSION_SAMPLES = tuple(f"{phase}_{_SESSION}" for phase in PHASES)
_READ, _MULTIPLY = "read_bytes_per_second", "multiply_adds_per_second"


@dataclass(frozen=True, slots=True)
class Piece:
    """Figures of one phase of the work, all above 0."""

    phase: str  # one of PHASES
    session: int
    figures: Mapping[str, float]
    weather: Look | None  # None: the machine that did the work cannot be looked at
    others_share: float  # of all processors, that others used; the more, the less the figures say

    def performance(self, figure: str) -> float:
        """The figure, or the inverse of a time: more is better."""
        value = self.figures[figure]
        return value if is_speed(figure) else 1 / value


def phase_of(figure: str) -> str:
    """The phase of the work that a figure is about."""
    return PREFILL if figure.startswith(("prefill_", "ttft_")) else DECODE


def split_by_phase(
    session: int, figures: Mapping[str, float], weather: Look | None, others_share: float
) -> list[Piece]:
    """Pieces of figures that were measured together; what is 0 was not measured."""
    pieces = []
    for phase in PHASES:
        own = {name: value for name, value in figures.items() if phase_of(name) == phase and value > 0}
        own.pop(BAD_FIT, None)  # no figure of the work: a gate has its own idea of how sure figures are
        if own:
            pieces.append(Piece(phase, session, own, weather, others_share))
    return pieces


def pieces_with(pieces: Iterable[Piece], figure: str) -> list[Piece]:
    return [piece for piece in pieces if figure in piece.figures]


def figures_of(pieces: Iterable[Piece]) -> dict[str, float]:
    """The median of every figure."""
    found: dict[str, list[float]] = {}
    for piece in pieces:
        for name, value in piece.figures.items():
            found.setdefault(name, []).append(value)
    return {name: median(values) for name, values in found.items()}


def by_session(pieces: Iterable[Piece]) -> dict[int, list[Piece]]:
    found: dict[int, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.session, []).append(piece)
    return found


def samples_of(pieces: Sequence[Piece]) -> dict[str, tuple[float, ...]]:
    """As samples of a `Measurement`: figures and what belongs to them, a value a piece; see `pieces_of`."""
    samples: dict[str, tuple[float, ...]] = {}
    for phase in PHASES:
        own = [piece for piece in pieces if piece.phase == phase]
        if not own:
            continue
        for name in own[0].figures:
            if all(name in piece.figures for piece in own):
                samples[name] = tuple(piece.figures[name] for piece in own)
        samples[f"{phase}_{_SESSION}"] = tuple(float(piece.session) for piece in own)
        samples[f"{phase}_{_OTHERS}"] = tuple(piece.others_share for piece in own)
        looks = [piece.weather for piece in own if piece.weather is not None]
        if len(looks) == len(own):
            samples[f"{phase}_{_READ}"] = tuple(look.read_bytes_per_second for look in looks)
            samples[f"{phase}_{_MULTIPLY}"] = tuple(look.multiply_adds_per_second for look in looks)
    return samples


def sessions_in(samples: Mapping[str, Sequence[float]]) -> int:
    """How many sessions samples are of that `samples_of` made; 0: they are no pieces."""
    return len({session for name in _SESSION_SAMPLES for session in samples.get(name, ())})


def without_sessions(samples: Mapping[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
    """The samples that are figures of something, which the numbers of sessions are not."""
    return {name: values for name, values in samples.items() if name not in _SESSION_SAMPLES}


def pieces_of(samples: Mapping[str, Sequence[float]]) -> list[Piece]:
    """The pieces that `samples_of` made samples of; none of samples of another kind.

    Raises ConfigError when there are more of some figure than of others.
    """
    pieces: list[Piece] = []
    about = {f"{phase}_{what}" for phase in PHASES for what in (_SESSION, _OTHERS, _READ, _MULTIPLY)}
    for phase in PHASES:
        sessions, others = samples.get(f"{phase}_{_SESSION}"), samples.get(f"{phase}_{_OTHERS}")
        if sessions is None or others is None:
            continue
        reads, multiplies = samples.get(f"{phase}_{_READ}"), samples.get(f"{phase}_{_MULTIPLY}")
        figures = {name: values for name, values in samples.items() if name not in about and phase_of(name) == phase}
        columns = [others, *(given for given in (reads, multiplies) if given is not None), *figures.values()]
        if any(len(values) != len(sessions) for values in columns):
            raise ConfigError("these samples are no pieces of work: there are more of some figures than of others")
        for at, session in enumerate(sessions):
            weather = None if reads is None or multiplies is None else Look(reads[at], multiplies[at])
            own = {name: values[at] for name, values in figures.items()}
            pieces.append(Piece(phase, int(session), own, weather, others[at]))
    return pieces


def spread_between_sessions(pieces: Iterable[Piece], figure: str) -> float | None:
    """How much a figure varies from session to session as it was measured, as a share of it; None of few sessions."""
    sessions = by_session(pieces_with(pieces, figure)).values()
    if len(sessions) < 2:
        return None
    return stdev(math.log(median(piece.figures[figure] for piece in session)) for session in sessions)
