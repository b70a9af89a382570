"""Rows of float weights to rows of a GGML type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lpx.model import block_packing as packing
from lpx.model.tensor_types import TYPES
from lpx.quantize.blocks.fitting import Floats, fit_affine, fit_symmetric, inverse_of
from lpx.quantize.blocks.super_blocks import fit_affine_super, fit_symmetric_super

_AT_ONCE = 1 << 16  # weights: temporaries of this many stay in the processor's cache
_LARGEST_HALF = 65504.0

Bytes = NDArray[np.uint8]


def encode(kind: str, values: Floats, importance: Floats | None = None, *, search: bool = True) -> Bytes:
    """Rows in a GGML type: uint8 [rows, bytes of a row] of float32 [rows, columns].

    `importance` [columns] is how much an error in each column matters (None: all alike); see
    `lpx.quantize.importance`. `search=False` rounds to nearest. Raises ValueError for a type that is not in
    `ENCODABLE`, rows that are no whole blocks, and values that the type's scales cannot hold.
    """
    rows, columns = values.shape
    if kind not in ENCODABLE:
        raise ValueError(f"weights cannot be encoded as {kind}; there are {', '.join(ENCODABLE)}")
    block = TYPES[kind].block_values
    if columns % block:
        raise ValueError(f"rows of {columns} values are no whole blocks of {kind}")
    if not np.isfinite(values).all():
        raise ValueError("values that are not finite")
    if kind != "F32" and np.abs(values).max(initial=0) > _LARGEST_HALF:
        raise ValueError(f"values beyond {_LARGEST_HALF:g}, which {kind} cannot hold")
    if kind in _FLOATS:
        return _FLOATS[kind](values).reshape(rows, -1)
    importance = np.ones(columns, np.float32) if importance is None else _positive(importance)
    step = max(1, _AT_ONCE // columns)
    parts = [
        _BLOCKS[kind](*_blocks(values[start : start + step], importance, block), search)
        for start in range(0, rows, step)
    ]
    return np.concatenate(parts).reshape(rows, -1)


def _positive(importance: Floats) -> Floats:
    """Scaled to a mean of 1, and never so small that a column's weights do not matter at all."""
    mean = float(importance.mean())
    if not mean > 0:
        return np.ones_like(importance)
    result: Floats = np.maximum(importance / np.float32(mean), np.float32(1e-4))
    return result


def _blocks(values: Floats, importance: Floats, block: int) -> tuple[Floats, Floats]:
    """Weights and how much their errors matter, both [values of a block, blocks].

    An error counts by its column's importance, and more in large weights (as llama.cpp has it): by the root of the sum
    of the weight's square and the block's mean square. Importance alone is the expected error of an output, but trusts
    a short text: KL was 6 % lower for SmolLM2-135M and 22 % higher for Qwen2.5-Coder-0.5B, both as Q4_0.
    """
    x = values.reshape(-1, block)
    spread = np.sqrt(np.einsum("ij,ij->i", x, x) / np.float32(block))[:, None]
    w = np.hypot(x, spread)
    w.reshape(values.shape)[:] *= importance
    x_t, w_t = np.ascontiguousarray(x.T), np.ascontiguousarray(w.T)
    # A common factor changes nothing, and keeps sums of tiny weights away from float32's end.
    w_t *= inverse_of(w_t.mean(axis=0))
    return x_t, w_t


def _symmetric(lowest: int, highest: int, x: Floats, w: Floats, search: bool) -> tuple[Floats, NDArray[np.float16]]:
    scale = fit_symmetric(x, w, lowest, highest, search=search).astype(np.float16)
    codes = np.clip(np.rint(x * inverse_of(scale.astype(np.float32))), lowest, highest)
    return codes.T, scale


def _q4_0(x: Floats, w: Floats, search: bool) -> Bytes:
    codes, scale = _symmetric(-8, 7, x, w, search)
    return packing.pack_q4((codes + 8).astype(np.uint8), scale)


def _q5_0(x: Floats, w: Floats, search: bool) -> Bytes:
    codes, scale = _symmetric(-16, 15, x, w, search)
    return packing.pack_q5((codes + 16).astype(np.uint8), scale)


def _q8_0(x: Floats, w: Floats, search: bool) -> Bytes:
    codes, scale = _symmetric(-127, 127, x, w, search)
    return packing.pack_q8_0(np.ascontiguousarray(codes).astype(np.int8), scale)


def _affine(top: int, x: Floats, w: Floats, search: bool) -> tuple[Bytes, NDArray[np.float16], NDArray[np.float16]]:
    found = fit_affine(x, w, top, low_at_most_zero=False, search=search)
    scale, low = (part.astype(np.float16) for part in found)
    codes = np.clip(np.rint((x - low.astype(np.float32)) * inverse_of(scale.astype(np.float32))), 0, top)
    return codes.T.astype(np.uint8), scale, low


def _q4_1(x: Floats, w: Floats, search: bool) -> Bytes:
    return packing.pack_q4(*_affine(15, x, w, search))


def _q5_1(x: Floats, w: Floats, search: bool) -> Bytes:
    return packing.pack_q5(*_affine(31, x, w, search))


def _affine_k(
    top: int, x: Floats, w: Floats, search: bool
) -> tuple[Bytes, Bytes, Bytes, NDArray[np.float16], NDArray[np.float16]]:
    found = fit_affine_super(_sub_blocks(x, 32), _sub_blocks(w, 32), top, search=search)
    return (
        np.ascontiguousarray(found.codes.transpose(2, 1, 0)).reshape(-1, 256),
        found.multiples.T,
        found.low_multiples.T,
        found.scale,
        found.low_scale,
    )


def _q4_k(x: Floats, w: Floats, search: bool) -> Bytes:
    return packing.pack_q4_k(*_affine_k(15, x, w, search))


def _q5_k(x: Floats, w: Floats, search: bool) -> Bytes:
    return packing.pack_q5_k(*_affine_k(31, x, w, search))


def _q6_k(x: Floats, w: Floats, search: bool) -> Bytes:
    found = fit_symmetric_super(_sub_blocks(x, 16), _sub_blocks(w, 16), -32, 31, search=search)
    codes = np.ascontiguousarray(found.codes.transpose(2, 1, 0)).reshape(-1, 256)
    return packing.pack_q6_k(codes, np.ascontiguousarray(found.multiples.T), found.scale)


def _sub_blocks(x: Floats, size: int) -> Floats:
    """[256, super-blocks] to [size, sub-blocks, super-blocks]."""
    return np.ascontiguousarray(x.reshape(256 // size, size, -1).swapaxes(0, 1))


def _bf16(values: Floats) -> Bytes:
    """Rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype("<u2").view(np.uint8)


_FLOATS: dict[str, Callable[[Floats], Bytes]] = {
    "F32": lambda values: np.ascontiguousarray(values, dtype="<f4").view(np.uint8),
    "F16": lambda values: values.astype("<f2").view(np.uint8),
    "BF16": _bf16,
}
_BLOCKS: dict[str, Callable[[Floats, Floats, bool], Bytes]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
ENCODABLE = (*_FLOATS, *_BLOCKS)
