"""GGML weight blocks in NumPy: every type decoded to float64, and random blocks of every type for tests.

Layouts are GGML's published block structures. Decoding is checked against the `gguf` package by
`check_against_gguf.py`; nothing here comes from `lpx`.
"""

import numpy as np

# name -> (values in a block, bytes of a block)
BLOCKS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
}

_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float64)


def dequantize(type_name, data, shape):
    """float64 values of `data` (bytes or uint8) in a GGML type; `shape` in NumPy order."""
    raw = np.frombuffer(bytes(data), dtype=np.uint8)
    if type_name == "F32":
        return raw.view(np.float32).reshape(shape).astype(np.float64)
    if type_name == "F16":
        return raw.view(np.float16).reshape(shape).astype(np.float64)
    if type_name == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape).astype(np.float64)
    blocks = raw.reshape(-1, BLOCKS[type_name][1])
    return _DECODERS[type_name](blocks).reshape(shape)


def _f16(blocks, offset):
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view(np.float16).astype(np.float64)  # [n, 1]


def _nibbles(packed):
    """Low nibbles, then high nibbles: [n, b] bytes -> [n, 2b]."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.int64)


def _fifth_bits(blocks, offset):
    word = np.ascontiguousarray(blocks[:, offset : offset + 4]).view("<u4")
    return ((word >> np.arange(32, dtype=np.uint32)) & 1).astype(np.int64)


def _q4_0(b):
    return (_nibbles(b[:, 2:]) - 8) * _f16(b, 0)


def _q4_1(b):
    return _nibbles(b[:, 4:]) * _f16(b, 0) + _f16(b, 2)


def _q5_0(b):
    return ((_nibbles(b[:, 6:]) | _fifth_bits(b, 2) << 4) - 16) * _f16(b, 0)


def _q5_1(b):
    return (_nibbles(b[:, 8:]) | _fifth_bits(b, 4) << 4) * _f16(b, 0) + _f16(b, 2)


def _q8_0(b):
    return b[:, 2:].view(np.int8).astype(np.float64) * _f16(b, 0)


def _iq4_nl(b):
    return _IQ4[_nibbles(b[:, 2:])] * _f16(b, 0)


def _two_bits(packed):
    """[n, 64] bytes -> [n, 2, 4, 32]: half, shift, byte; value order of Q2_K and Q3_K."""
    halves = packed.reshape(-1, 2, 1, 32)
    return ((halves >> np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)) & 3).astype(np.int64)


def _q2_k(b):
    q = _two_bits(b[:, 16:80]).reshape(-1, 16, 16)
    scale, low = (b[:, :16] & 15).astype(np.float64), (b[:, :16] >> 4).astype(np.float64)
    d, dmin = _f16(b, 80), _f16(b, 82)
    return (q * (d * scale)[:, :, None] - (dmin * low)[:, :, None]).reshape(-1, 256)


def _q3_k(b):
    high = b[:, :32].reshape(-1, 1, 32)
    bits = ((high >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & 1).astype(np.int64)  # [n, 8, 32]
    q = (_two_bits(b[:, 32:96]).reshape(-1, 8, 32) - 4 * (1 - bits)).reshape(-1, 16, 16)
    packed = b[:, 96:108]
    low4 = _nibbles(packed[:, :8])
    index = np.arange(16)
    high2 = (packed[:, 8:12][:, index % 4].astype(np.int64) >> (2 * (index // 4))) & 3
    scale = (low4 | high2 << 4) - 32
    return (q * (_f16(b, 108) * scale)[:, :, None]).reshape(-1, 256)


def _six_bit_pairs(s):
    """[n, 12] bytes -> scales and minimums [n, 8] of Q4_K and Q5_K."""
    s = s.astype(np.int64)
    scale = np.concatenate([s[:, 0:4] & 63, (s[:, 8:12] & 15) | (s[:, 0:4] >> 6) << 4], axis=1)
    low = np.concatenate([s[:, 4:8] & 63, (s[:, 8:12] >> 4) | (s[:, 4:8] >> 6) << 4], axis=1)
    return scale, low


def _q4_k(b):
    q = np.stack([b[:, 16:].reshape(-1, 4, 32) & 15, b[:, 16:].reshape(-1, 4, 32) >> 4], axis=2).astype(np.int64)
    scale, low = _six_bit_pairs(b[:, 4:16])
    q = q.reshape(-1, 8, 32)
    return (q * (_f16(b, 0) * scale)[:, :, None] - (_f16(b, 2) * low)[:, :, None]).reshape(-1, 256)


def _q5_k(b):
    packed = b[:, 48:].reshape(-1, 4, 32)
    q = np.stack([packed & 15, packed >> 4], axis=2).astype(np.int64).reshape(-1, 8, 32)
    high = (b[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & 1
    q = q + 16 * high.astype(np.int64)
    scale, low = _six_bit_pairs(b[:, 4:16])
    return (q * (_f16(b, 0) * scale)[:, :, None] - (_f16(b, 2) * low)[:, :, None]).reshape(-1, 256)


def _q6_k(b):
    low, high = b[:, :128].reshape(-1, 2, 2, 32), b[:, 128:192].reshape(-1, 2, 32)
    quarters = [(low[:, :, part % 2] >> (4 * (part // 2))) & 15 | ((high >> (2 * part)) & 3) << 4 for part in range(4)]
    q = np.stack(quarters, axis=2).astype(np.int64).reshape(-1, 16, 16) - 32
    scale = b[:, 192:208].view(np.int8).astype(np.float64)
    return (q * (_f16(b, 208) * scale)[:, :, None]).reshape(-1, 256)


def _iq4_xs(b):
    high = np.ascontiguousarray(b[:, 2:4]).view("<u2").astype(np.int64)
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], axis=2).reshape(-1, 8).astype(np.int64)
    scale = (low | ((high >> (2 * np.arange(8))) & 3) << 4) - 32
    packed = b[:, 8:].reshape(-1, 8, 16)
    values = _IQ4[np.concatenate([packed & 15, packed >> 4], axis=2)]
    return (values * (_f16(b, 0) * scale)[:, :, None]).reshape(-1, 256)


_DECODERS = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}

# Where the float16 scale and minimum of a block lie, and minimum = scale * ratio so that values centre on zero
# (ratio over what random codes average to).
_SCALE_AT = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208}
_MINIMUM = {"Q4_1": (2, -7.5), "Q5_1": (2, -15.5), "Q2_K": (82, 1.5), "Q4_K": (2, 7.5), "Q5_K": (2, 15.5)}


def random_blocks(type_name, shape, rng, std):
    """Bytes of a random tensor in a GGML type with about this standard deviation; every code and scale occurs."""
    count = int(np.prod(shape))
    if type_name in ("F32", "F16", "BF16"):
        values = (rng.standard_normal(count) * std).astype(np.float32)
        if type_name == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        return values.astype(np.float32 if type_name == "F32" else np.float16).tobytes()
    values, size = BLOCKS[type_name]
    if shape[-1] % values:
        raise ValueError(f"rows of {type_name} hold multiples of {values} values, not {shape[-1]}")
    blocks = rng.integers(0, 256, (count // values, size), dtype=np.uint8)
    scale_at = _SCALE_AT.get(type_name, 0)

    def put(offset, value):
        blocks[:, offset : offset + 2] = value.astype(np.float16).reshape(-1, 1).view(np.uint8)

    scale = rng.uniform(0.5, 1.5, len(blocks)) * np.where(rng.random(len(blocks)) < 0.2, -1, 1)
    # First with scales around one to learn the spread, then to the wanted spread.
    for factor in (None, std):
        if factor is not None:
            spread = dequantize(type_name, blocks.tobytes(), shape).std()
            scale = scale * factor / spread
        put(scale_at, scale)
        if type_name in _MINIMUM:
            offset, ratio = _MINIMUM[type_name]
            put(offset, scale * ratio)
    return blocks.tobytes()
