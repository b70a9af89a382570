"""What the matrix kernels should compute, in NumPy float64."""

import numpy as np

from tests.reference.ggml_blocks import BLOCKS, dequantize, random_blocks

FLOAT_TYPES = ("F32", "F16", "BF16")
BLOCK_TYPES = tuple(name for name in BLOCKS if name not in FLOAT_TYPES)


def random_weights(type_name, rows, cols, seed, std=0.05):
    """(file bytes as uint8, values [rows, cols] float64) of a random matrix in a GGML type."""
    data = np.frombuffer(random_blocks(type_name, (rows, cols), np.random.default_rng(seed), std), dtype=np.uint8)
    return data, dequantize(type_name, data, (rows, cols))


def quantized_activations(x):
    """Rows [n, cols] float32 after the round trip through int8 in blocks of 32, and their codes and scales."""
    rows, cols = x.shape
    padded = np.zeros((rows, -(-cols // 32) * 32), dtype=np.float32)
    padded[:, :cols] = x
    blocks = padded.reshape(rows, -1, 32)
    largest = np.abs(blocks).max(axis=2)
    safe = np.where(largest > 0, largest, 1).astype(np.float32)
    scale = np.where(largest > 0, safe / np.float32(127), 0).astype(np.float32)
    inverse = np.where(largest > 0, np.float32(127) / safe, 0).astype(np.float32)
    codes = np.rint(blocks * inverse[:, :, None]).astype(np.int8)
    values = codes.astype(np.float64) * scale.astype(np.float64)[:, :, None]
    return values.reshape(rows, -1)[:, :cols], codes.reshape(rows, -1), scale


def expected_product(type_name, weights, x):
    """[rows of x, rows of weights] float64, and per element the sum of magnitudes that rounding errors scale with."""
    seen = x.astype(np.float64) if type_name in FLOAT_TYPES else quantized_activations(x)[0]
    return seen @ weights.T, np.abs(seen) @ np.abs(weights).T
