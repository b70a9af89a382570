"""How the time of the work follows what the machine gives, as far as that is known.

A piece of work takes time for the memory it reads and time for what it computes. The faster the memory reads, the less
of that the work feels, because its cores are what it waits for then. So in a weather of `read` bytes and `multiply`
multiply-adds a second it takes

    time = own * (share * taken(read0) / taken(read) + (1 - share) * multiply0 / multiply)
    taken(read) = read up to a knee, and knee * (read / knee)^beyond above it

where `own` is its time in some weather 0, `share` the part of it that is spent on memory there, and `beyond`, from 0 to
1, what is felt above the knee of what is felt below. None of share, knee and beyond is known: a response is a grid of
all three, with what is known of each beforehand. How well they explain what was measured is for others to say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lpx.bench.weather import Look

Floats = NDArray[np.float64]

_SHARES = np.linspace(0, 1, 15)
_KNEES = 9
_BEYOND = (0.0, 0.3, 0.6)  # without a bend: a knee at the upper end
# Beforehand a knee may lie anywhere within this factor of the speeds that were seen: all that is known is that the
# memory and the cores of a machine are made for each other.
_REACH = 3.0
_LEAST_APART = 0.02  # of log read: what is felt of the memory is asked of two weathers that differ by twice that


@dataclass(frozen=True, slots=True)
class Response:
    """Every combination of share, knee and beyond: arrays with a value for each."""

    shares: Floats
    knees: Floats  # bytes a second
    beyond: Floats
    log_prior: Floats
    reference: Look

    @classmethod
    def grid(cls, reads: Sequence[float], reference: Look, usual_share: tuple[float, float]) -> Response:
        """`reads` are the speeds that were seen, of which only the lowest and the highest count.

        Knees beyond these all mean the same for what was measured, so the grid ends there, and its ends stand for
        whatever is beyond. `usual_share` is the likeliest share, and its standard deviation.
        """
        middle = math.log(reference.read_bytes_per_second)
        knees = np.linspace(math.log(min(reads)), math.log(max(reads)), _KNEES) - middle
        reach = math.log(_REACH)
        ends = np.concatenate(([min(-reach, knees[0])], (knees[1:] + knees[:-1]) / 2, [max(reach, knees[-1])]))
        of_knees = np.log(np.maximum(np.diff(ends), 1e-9))
        of_shares = -(((_SHARES - usual_share[0]) / usual_share[1]) ** 2) / 2
        at = [axis.ravel() for axis in np.indices((len(_SHARES), _KNEES, len(_BEYOND)))]
        return cls(
            shares=_SHARES[at[0]],
            knees=np.exp(knees + middle)[at[1]],
            beyond=np.array(_BEYOND)[at[2]],
            log_prior=of_shares[at[0]] + of_knees[at[1]],
            reference=reference,
        )

    def times(self, looks: Sequence[Look]) -> tuple[Floats, Floats]:
        """Log time in each weather, 0 in the reference, and how much of a change of the memory is felt there.

        Both are `[grid, looks]`. The second is the derivative of log time by log read but for its sign.
        """
        read = np.log([look.read_bytes_per_second for look in looks])
        multiply = np.array([look.multiply_adds_per_second for look in looks])
        shares, knees, beyond = self.shares[:, None], np.log(self.knees)[:, None], self.beyond[:, None]
        reference = math.log(self.reference.read_bytes_per_second)
        # How far log read is above the knee: only below it, it is felt in full.
        above = np.maximum(read - knees, 0), np.maximum(reference - knees, 0)
        memory = shares * np.exp(reference - read + (1 - beyond) * (above[0] - above[1]))
        time = memory + (1 - shares) * self.reference.multiply_adds_per_second / multiply
        return np.log(time), memory / time * np.where(above[0] > 0, beyond, 1.0)

    def felt(self, before: Look, after: Look) -> Floats:
        """How much of the change of the memory from one weather to the other the work feels: 0 nothing, 1 all of it."""
        logs = sorted(math.log(look.read_bytes_per_second) for look in (before, after))
        slow, fast = logs[0] - _LEAST_APART, logs[1] + _LEAST_APART
        multiply = self.reference.multiply_adds_per_second
        times, _ = self.times([Look(math.exp(read), multiply) for read in (slow, fast)])
        felt: Floats = (times[:, 0] - times[:, 1]) / (fast - slow)
        return felt
