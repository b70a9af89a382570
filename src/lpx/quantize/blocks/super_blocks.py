"""Super-blocks of 256 weights, whose sub-blocks have scales that are whole multiples of a float16 scale.

The multiples are found together with the codes: from the best real scales of the sub-blocks, each multiple is moved by
one as long as the weighted error falls, then the float16 scales are refitted to all 256 codes, and once more.

Arrays are [values of a sub-block, sub-blocks, super-blocks].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lpx.quantize.blocks.fitting import Floats, fit_affine, fit_symmetric, inverse_of

_ROUNDS = 2
_MOST_MULTIPLE = 63  # 6 bits
_MOVES = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]


@dataclass(frozen=True, slots=True)
class AffineSuper:
    """x is about scale * multiples * codes - low_scale * low_multiples."""

    codes: NDArray[np.uint8]
    multiples: NDArray[np.uint8]  # [sub-blocks, super-blocks], as below
    low_multiples: NDArray[np.uint8]
    scale: NDArray[np.float16]  # [super-blocks], as below
    low_scale: NDArray[np.float16]


def fit_affine_super(x: Floats, w: Floats, top: int, *, search: bool) -> AffineSuper:
    """Codes 0 to `top` (Q4_K, Q5_K)."""
    size, subs, count = x.shape
    flat = fit_affine(x.reshape(size, -1), w.reshape(size, -1), top, low_at_most_zero=True, search=search)
    scales, lows = flat[0].reshape(subs, count), -flat[1].reshape(subs, count)
    scale = _half(scales.max(axis=0) / _MOST_MULTIPLE)
    low_scale = _half(lows.max(axis=0) / _MOST_MULTIPLE)
    multiples = np.clip(np.rint(scales * inverse_of(scale)), 0, _MOST_MULTIPLE)
    low_multiples = np.clip(np.rint(lows * inverse_of(low_scale)), 0, _MOST_MULTIPLE)

    def codes(multiples: Floats, low_multiples: Floats) -> Floats:
        found = (x + low_scale * low_multiples) * inverse_of(scale * multiples)
        return np.clip(np.rint(found, out=found), 0, top, out=found)

    def error(multiples: Floats, low_multiples: Floats) -> Floats:
        rest = codes(multiples, low_multiples)
        rest *= scale * multiples
        rest -= low_scale * low_multiples
        rest -= x
        rest *= rest
        found: Floats = np.einsum("ijk,ijk->jk", rest, w)
        return found

    for _ in range(_ROUNDS if search else 0):
        least, chosen, low_chosen = error(multiples, low_multiples), multiples, low_multiples
        for move, low_move in _MOVES:
            moved = np.clip(multiples + np.float32(move), 0, _MOST_MULTIPLE)
            low_moved = np.clip(low_multiples + np.float32(low_move), 0, _MOST_MULTIPLE)
            found = error(moved, low_moved)
            better = found < least
            least = np.where(better, found, least)
            chosen, low_chosen = np.where(better, moved, chosen), np.where(better, low_moved, low_chosen)
        multiples, low_multiples = chosen, low_chosen
        scale, low_scale = _refit(x, w, codes(multiples, low_multiples) * multiples, low_multiples, (scale, low_scale))
    return AffineSuper(
        codes=codes(multiples, low_multiples).astype(np.uint8),
        multiples=multiples.astype(np.uint8),
        low_multiples=low_multiples.astype(np.uint8),
        scale=scale.astype(np.float16),
        low_scale=low_scale.astype(np.float16),
    )


def _refit(
    x: Floats, w: Floats, steps: Floats, low_multiples: Floats, before: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """The two float16 scales that suit all codes best, where they are positive; those of before elsewhere."""
    ws = w * steps
    sub_w, sub_ws, sub_wx = w.sum(axis=0), ws.sum(axis=0), np.einsum("ijk,ijk->jk", w, x)
    ss, sx = np.einsum("ijk,ijk->k", ws, steps), np.einsum("ijk,ijk->k", ws, x)
    sl, lx = (sub_ws * low_multiples).sum(axis=0), (sub_wx * low_multiples).sum(axis=0)
    ll = (sub_w * low_multiples * low_multiples).sum(axis=0)
    inverse = inverse_of(ss * ll - sl * sl)
    scale, low_scale = (ll * sx - sl * lx) * inverse, (sl * sx - ss * lx) * inverse
    alone = ll == 0  # no sub-block has a minimum
    scale = np.where(alone, sx * inverse_of(ss), scale)
    low_scale = np.where(alone, before[1], low_scale)
    sound = (scale > 0) & (low_scale >= 0)
    return _half(np.where(sound, scale, before[0])), _half(np.where(sound, low_scale, before[1]))


@dataclass(frozen=True, slots=True)
class SymmetricSuper:
    """x is about scale * multiples * codes."""

    codes: NDArray[np.int8]
    multiples: NDArray[np.int8]  # [sub-blocks, super-blocks]
    scale: NDArray[np.float16]  # [super-blocks]


def fit_symmetric_super(x: Floats, w: Floats, lowest: int, highest: int, *, search: bool) -> SymmetricSuper:
    """Codes `lowest` to `highest` and multiples of 8 bits (Q6_K)."""
    size, subs, count = x.shape
    scales = fit_symmetric(x.reshape(size, -1), w.reshape(size, -1), lowest, highest, search=search)
    scales = scales.reshape(subs, count)
    extreme = np.take_along_axis(scales, np.abs(scales).argmax(axis=0)[None], axis=0)[0]
    scale = _half(extreme / -128)
    multiples = np.clip(np.rint(scales * inverse_of(scale)), -128, 127)

    def codes(multiples: Floats) -> Floats:
        found = x * inverse_of(scale * multiples)
        return np.clip(np.rint(found, out=found), lowest, highest, out=found)

    def error(multiples: Floats) -> Floats:
        rest = codes(multiples)
        rest *= scale * multiples
        rest -= x
        rest *= rest
        found: Floats = np.einsum("ijk,ijk->jk", rest, w)
        return found

    for _ in range(_ROUNDS if search else 0):
        multiples = _step(multiples, error)
        steps = codes(multiples) * multiples
        ws = w * steps
        ss, sx = np.einsum("ijk,ijk->k", ws, steps), np.einsum("ijk,ijk->k", ws, x)
        scale = _half(np.where(ss > 0, sx * inverse_of(ss), scale))
    return SymmetricSuper(
        codes=codes(multiples).astype(np.int8),
        multiples=multiples.astype(np.int8),
        scale=scale.astype(np.float16),
    )


def _step(multiples: Floats, error: Callable[[Floats], Floats]) -> Floats:
    """Each multiple, or its neighbour where that is better."""
    least, chosen = error(multiples), multiples
    for move in (-1, 1):
        moved = np.clip(multiples + np.float32(move), -128, 127)
        found = error(moved)
        better = found < least
        least, chosen = np.where(better, found, least), np.where(better, moved, chosen)
    return chosen


def _half(values: Floats) -> Floats:
    """As float16 holds them."""
    return values.astype(np.float16).astype(np.float32)
