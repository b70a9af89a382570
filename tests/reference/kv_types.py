"""What the types of the KV cache keep of keys and values, in NumPy, and attention over it in float64."""

import numpy as np

from .model_files import round_bf16

TYPES = ("f16", "bf16", "q8", "q4")
MOST_F16 = np.float32(65504)
GROUP = 32


def kept_keys(x, kind):
    """Keys [tokens, head_dim] float32 as a cache of `kind` keeps them; codes in the rotated basis and back."""
    if kind in ("f16", "bf16"):
        return kept_values(x, kind)
    padded = np.zeros((len(x), -(-x.shape[1] // 16) * 16), dtype=np.float32)
    padded[:, : x.shape[1]] = _clamp(x, MOST_F16)
    basis = rotation(padded.shape[1])
    code = _eight_bits if kind == "q8" else _four_bits
    rotated = _by_group(code, (padded @ basis).astype(np.float32))
    return (rotated @ basis)[:, : x.shape[1]].astype(np.float32)


def kept_values(x, kind):
    """Values [tokens, head_dim] float32 as a cache of `kind` keeps them; q8 beside keys of another type."""
    if kind == "f16":
        return _clamp(x, MOST_F16).astype(np.float16).astype(np.float32)
    if kind == "bf16":
        clamped = _clamp(x, np.float32(3.3895314e38))
        return round_bf16(clamped)[0].reshape(x.shape)
    return _by_group(_eight_bits_with_scale if kind == "q8" else _four_bits, _clamp(x, MOST_F16))


def _by_group(code, x):
    return np.concatenate([code(x[:, at : at + GROUP]) for at in range(0, x.shape[1], GROUP)], axis=1)


def rotation(dim):
    """Symmetric and orthonormal [dim, dim]: Walsh and Hadamard over the largest powers of two that fit in turn."""
    whole = np.zeros((dim, dim))
    start = 0
    while start < dim:
        basis = np.ones((1, 1))
        while 2 * len(basis) <= dim - start:
            basis = np.block([[basis, basis], [basis, -basis]])
        end = start + len(basis)
        whole[start:end, start:end] = basis / np.sqrt(len(basis))
        start = end
    return whole


def attention(query, keys, values, group, first_position, window=0, softcap=0.0):
    """[tokens * group, head_dim] float64; row r is the query of position first_position + r // group."""
    rows = []
    for r, row in enumerate(query.astype(np.float64)):
        position = first_position + r // group
        seen = slice(max(0, position - window + 1) if window else 0, position + 1)
        scores = keys[seen].astype(np.float64) @ row
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        weights = np.exp(scores - scores.max())
        rows.append(weights / weights.sum() @ values[seen].astype(np.float64))
    return np.array(rows)


def _clamp(x, most):
    return np.clip(np.where(np.isnan(x), -most, x), -most, most).astype(np.float32)


def _scale(x):
    """Scales as float16 that reach at least x, the scale wished for."""
    return (x + np.float32(2**-25)).astype(np.float16).astype(np.float32)


def _inverse(scale):
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)


def _eight_bits(x):
    scale = _scale(np.abs(x).max(axis=1, keepdims=True) * np.float32(1 / 127))
    return np.rint(np.clip(x * _inverse(scale), -127, 127)) * scale


def _eight_bits_with_scale(x):
    """Dimensions 16 and up have codes whose lowest bits are those of the scale."""
    scale = _scale(np.abs(x).max(axis=1, keepdims=True) * np.float32(1 / 127))
    exact = x * _inverse(scale)
    codes = np.rint(np.clip(exact, -127, 127))
    bits = scale.astype(np.float16).view(np.uint16)
    for d in range(16, x.shape[1]):
        bit = (bits[:, 0] >> (d - 16) & 1).astype(np.float32)
        codes[:, d] = 2 * np.rint(np.clip((exact[:, d] - bit) * np.float32(0.5), -63 - bit, 63)) + bit
    return codes * scale


def _four_bits(x):
    low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    minimum = low.astype(np.float16).astype(np.float32)
    scale = _scale((high - low) * np.float32(1 / 15))
    return minimum + np.rint(np.clip((x - minimum) * _inverse(scale), 0, 15)) * scale
