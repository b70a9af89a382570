"""95 % intervals of the two kinds of figures here: means of correlated values, and shares of tries that passed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_Z = 1.959964  # 97.5 % of a normal distribution


def mean_interval(blocks: Sequence[NDArray[np.float64]]) -> tuple[float, float, float]:
    """Mean of all values and its interval, with blocks of neighbouring values as the units that are independent.

    The standard error is that of a ratio of sums over blocks (Cochran, Sampling Techniques, 6.3); of a single block it
    is unknown, and the interval is the mean itself.
    """
    sums = np.array([block.sum() for block in blocks])
    sizes = np.array([len(block) for block in blocks], dtype=np.float64)
    mean = float(sums.sum() / sizes.sum())
    count = len(blocks)
    if count < 2:
        return mean, mean, mean
    residuals = sums - mean * sizes
    error = math.sqrt(float(residuals @ residuals) * count / (count - 1)) / float(sizes.sum())
    return mean, mean - _Z * error, mean + _Z * error


def share_interval(passed: int, tries: int) -> tuple[float, float]:
    """Wilson's interval of a share (JASA 1927): sound for few tries and for shares near 0 and 1."""
    if tries == 0:
        return 0.0, 1.0
    share = passed / tries
    z2 = _Z * _Z
    middle = (share + z2 / (2 * tries)) / (1 + z2 / tries)
    half = _Z / (1 + z2 / tries) * math.sqrt(share * (1 - share) / tries + z2 / (4 * tries * tries))
    return (middle - half if passed else 0.0), (middle + half if passed < tries else 1.0)
