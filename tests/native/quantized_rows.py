"""What the matrix kernels should compute, in NumPy float64."""

from dataclasses import dataclass

import numpy as np

from tests.reference.ggml_blocks import BLOCKS, dequantize, random_blocks

FLOAT_TYPES = ("F32", "F16", "BF16")
BLOCK_TYPES = tuple(name for name in BLOCKS if name not in FLOAT_TYPES)


def random_weights(type_name, rows, cols, seed, std=0.05):
    """(file bytes as uint8, values [rows, cols] float64) of a random matrix in a GGML type."""
    data = np.frombuffer(random_blocks(type_name, (rows, cols), np.random.default_rng(seed), std), dtype=np.uint8)
    return data, dequantize(type_name, data, (rows, cols))


@dataclass
class QuantizedActivations:
    """int8 codes of rows in blocks of 32, and per 128 columns the quad (4 columns) that is carried twice."""

    codes: np.ndarray  # [rows, padded cols] int8
    scale: np.ndarray  # [rows, padded cols / 32] float32
    coarse: np.ndarray  # [rows, quads, 4] int8
    coarse_scale: np.ndarray  # [rows, quads] float32
    column: np.ndarray  # [rows, quads] int32, first column of the quad

    def parts(self):
        """(block values, quad values), both [rows, padded cols] float64; the activation is their sum."""
        rows, cols = self.codes.shape
        blocks = self.codes.astype(np.float64) * np.repeat(self.scale.astype(np.float64), 32, axis=1)
        quads = np.zeros((rows, cols))
        values = self.coarse.astype(np.float64) * self.coarse_scale.astype(np.float64)[:, :, None]
        for row in range(rows):
            for column, value in zip(self.column[row], values[row], strict=True):
                quads[row, column : column + 4] += value
        return blocks, quads


def quantized_activations(x):
    """What quantization of rows [n, cols] float32 should give."""
    rows, cols = x.shape
    blocks = -(-cols // 32)
    padded = np.zeros((rows, blocks * 32), dtype=np.float32)
    padded[:, :cols] = x
    out = QuantizedActivations(
        codes=np.zeros((rows, blocks * 32), dtype=np.int8),
        scale=np.zeros((rows, blocks), dtype=np.float32),
        coarse=np.zeros((rows, -(-blocks // 4), 4), dtype=np.int8),
        coarse_scale=np.zeros((rows, -(-blocks // 4)), dtype=np.float32),
        column=np.tile(np.arange(-(-blocks // 4), dtype=np.int32) * 128, (rows, 1)),
    )
    for row in range(rows):
        for start in range(0, blocks, 4):
            _quantize_four_blocks(padded[row], row, start, min(start + 4, blocks), out)
    return out


def _quantize_four_blocks(values, row, start, end, out):
    one, limit = np.float32(127), np.float32(1 / 254) * np.float32(1.0001)
    quads = np.abs(values[start * 32 : end * 32].reshape(-1, 8, 4)).max(axis=2)
    ordered = np.sort(quads, axis=1)
    first, second = ordered[:, -1], ordered[:, -2]
    gain = (first - second) * (first + second)
    chosen = int(gain.argmax()) if gain.max() > 0 else -1
    for block in range(end - start):
        at = slice((start + block) * 32, (start + block + 1) * 32)
        x, peak = values[at].copy(), first[block]
        if peak == 0:
            continue
        if block == chosen:
            quad = int(quads[block].argmax())
            within = slice(4 * quad, 4 * quad + 4)
            coarse = np.rint(x[within] * (one / peak))
            out.coarse[row, start // 4] = coarse
            out.coarse_scale[row, start // 4] = peak / one
            out.column[row, start // 4] = (start + block) * 32 + 4 * quad
            x[within] -= coarse.astype(np.float32) * (peak / one)
            peak = max(second[block], peak * limit)
        out.codes[row, at] = np.rint(x * (one / peak))
        out.scale[row, start + block] = peak / one


def expected_product(type_name, weights, x):
    """[rows of x, rows of weights] float64, and per element the sum of magnitudes that rounding errors scale with."""
    if type_name in FLOAT_TYPES:
        parts = [x.astype(np.float64)]
    else:
        parts = [part[:, : x.shape[1]] for part in quantized_activations(x).parts()]
    return sum(parts) @ weights.T, sum(np.abs(part) for part in parts) @ np.abs(weights).T
