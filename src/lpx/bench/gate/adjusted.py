"""Two sets of pieces of a workload, measured at different times: how much faster is the later one in the same weather?

What is asked for is the ratio of what the work takes in the same weather. How its time follows the weather is not known
exactly (`response.py`): every response is tried, and has the weight that follows from how well it explains the changes
from session to session, and from what is usual for the kind of work. Where the weather was the same in both sets none
of that matters. Where it was not, and no sessions show what the work makes of the difference, all that it may be lies
in the interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from lpx.bench.gate.pieces import Piece, by_session, pieces_with
from lpx.bench.gate.response import Floats, Response
from lpx.bench.statistics import Interval, interval_around
from lpx.bench.weather import Look

# What is usual: (share, how sure). One stream decodes at the speed of the memory, prompts at that of the multipliers.
USUAL_SHARES = {"decode": (0.82, 0.12), "batch": (0.5, 0.3), "prefill": (0.15, 0.15), "mixed": (0.5, 0.3)}

# Of sessions, at both ends. They are few, and each is the median of many pieces already.
TRIM = 0.1
_LEAST_SPREAD = 0.003  # sessions never agree better than this, even if few of them seem to
_SPREADS = (0.003, 0.005, 0.008, 0.013, 0.02, 0.035, 0.06)  # that sessions may have of their own
_PLACE_SPREAD = 0.005  # of reading, with where the memory lies
_MOST_JUMP = 0.2  # of log read between neighbouring looks
_TAILS = 5  # degrees of freedom of the noise of sessions
_FELT_CONFIDENCE = 0.9  # of what is said of the memory


@dataclass(frozen=True, slots=True)
class Comparison:
    """`ratio` is the later performance over the earlier one: below 1 is worse."""

    ratio: Interval
    before: float  # median of the figure as it was measured
    after: float
    sessions: tuple[int, int]
    # How much of a change of the memory, from one weather to the other, the work feels. None: the weather is not known,
    # so the figures are compared as they are.
    memory_share: Interval | None
    weather: tuple[Look | None, Look | None]  # before and after, the middle

    @property
    def weather_hides_it(self) -> bool:
        """Whether most of the interval of the ratio comes from not knowing what the work feels of the memory."""
        before, after = self.weather
        if before is None or after is None or self.memory_share is None or self.ratio.low <= 0:
            return False
        distance = abs(math.log(after.read_bytes_per_second / before.read_bytes_per_second))
        unknown = distance * (self.memory_share.high - self.memory_share.low)
        return unknown > math.log(self.ratio.high / self.ratio.low) / 2


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
    sessions = [list(by_session(pieces).values()) for pieces in (before, after)]
    weather = _weather(before), _weather(after)
    response = _response([*sessions[0], *sessions[1]], usual_share)
    earlier, later = (_explained(own, figure, response) for own in sessions)
    weights, felt = np.ones(1), None
    if response is not None and weather[0] is not None and weather[1] is not None:
        weights = _weights((earlier, later), response, _look_errors([*before, *after]))
        felt = _weighted_interval(response.felt(weather[0], weather[1]), weights, _FELT_CONFIDENCE)
    shifts = later.middle - earlier.middle
    shift = float(weights @ shifts)
    variance = float(weights @ (earlier.error**2 + later.error**2 + (shifts - shift) ** 2))
    degrees = float(weights @ _degrees(earlier, later))
    return Comparison(
        ratio=interval_around(-shift, math.sqrt(variance), degrees, confidence).scaled(math.exp),
        before=median(each.figures[figure] for each in before),
        after=median(each.figures[figure] for each in after),
        sessions=(len(sessions[0]), len(sessions[1])),
        memory_share=felt,
        weather=weather,
    )


def _response(sessions: Sequence[Sequence[Piece]], usual_share: tuple[float, float]) -> Response | None:
    """What the time may make of the weather that the sessions had; None when a piece was not looked at."""
    seen = [look for look in map(_weather, sessions) if look is not None]
    if len(seen) < len(sessions):
        return None
    return Response.grid([look.read_bytes_per_second for look in seen], _middle(seen), usual_share)


@dataclass(frozen=True, slots=True)
class _Explained:
    """What each response makes of the sessions of a set; arrays `[grid]` or `[grid, sessions]`."""

    middle: Floats  # of log time in the reference weather
    error: Floats  # standard error of it
    degrees: int  # of freedom of the error; 0: one session, whose error nobody knows
    seconds: Floats  # of each session: log time as it was measured
    values: Floats  # of each session: log time in the reference weather
    memory: Floats  # of each session: how much of a change of the memory is felt


def _explained(sessions: Sequence[Sequence[Piece]], figure: str, response: Response | None) -> _Explained:
    """Sessions are medians of their pieces, and the middle is their trimmed mean, as `statistics.centre` has it."""
    columns = []
    for session in sessions:
        seconds = -np.log([piece.performance(figure) for piece in session])[None, :]
        times = felt = np.zeros_like(seconds)
        if response is not None:
            times, felt = response.times([piece.weather for piece in session if piece.weather is not None])
        columns.append((_median(seconds), _median(seconds - times), felt.mean(axis=1)))
    measured, values, memory = (np.stack(rows, axis=1) for rows in zip(*columns, strict=True))
    count = values.shape[1]
    cut = math.floor(TRIM * count) if count >= 5 else 0
    kept = np.sort(values, axis=1)[:, cut : count - cut]
    middle = kept.mean(axis=1)
    left = kept.shape[1]
    if count == 1:
        return _Explained(middle, np.zeros(len(middle)), 0, measured, values, memory)
    drawn_in = np.clip(values, kept[:, :1], kept[:, -1:])  # winsorized
    error = drawn_in.std(axis=1, ddof=1) * math.sqrt((count - 1) / (left * (left - 1)))
    error = np.maximum(error, _LEAST_SPREAD / math.sqrt(count))
    return _Explained(middle, error, left - 1, measured, values, memory)


def _median(values: Floats) -> Floats:
    ordered, count = np.sort(values, axis=1), values.shape[1]
    middle: Floats = (ordered[:, (count - 1) // 2] + ordered[:, count // 2]) / 2
    return middle


def _degrees(a: _Explained, b: _Explained) -> Floats:
    """Of freedom of the difference (Welch and Satterthwaite)."""
    if not a.degrees or not b.degrees:
        return np.zeros(len(a.error))
    of_both: Floats = a.error**4 / a.degrees + b.error**4 / b.degrees
    degrees: Floats = (a.error**2 + b.error**2) ** 2 / of_both
    return degrees


def _weights(sets: tuple[_Explained, _Explained], response: Response, look_errors: tuple[float, float]) -> Floats:
    """The posterior of each response: how likely the sessions are with it, times what is usual."""
    logs = response.log_prior
    for each in sets:
        of_looks = (each.memory * look_errors[0]) ** 2 + ((1 - response.shares[:, None]) * look_errors[1]) ** 2
        rest, of_looks = _unexplained(each, of_looks)
        likely = np.stack([_log_likelihood(rest, own * own + of_looks) for own in _SPREADS])
        logs = logs + np.logaddexp.reduce(likely, axis=0)
    posterior: Floats = np.exp(logs - np.logaddexp.reduce(logs))
    return posterior


def _unexplained(found: _Explained, of_looks: Floats) -> tuple[Floats, Floats]:
    """What is left of each session's log time around the middle of its set, and the part of the looks in its variance.

    `of_looks` are variances of what a response makes of the looks, from the error that looks have. Where sessions
    differ by no more than that, nothing was seen of the weather's effect: the looks are then no reason to expect other
    times, and no response is more likely than others. In general, times follow what the looks seem to say as far as it
    is not their error (regression with errors in the variables, Fuller, Measurement Error Models, 1987).
    """
    said = found.seconds - found.values
    said = said - said.mean(axis=1, keepdims=True)
    seconds = found.seconds - found.seconds.mean()
    spread = said.var(axis=1, ddof=1) if said.shape[1] > 1 else np.zeros(len(said))
    true = np.clip(1 - of_looks.mean(axis=1) / np.maximum(spread, 1e-12), 0, 1)[:, None]
    return seconds - true * said, true * of_looks


def _log_likelihood(rest: Floats, variance: Floats) -> Floats:
    """Of what is unexplained, under Student's t, for which a session that went wrong is no surprise."""
    tails = (_TAILS + 1) / 2
    logs: Floats = -(np.log(variance) / 2 + tails * np.log1p(rest * rest / (_TAILS * variance))).sum(axis=1)
    return logs


def _weighted_interval(values: Floats, weights: Floats, confidence: float) -> Interval:
    """The mean of weighted values, and the least and the largest of those that lie inside."""
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    low, high = (
        float(values[order][min(int(np.searchsorted(below, share)), len(values) - 1)])
        for share in ((1 - confidence) / 2, (1 + confidence) / 2)
    )
    return Interval(float(weights @ values), low, high, confidence)


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
    # Neighbours have a look in common, so they differ by half of what the looks on either side differ by: the mean of
    # their squares is half the variance of a look, and a session has about as many looks as pieces.
    read, multiply = (
        2 * total / count / in_a_session if count else 0.0 for total, count in zip(squares, counts, strict=True)
    )
    return math.sqrt(read + _PLACE_SPREAD**2), math.sqrt(multiply)


def _weather(pieces: Sequence[Piece]) -> Look | None:
    """The middle of what was seen; None when one of the pieces was not looked at."""
    looks = [piece.weather for piece in pieces if piece.weather is not None]
    return _middle(looks) if len(looks) == len(pieces) else None


def _middle(looks: Sequence[Look]) -> Look:
    return Look(
        median(look.read_bytes_per_second for look in looks), median(look.multiply_adds_per_second for look in looks)
    )
