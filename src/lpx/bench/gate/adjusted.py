"""Two sets of pieces of a workload, measured at different times: how much faster is the later one in the same weather?

A piece of work takes time for the memory it reads and time for what it computes, so in a weather of `read` bytes and
`multiply` multiply-adds a second it takes

    time = own * (share * read0 / read + (1 - share) * multiply0 / multiply)

where `own` is its time in some weather 0, and `share` the part of it that is spent on memory. What is asked for is the
ratio of the two `own`. The share is not known exactly: every value from 0 to 1 is tried, and has the weight that
follows from how well it explains the changes from session to session, and from what is usual for the kind of work.
Where the weather was the same in both sets the share does not matter; where it was not, what is unknown about the share
makes the interval wider.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from lpx.bench.gate.pieces import Piece, by_session, pieces_with
from lpx.bench.statistics import Centre, Interval, centre, degrees_of_difference, interval_around
from lpx.bench.weather import Look

# What is usual: (share, how sure). One stream decodes at the speed of the memory, prompts at that of the multipliers.
USUAL_SHARES = {"decode": (0.82, 0.12), "batch": (0.5, 0.3), "prefill": (0.15, 0.15), "mixed": (0.5, 0.3)}

# Of sessions, at both ends. They are few, and each is the median of many pieces already.
TRIM = 0.1
_SHARES = tuple(step / 25 for step in range(26))
_LEAST_SPREAD = 0.003  # sessions never agree better than this, even if few of them seem to
_SPREADS = (0.003, 0.005, 0.008, 0.013, 0.02, 0.035, 0.06)  # that sessions may have of their own
_PLACE_SPREAD = 0.005  # of reading, with where the memory lies
_MOST_JUMP = 0.2  # of log read between neighbouring looks
_TAILS = 5  # degrees of freedom of the noise of sessions


@dataclass(frozen=True, slots=True)
class Comparison:
    """`ratio` is the later performance over the earlier one: below 1 is worse."""

    ratio: Interval
    before: float  # median of the figure as it was measured
    after: float
    sessions: tuple[int, int]
    memory_share: float | None  # None: the weather is not known, so the figures are compared as they are
    weather: tuple[Look | None, Look | None]  # before and after, the middle


def compare_pieces(
    before: Sequence[Piece],
    after: Sequence[Piece],
    figure: str,
    confidence: float,
    usual_share: tuple[float, float] = USUAL_SHARES["mixed"],
) -> Comparison:
    """Both sets need a piece with the figure; with one session in either, the interval has no bounds.

    `usual_share` is what is known beforehand of the share of memory: the likeliest value, and its standard deviation.
    """
    before, after = pieces_with(before, figure), pieces_with(after, figure)
    weather = _weather(before), _weather(after)
    known = weather[0] is not None and weather[1] is not None
    reference = _weather([*before, *after]) if known else None
    shares = _SHARES if known else (0.0,)
    found = [_with_share(before, after, figure, share, reference) for share in shares]
    weights = _weights(found, shares, usual_share, [*before, *after]) if known else [1.0]

    shift = sum(weight * each.shift for weight, each in zip(weights, found, strict=True))
    variance = sum(
        weight * (each.error**2 + (each.shift - shift) ** 2) for weight, each in zip(weights, found, strict=True)
    )
    degrees = sum(weight * each.degrees for weight, each in zip(weights, found, strict=True))
    ratio = interval_around(-shift, math.sqrt(variance), degrees, confidence).scaled(math.exp)
    return Comparison(
        ratio=ratio,
        before=median(each.figures[figure] for each in before),
        after=median(each.figures[figure] for each in after),
        sessions=(len(by_session(before)), len(by_session(after))),
        memory_share=sum(w * share for w, share in zip(weights, shares, strict=True)) if known else None,
        weather=weather,
    )


@dataclass(frozen=True, slots=True)
class _Explained:
    """What one share makes of the pieces: the shift of log time, and what it leaves unexplained."""

    shift: float
    error: float
    degrees: float
    rest: tuple[float, ...]  # of sessions: what is left of log time around the middle of their set


def _with_share(
    before: Sequence[Piece], after: Sequence[Piece], figure: str, share: float, reference: Look | None
) -> _Explained:
    earlier, later = (_session_values(pieces, figure, share, reference) for pieces in (before, after))
    a, b = centre(earlier, TRIM), centre(later, TRIM)
    return _Explained(
        shift=b.mean - a.mean,
        error=math.hypot(_at_least(a, len(earlier)), _at_least(b, len(later))),
        degrees=degrees_of_difference(a, b),
        rest=(*(value - a.mean for value in earlier), *(value - b.mean for value in later)),
    )


def _session_values(pieces: Sequence[Piece], figure: str, share: float, reference: Look | None) -> list[float]:
    """Log time of each session in the reference weather: the median of its pieces."""

    def own_time(each: Piece) -> float:
        seconds, look = -math.log(each.performance(figure)), each.weather
        if reference is None or look is None:
            return seconds
        return seconds - math.log(
            share * reference.read_bytes_per_second / look.read_bytes_per_second
            + (1 - share) * reference.multiply_adds_per_second / look.multiply_adds_per_second
        )

    return [median(own_time(each) for each in session) for session in by_session(pieces).values()]


def _at_least(found: Centre, sessions: int) -> float:
    return max(found.error, _LEAST_SPREAD / math.sqrt(sessions))


def _weights(
    found: list[_Explained], shares: Sequence[float], usual: tuple[float, float], pieces: Sequence[Piece]
) -> list[float]:
    """The posterior of each share: how likely the sessions are with it, times what is usual.

    The looks have an error, too, which grows into what a large share leaves unexplained. Without counting that, small
    shares would always seem the better ones.
    """
    read, multiply = _look_errors(pieces)
    logs = []
    for each, share in zip(found, shares, strict=True):
        of_looks = (share * read) ** 2 + ((1 - share) * multiply) ** 2
        likely = [_log_likelihood(each.rest, own * own + of_looks) for own in _SPREADS]
        most = max(likely)
        marginal = most + math.log(sum(math.exp(value - most) for value in likely))
        logs.append(marginal - ((share - usual[0]) / usual[1]) ** 2 / 2)
    most = max(logs)
    weights = [math.exp(value - most) for value in logs]
    total = sum(weights)
    return [weight / total for weight in weights]


def _log_likelihood(rest: Sequence[float], variance: float) -> float:
    """Of what is unexplained, under Student's t, for which a session that went wrong is no surprise."""
    tails = (_TAILS + 1) / 2
    return -sum(math.log(variance) / 2 + tails * math.log1p(value * value / (_TAILS * variance)) for value in rest)


def _look_errors(pieces: Sequence[Piece]) -> tuple[float, float]:
    """Standard errors of what a session's looks say about log read and log multiply.

    From the differences of neighbouring looks, which follow each other so closely that the weather hardly changes
    between; and from where the memory that is read lies, which is another place in each session.
    """
    squares, counts, sessions = [0.0, 0.0], [0, 0], by_session(pieces).values()
    for session in sessions:
        looks = [piece.weather for piece in session if piece.weather is not None]
        for before, after in pairwise(looks):
            for at, ratio in enumerate(
                (
                    after.read_bytes_per_second / before.read_bytes_per_second,
                    after.multiply_adds_per_second / before.multiply_adds_per_second,
                )
            ):
                # Bounded, so that a burst in one look does not make all of them look worthless.
                squares[at] += min(math.log(ratio) ** 2, _MOST_JUMP**2)
                counts[at] += 1
    in_a_session = len(pieces) / max(len(sessions), 1)
    read, multiply = (
        total / (2 * count) / in_a_session if count else 0.0 for total, count in zip(squares, counts, strict=True)
    )
    return math.sqrt(read + _PLACE_SPREAD**2), math.sqrt(multiply)


def _weather(pieces: Sequence[Piece]) -> Look | None:
    """The middle of what was seen; None when one of the pieces was not looked at."""
    looks = [piece.weather for piece in pieces if piece.weather is not None]
    if len(looks) < len(pieces):
        return None
    return Look(
        median(look.read_bytes_per_second for look in looks), median(look.multiply_adds_per_second for look in looks)
    )
