"""Rotary embedding: from base, dimensions and a scaling rule to the frequencies that the decoder uses.

Everything is computed in float64. `frequencies` gives inv_freq[j] = base^(-2j/dim), j < dim/2; the scaling rules
change these, and some a factor for cos and sin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lpx.errors import ModelFileError
from lpx.model.config import RotaryConfig

Frequencies = NDArray[np.float64]


def frequencies(base: float, dim: int) -> Frequencies:
    """Unscaled frequencies of `dim` rotated dimensions, which come in pairs."""
    if dim % 2:
        raise ModelFileError(f"a rotary embedding of {dim} dimensions is not possible: they are rotated in pairs")
    return np.power(float(base), -np.arange(0, dim, 2, dtype=np.float64) / dim)


def linear(inv_freq: Frequencies, factor: float) -> Frequencies:
    """Position interpolation (https://arxiv.org/abs/2306.15595)."""
    return inv_freq / factor


def llama3(
    inv_freq: Frequencies, factor: float, low_freq_factor: float, high_freq_factor: float, original_context: int
) -> Frequencies:
    """Llama 3.1's rule: long wavelengths are divided by `factor`, short ones kept, those between blended."""
    if high_freq_factor <= low_freq_factor:
        raise ModelFileError(
            f"llama3 rotary scaling: high_freq_factor {high_freq_factor} must be above "
            f"low_freq_factor {low_freq_factor}"
        )
    wavelength = 2 * math.pi / inv_freq
    keep: Frequencies = np.clip(
        (original_context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0
    )
    return keep * inv_freq + (1 - keep) * inv_freq / factor


def yarn(
    base: float,
    dim: int,
    factor: float,
    original_context: int,
    *,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> Frequencies:
    """YaRN's frequencies (https://arxiv.org/abs/2309.00071): pairs that turn more than `beta_fast` times within the
    original context are kept, those that turn less than `beta_slow` times are divided by `factor`."""

    def pair_with_turns(turns: float) -> float:
        return dim * math.log(original_context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_with_turns(beta_fast), pair_with_turns(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # as in the reference: no division by zero
    inv_freq = frequencies(base, dim)
    interpolated: Frequencies = np.clip((np.arange(dim // 2) - low) / (high - low), 0.0, 1.0)
    return inv_freq / factor * interpolated + inv_freq * (1 - interpolated)


def yarn_attention_factor(
    factor: float,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
) -> float:
    """YaRN's factor for cos and sin: the explicit one; else the ratio of both mscales; else 0.1 ln(factor) + 1.

    This is the rule of the reference implementation; that the ratio suits every model is disputed.
    """

    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if attention_factor is not None:
        return attention_factor
    if mscale and mscale_all_dim:
        return magnitude(mscale) / magnitude(mscale_all_dim)
    return magnitude(1.0)


def longrope_attention_factor(max_position: float, original_context: int) -> float:
    """LongRoPE's factor for cos and sin (https://arxiv.org/abs/2402.13753)."""
    scale = max_position / original_context
    return 1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(original_context))


def divide(inv_freq: Frequencies, factors: Sequence[float] | NDArray[np.float32], where: str) -> Frequencies:
    """Frequencies divided by one factor a pair; `where` names the factors in errors."""
    values = np.asarray(factors, dtype=np.float64)
    if values.shape != inv_freq.shape:
        raise ModelFileError(f"{where} holds {values.size} factors, but {inv_freq.size} pairs are rotated")
    if not np.all(np.isfinite(values)) or np.any(values <= 0):
        raise ModelFileError(f"{where} holds factors that are not finite numbers above 0")
    return inv_freq / values


def config(inv_freq: Frequencies, attention_factor: float = 1.0) -> RotaryConfig:
    """The frequencies as the decoder's config wants them."""
    return RotaryConfig(tuple(float(f) for f in inv_freq), float(attention_factor))
