"""Rotary embedding of the reference model: inverse frequencies of every published scaling kind, in float64.

Written from the definitions in the model cards and papers (RoPE: arXiv 2104.09864; YaRN: arXiv 2309.00071; LongRoPE:
arXiv 2402.13753; Llama 3's piecewise scaling: the Llama 3.1 release). Shares no code with `lpx`.
"""

import math

import numpy as np


def base_frequencies(theta, dim):
    return 1.0 / theta ** (np.arange(0, dim, 2, dtype=np.float64) / dim)


def scaled_frequencies(theta, dim, scaling, max_position, sequence_length):
    """Returns (inverse frequencies [dim / 2], factor on cos and sin) for a Hugging Face `rope_scaling` dict or None."""
    freq = base_frequencies(theta, dim)
    if not scaling:
        return freq, 1.0
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return freq, 1.0
    if kind == "linear":
        return freq / scaling["factor"], 1.0
    if kind == "llama3":
        return _llama3(freq, scaling), 1.0
    if kind == "yarn":
        return _yarn(freq, theta, dim, scaling, max_position)
    if kind in ("longrope", "su"):
        return _longrope(freq, scaling, max_position, sequence_length)
    raise ValueError(f"the reference knows no rope kind {kind!r}")


def _llama3(freq, scaling):
    original = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    out = np.empty_like(freq)
    for i, f in enumerate(freq):
        turns = original * f / (2 * math.pi)  # full turns of this pair over the original context
        if turns > high:
            out[i] = f
        elif turns < low:
            out[i] = f / scaling["factor"]
        else:
            smooth = (turns - low) / (high - low)
            out[i] = (1 - smooth) * f / scaling["factor"] + smooth * f
    return out


def _yarn(freq, theta, dim, scaling, max_position):
    factor = scaling["factor"]
    original = scaling.get("original_max_position_embeddings") or max_position

    def magnitude(m):
        return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1.0

    attention = scaling.get("attention_factor")
    if attention is None:
        if scaling.get("mscale") and scaling.get("mscale_all_dim"):
            attention = magnitude(scaling["mscale"]) / magnitude(scaling["mscale_all_dim"])
        else:
            attention = magnitude(1.0)

    def pair_with(turns):  # (fractional) pair index that makes `turns` turns over the original context
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = pair_with(scaling.get("beta_fast") or 32)
    high = pair_with(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    interpolated = np.clip((np.arange(dim // 2, dtype=np.float64) - low) / (high - low), 0, 1)
    return freq / factor * interpolated + freq * (1 - interpolated), attention


def _longrope(freq, scaling, max_position, sequence_length):
    original = scaling["original_max_position_embeddings"]
    factor = max_position / original
    attention = scaling.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    chosen = scaling["long_factor"] if sequence_length > original else scaling["short_factor"]
    return freq / np.asarray(chosen, dtype=np.float64), attention


def rotate_half_split(x, positions, freq, factor):
    """Rotates pairs (j, j + n) of the last axis, n = len(freq); later dimensions stay. x: [tokens, heads, head_dim]."""
    n = len(freq)
    angle = positions[:, None] * freq[None, :]
    cos, sin = (np.cos(angle) * factor)[:, None, :], (np.sin(angle) * factor)[:, None, :]
    cos, sin = cos.astype(x.dtype), sin.astype(x.dtype)
    first, second = x[..., :n], x[..., n : 2 * n]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, x[..., 2 * n :]], axis=-1)
