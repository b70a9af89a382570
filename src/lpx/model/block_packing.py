"""The bytes of GGML blocks from codes and scales. Layouts: ggml's published block structures.

Codes are [blocks, values of a block], scales [blocks] float16; results are uint8 [blocks, bytes of a block].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Halves = NDArray[np.float16]

# As bytes: Python numbers would widen the results.
_LOW, _FOUR, _SIX = np.uint8(15), np.uint8(4), np.uint8(6)


def pack_q4(codes: Bytes, *scales: Halves) -> Bytes:
    """Q4_0 (one scale) and Q4_1 (scale, minimum): codes 0 to 15."""
    return np.concatenate([*map(_bytes, scales), _nibbles(codes)], axis=1)


def pack_q5(codes: Bytes, *scales: Halves) -> Bytes:
    """Q5_0 and Q5_1: codes 0 to 31, the fifth bits in a word of their own."""
    fifth = np.packbits(codes >> _FOUR, axis=1, bitorder="little")
    return np.concatenate([*map(_bytes, scales), fifth, _nibbles(codes & _LOW)], axis=1)


def pack_q8_0(codes: NDArray[np.int8], scale: Halves) -> Bytes:
    return np.concatenate([_bytes(scale), codes.view(np.uint8)], axis=1)


def pack_q4_k(codes: Bytes, multiples: Bytes, low_multiples: Bytes, scale: Halves, low_scale: Halves) -> Bytes:
    """Multiples are [blocks, 8], 0 to 63."""
    packed = _six_bits(multiples, low_multiples)
    return np.concatenate([_bytes(scale), _bytes(low_scale), packed, _pairs(codes)], axis=1)


def pack_q5_k(codes: Bytes, multiples: Bytes, low_multiples: Bytes, scale: Halves, low_scale: Halves) -> Bytes:
    packed = _six_bits(multiples, low_multiples)
    # Bit j of byte i is the fifth bit of value i of sub-block j.
    fifth = np.packbits((codes >> _FOUR).reshape(-1, 8, 32), axis=1, bitorder="little").reshape(-1, 32)
    return np.concatenate([_bytes(scale), _bytes(low_scale), packed, fifth, _pairs(codes & _LOW)], axis=1)


def pack_q6_k(codes: NDArray[np.int8], multiples: NDArray[np.int8], scale: Halves) -> Bytes:
    """Codes -32 to 31, multiples [blocks, 16]."""
    quarters = (codes + np.int8(32)).view(np.uint8).reshape(-1, 2, 4, 32)
    low = (quarters[:, :, :2] & _LOW) | (quarters[:, :, 2:] & _LOW) << _FOUR
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(4, 1)
    high = np.bitwise_or.reduce((quarters >> _FOUR) << shifts, axis=2)
    count = len(codes)
    return np.concatenate(
        [low.reshape(count, 128), high.reshape(count, 64), multiples.view(np.uint8), _bytes(scale)], axis=1
    )


def _bytes(scale: Halves) -> Bytes:
    return np.ascontiguousarray(scale, dtype="<f2").reshape(-1, 1).view(np.uint8)


def _nibbles(codes: Bytes) -> Bytes:
    """Value i and value i + 16 of a block of 32 share a byte."""
    packed: Bytes = codes[:, :16] | codes[:, 16:] << _FOUR
    return packed


def _pairs(codes: Bytes) -> Bytes:
    """Sub-blocks of 32 in pairs: value i of both shares a byte."""
    pairs = codes.reshape(-1, 4, 2, 32)
    return (pairs[:, :, 0] | pairs[:, :, 1] << _FOUR).reshape(-1, 128)


def _six_bits(multiples: Bytes, low_multiples: Bytes) -> Bytes:
    """Eight times two values of 6 bits in 12 bytes: the first four whole, the others split into 4 and 2 bits."""
    whole = [part[:, :4] | (part[:, 4:] >> _FOUR) << _SIX for part in (multiples, low_multiples)]
    rest = (multiples[:, 4:] & _LOW) | (low_multiples[:, 4:] & _LOW) << _FOUR
    return np.concatenate([*whole, rest], axis=1)
