"""Compares `ggml_blocks.dequantize` with the `gguf` package (which pytest runs do not need).

python -m tests.reference.check_against_gguf      # from the repository root; needs `pip install gguf`
"""

import sys

import gguf
import numpy as np

from .ggml_blocks import BLOCKS, dequantize, random_blocks


def main():
    rng = np.random.default_rng(0)
    worst = 0.0
    for name in BLOCKS:
        shape = (64, 512)
        data = random_blocks(name, shape, rng, 0.05)
        raw = np.frombuffer(data, dtype=np.uint8).reshape(shape[0], -1)
        kind = gguf.GGMLQuantizationType[name]
        raw = raw.view({"F32": np.float32, "F16": np.float16}.get(name, np.uint8))
        theirs = gguf.dequantize(raw, kind).astype(np.float64)
        error = np.abs(theirs - dequantize(name, data, shape)).max() / np.abs(theirs).max()
        worst = max(worst, error)
        print(f"{name:7} largest difference / largest value {error:.1e}")
    return int(worst > 1e-6)  # the package computes in float32


if __name__ == "__main__":
    sys.exit(main())
