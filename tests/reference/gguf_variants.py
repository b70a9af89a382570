"""Variants of a GGUF file, for tests of quality: what it may have been quantized from, other types, wrong scales."""

import numpy as np

from lpx.model.gguf_shards import open_shards

from .ggml_blocks import dequantize
from .gguf_writer import write_gguf

_SCALES = {"Q8_0": 1, "Q4_0": 1, "Q4_1": 2, "Q5_0": 1, "Q5_1": 2, "Q4_K": 2, "Q5_K": 2}  # float16 numbers at the front


def write_variant(source, target, change):
    """Write `source` again; `change(name, type, values shape, data)` gives the new (type, bytes) of each tensor."""
    files, metadata, tensors = open_shards(source)
    try:
        written = []
        for name, stored in tensors.items():
            kind, data = change(name, stored.type.name, stored.shape, stored.view())
            written.append((name, kind, stored.shape, bytes(data)))
        return write_gguf(target, metadata, written)
    finally:
        for file in files:
            file.close()


def unquantized(name, kind, shape, data, seed=1):
    """F16 weights that may have been rounded to `data`: each value moved within half a step of its block's grid.

    Rounded to 4 or 8 bits again they have the errors of a real quantization; the file's own values would have none.
    """
    if kind in ("F32", "F16", "BF16"):
        return kind, data
    values = dequantize(kind, data, shape).reshape(-1, 32)
    step = (values.max(axis=1, keepdims=True) - values.min(axis=1, keepdims=True)) / 15
    noise = np.random.default_rng([seed, *name.encode()]).uniform(-0.5, 0.5, values.shape)
    return "F16", (values + step * noise).astype(np.float16).tobytes()


def as_q8_0(values):
    """Rows of values (a multiple of 32 each) as Q8_0."""
    blocks = values.reshape(-1, 32).astype(np.float32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
    codes = np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0)).astype(np.int8)
    return np.concatenate([scale.astype(np.float16).view(np.uint8), codes.view(np.uint8)], axis=1).tobytes()


def as_q4_1(values):
    """Rows of values (a multiple of 32 each) as Q4_1."""
    blocks = values.reshape(-1, 32).astype(np.float32)
    low = blocks.min(axis=1, keepdims=True)
    scale = (blocks.max(axis=1, keepdims=True) - low) / 15
    codes = np.divide(blocks - low, scale, out=np.zeros_like(blocks), where=scale > 0)
    codes = np.clip(np.rint(codes), 0, 15).astype(np.uint8)
    head = np.concatenate([scale, low], axis=1).astype(np.float16).view(np.uint8)
    return np.concatenate([head, codes[:, :16] | codes[:, 16:] << 4], axis=1).tobytes()


def with_scales(kind, data, factor):
    """The blocks of `data` with their float16 scales (and minima) multiplied by `factor`."""
    block_bytes = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q4_K": 144, "Q5_K": 176}[kind]
    blocks = np.frombuffer(bytes(data), dtype=np.uint8).reshape(-1, block_bytes).copy()
    scales = blocks[:, : 2 * _SCALES[kind]].copy().view(np.float16)
    blocks[:, : 2 * _SCALES[kind]] = (scales.astype(np.float32) * factor).astype(np.float16).view(np.uint8)
    return blocks.tobytes()
