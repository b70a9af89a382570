"""How the time of the work follows what the machine gives, as far as that is known.

A piece of work takes time for the memory it reads and time for what it computes, and it cannot read faster than its
cores take what is read. So in a weather of `read` bytes and `multiply` multiply-adds a second it takes

    time = own * (share * min(read0, cap) / min(read, cap) + (1 - share) * multiply0 / multiply)

where `own` is its time in some weather 0, `share` the part of it that is spent on memory there, and `cap` the speed of
reading beyond which the work is no faster. Neither share nor cap is known: a response has a grid of both, with what is
known of each beforehand. How well they explain what was measured is for others to say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lpx.bench.weather import Look

Floats = NDArray[np.float64]

_SHARES = np.linspace(0, 1, 17)
_CAPS = 13
# Beforehand a cap may lie anywhere within this factor of the speed that was seen: all that is known is that the memory
# and the cores of a machine are made for each other.
_REACH = 3.0
_LEAST_APART = 0.02  # of log read: what is felt of the memory is asked of two weathers that differ by twice that


@dataclass(frozen=True, slots=True)
class Response:
    """Every combination of share and cap: arrays with a value for each."""

    shares: Floats
    caps: Floats  # bytes a second
    log_prior: Floats
    reference: Look

    @classmethod
    def grid(cls, reads: Sequence[float], reference: Look, usual_share: tuple[float, float]) -> Response:
        """`reads` are the speeds that were seen, of which only the lowest and the highest count.

        Caps beyond these all mean the same for what was measured, so the grid ends there, and its ends stand for
        whatever is beyond. `usual_share` is the likeliest share, and its standard deviation.
        """
        middle = math.log(reference.read_bytes_per_second)
        logs = np.linspace(math.log(min(reads)), math.log(max(reads)), _CAPS) - middle
        reach = math.log(_REACH)
        ends = np.concatenate(([min(-reach, logs[0])], (logs[1:] + logs[:-1]) / 2, [max(reach, logs[-1])]))
        of_caps = np.log(np.maximum(np.diff(ends), 1e-9))
        of_shares = -(((_SHARES - usual_share[0]) / usual_share[1]) ** 2) / 2
        shares, caps = np.meshgrid(_SHARES, np.exp(logs + middle), indexing="ij")
        return cls(shares.ravel(), caps.ravel(), np.add.outer(of_shares, of_caps).ravel(), reference)

    def times(self, looks: Sequence[Look]) -> tuple[Floats, Floats]:
        """Log time in each weather, 0 in the reference, and how much of it goes with the memory: `[grid, looks]`.

        The second is the derivative of log time by log read but for its sign: none beyond the cap.
        """
        read = np.array([look.read_bytes_per_second for look in looks])
        multiply = np.array([look.multiply_adds_per_second for look in looks])
        shares, caps = self.shares[:, None], self.caps[:, None]
        memory = shares * np.minimum(self.reference.read_bytes_per_second, caps) / np.minimum(read, caps)
        time = memory + (1 - shares) * self.reference.multiply_adds_per_second / multiply
        return np.log(time), np.where(read < caps, memory / time, 0.0)

    def felt(self, before: Look, after: Look) -> Floats:
        """How much of the change of the memory from one weather to the other the work feels: 0 nothing, 1 all of it."""
        logs = sorted(math.log(look.read_bytes_per_second) for look in (before, after))
        slow, fast = logs[0] - _LEAST_APART, logs[1] + _LEAST_APART
        multiply = self.reference.multiply_adds_per_second
        times, _ = self.times([Look(math.exp(read), multiply) for read in (slow, fast)])
        felt: Floats = (times[:, 0] - times[:, 1]) / (fast - slow)
        return felt
