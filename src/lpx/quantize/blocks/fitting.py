"""Scales and minima of blocks that keep the weighted squared error small.

A block of weights x with importances w becomes codes q and either scale * q + low (affine) or scale * q (symmetric).
For given codes the best scale and minimum follow in closed form (weighted least squares); the codes follow from scale
and minimum by rounding. So a grid of starting scales is tried, each is refitted to the codes it gives, and the best is
kept. Rounding to nearest (`search=False`) takes scale and minimum from the largest and the smallest weight alone.

Arrays are [values of a block, blocks], so that everything runs along many blocks at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# Starting scales: the range of the block over so many steps more or less than there are codes. Twice as many shifts
# lower the error by another 1 %.
_AFFINE_SHIFTS = (-1.0, -0.6, -0.2, 0.2, 0.6, 1.0)
_SYMMETRIC_SHIFTS = _AFFINE_SHIFTS
_FINE_SHIFTS = (-0.6, -0.3, 0.0, 0.3, 0.6)  # for 8 bits, where little is to be gained


def fit_affine(x: Floats, w: Floats, top: int, *, low_at_most_zero: bool, search: bool) -> tuple[Floats, Floats]:
    """(scale, low) of each block for codes 0 to `top`; with `low_at_most_zero` no minimum is above zero."""
    low, high = x.min(axis=0), x.max(axis=0)
    if low_at_most_zero:
        low = np.minimum(low, 0)
    span = high - low
    scale = span / np.float32(top)
    if not search:
        return scale, low
    steps = inverse_of(span)
    weighted = w * x
    sw, swx, swxx = w.sum(axis=0), weighted.sum(axis=0), _dot(weighted, x)
    from_low = x - low
    error = np.full_like(low, np.inf)
    best_scale, best_low = scale, low

    def offer(codes: Floats) -> None:
        """Take the fit to these codes where it is the best so far."""
        nonlocal error, best_scale, best_low
        wq = w * codes
        sq, sqq, sqx = wq.sum(axis=0), _dot(wq, codes), _dot(wq, x)
        determinant = sw * sqq - sq * sq
        inverse = inverse_of(determinant)
        slope = (sw * sqx - sq * swx) * inverse
        offset = (sqq * swx - sq * sqx) * inverse
        if low_at_most_zero:
            above = offset > 0
            slope = np.where(above, sqx * inverse_of(sqq), slope)
            offset = np.where(above, np.float32(0), offset)
        found = swxx - slope * sqx - offset * swx
        better = (found < error) & (slope > 0) & (determinant > 0)
        error = np.where(better, found, error)
        best_scale = np.where(better, slope, best_scale)
        best_low = np.where(better, offset, best_low)

    for shift in _AFFINE_SHIFTS:
        offer(np.clip(np.rint(from_low * (steps * np.float32(top + shift))), 0, top))
    offer(np.clip(np.rint((x - best_low) * inverse_of(best_scale)), 0, top))
    return best_scale, best_low


def fit_symmetric(x: Floats, w: Floats, lowest: int, highest: int, *, search: bool) -> Floats:
    """The scale of each block, negative or positive, for codes `lowest` to `highest`.

    Where one code more is below zero than above, the largest weight takes the lowest code.
    """
    extreme: Floats = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    plain: Floats = extreme / np.float32(lowest)
    if not search:
        return plain
    steps = inverse_of(extreme)
    weighted = w * x
    gain = np.zeros_like(extreme)
    best = plain

    def offer(codes: Floats) -> None:
        nonlocal gain, best
        sqq, sqx = _dot(w * codes, codes), _dot(weighted, codes)
        slope = sqx * inverse_of(sqq)
        found = slope * sqx  # by so much the squared error is less than that of zeros
        better = found > gain
        gain = np.where(better, found, gain)
        best = np.where(better, slope, best)

    for start in _symmetric_starts(lowest, highest):
        offer(np.clip(np.rint(x * (steps * np.float32(start))), lowest, highest))
    offer(np.clip(np.rint(x * inverse_of(best)), lowest, highest))
    return best


def _symmetric_starts(lowest: int, highest: int) -> Sequence[float]:
    """Codes (with a fraction) that the largest weight is given to begin with, on both sides where they differ."""
    if lowest == -highest:
        return [lowest + shift for shift in _FINE_SHIFTS]
    return [side + shift for side in (lowest, highest) for shift in _SYMMETRIC_SHIFTS]


def inverse_of(values: Floats) -> Floats:
    """1 / values, and 0 for 0."""
    result: Floats = np.divide(np.float32(1), values, out=np.zeros_like(values), where=values != 0)
    return result


def _dot(a: Floats, b: Floats) -> Floats:
    result: Floats = np.einsum("ij,ij->j", a, b)
    return result
