"""What low precision costs, in NumPy: the reference with int8 activations, and weights quantized at load.

Gives tests a yardstick: a decoder that multiplies int8 blocks may be about as far from the exact result as these are.
"""

import numpy as np

from .numpy_model import ReferenceModel

BLOCK = 32


def _blocks(x):
    """Last axis in blocks of 32, padded with zeros: [..., n, 32]."""
    padding = -x.shape[-1] % BLOCK
    padded = np.concatenate([x, np.zeros((*x.shape[:-1], padding), dtype=x.dtype)], axis=-1)
    return padded.reshape(*x.shape[:-1], -1, BLOCK)


def round_int8(x):
    """Each block of 32 rounded to 255 levels of its own largest value."""
    blocks = _blocks(x)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / 127
    scale[scale == 0] = 1
    return (np.rint(blocks / scale) * scale).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]


def round_int4(x):
    """Each block of 32 rounded to 16 levels between its smallest and its largest value."""
    blocks = _blocks(x)
    low = blocks.min(axis=-1, keepdims=True)
    scale = (blocks.max(axis=-1, keepdims=True) - low) / 15
    scale[scale == 0] = 1
    return (np.rint((blocks - low) / scale) * scale + low).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]


class Int8Activations(ReferenceModel):
    """The reference with the inputs of all matrices rounded to int8 blocks."""

    def _linear(self, x, name):
        return super()._linear(round_int8(x), name)

    def _head(self, x):
        return super()._head(round_int8(x))


def quantize_at_load(weights, kind):
    """Weights as `--quantization q8` or `q4` stores them: head and embeddings always in 8 bits, vectors untouched."""
    out = {}
    for name, weight in weights.items():
        if weight.ndim == 1:
            out[name] = weight
        elif kind == "q8" or name in ("model.embed_tokens.weight", "lm_head.weight"):
            out[name] = round_int8(weight.astype(np.float64))
        else:
            out[name] = round_int4(weight.astype(np.float64))
    return out
