"""A decoder in NumPy float32 that shows what goes into each matrix: the running model does not, and must not slow down.

It goes through the model layer by layer with all texts at once, so that only the weights of one layer are decoded at a
time. Formulas are those of the native decoder (`ModelConfig` says what each field means).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from lpx.model.config import LayerConfig, ModelConfig, RotaryConfig, WeightTensor

Floats = NDArray[np.float32]
Watch = Callable[[str, Floats], None]  # canonical name of a matrix, its input [tokens, columns]


def run_layers(
    config: ModelConfig,
    weights: Mapping[str, WeightTensor],
    windows: Sequence[Sequence[int]],
    watch: Watch,
    *,
    threads: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Run every window of token ids, each a text of its own; `watch` gets the inputs of all matrices but the embedding.

    `weights` are by canonical name. `watch` is called from the calling thread. The head is not computed. `progress` is
    told the layers done.
    """
    states = [_embed(config, weights["embedding"], ids) for ids in windows]
    with ThreadPoolExecutor(threads) as pool:
        for index, layer in enumerate(config.layers):
            prefix = f"layers.{index}."
            part = {name.removeprefix(prefix): decode(w) for name, w in weights.items() if name.startswith(prefix)}

            def step(state: Floats, part: dict[str, Floats] = part, layer: LayerConfig = layer) -> _Step:
                return _layer(config, layer, part, state)

            for at, (state, inputs) in enumerate(pool.map(step, states)):
                states[at] = state
                for name, values in inputs.items():
                    watch(prefix + name, values)
            if progress is not None:
                progress(index + 1, config.num_layers)
    norm = decode(weights["final_norm"])
    for state in states:
        watch("head", _rms_norm(state, norm, config.norm_eps))


_Step = tuple[Floats, dict[str, Floats]]


def decode(weight: WeightTensor, rows: NDArray[np.int64] | None = None) -> Floats:
    """A weight, or some rows of it, as float32 in the decoder's order."""
    from lpx import _native

    if len(weight.shape) == 1:
        return weight.data.view(np.float32)
    data = weight.data.reshape(weight.shape[0], -1)
    wanted = weight.row_map if rows is None else rows if weight.row_map is None else weight.row_map[rows]
    taken = data if wanted is None else data[wanted]
    values: Floats = _native.decode_rows(weight.type, weight.shape[1], np.ascontiguousarray(taken).reshape(-1))
    return values


def _embed(config: ModelConfig, embedding: WeightTensor, ids: Sequence[int]) -> Floats:
    return decode(embedding, np.asarray(ids, dtype=np.int64)) * np.float32(config.embedding_scale)


def _layer(config: ModelConfig, layer: LayerConfig, part: Mapping[str, Floats], x: Floats) -> _Step:
    """The state behind the layer, and the input of each of its matrices."""
    eps = config.norm_eps
    attended = _rms_norm(x, part["attn_norm"], eps)
    mixed = _attention(config, layer, part, attended)
    out = _linear(part, "o", mixed)
    x = x + (_rms_norm(out, part["attn_post_norm"], eps) if "attn_post_norm" in part else out)
    fed = _rms_norm(x, part["ffn_norm"], eps)
    gated = _activation(config, _linear(part, "gate", fed)) * _linear(part, "up", fed)
    down = _linear(part, "down", gated)
    x = x + (_rms_norm(down, part["ffn_post_norm"], eps) if "ffn_post_norm" in part else down)
    inputs = {"q": attended, "k": attended, "v": attended, "o": mixed, "gate": fed, "up": fed, "down": gated}
    return x, inputs


def _attention(config: ModelConfig, layer: LayerConfig, part: Mapping[str, Floats], x: Floats) -> Floats:
    tokens, width = len(x), config.head_dim
    q, k, v = (_linear(part, name, x).reshape(tokens, -1, width) for name in "qkv")
    if "q_norm" in part:
        q = _rms_norm(q, part["q_norm"], config.norm_eps)
        k = _rms_norm(k, part["k_norm"], config.norm_eps)
    rotary = config.rotaries[layer.rotary]
    q, k = _rotate(rotary, q), _rotate(rotary, k)
    group = config.num_heads // config.num_kv_heads
    # [kv heads, tokens of all query heads of the group, width]
    queries = (
        q.reshape(tokens, config.num_kv_heads, group, width).transpose(1, 2, 0, 3).reshape(-1, group * tokens, width)
    )
    scores: Floats = (queries @ k.transpose(1, 2, 0)) * np.float32(config.attention_scale)
    if cap := np.float32(config.attention_softcap):
        scores = cap * np.tanh(scores / cap)
    row, column = np.arange(tokens)[:, None], np.arange(tokens)[None, :]
    hidden = column > row
    if layer.window:
        hidden |= column <= row - layer.window
    by_row = scores.reshape(-1, group, tokens, tokens)
    by_row[:, :, hidden] = -np.inf
    by_row -= by_row.max(axis=-1, keepdims=True)
    np.exp(by_row, out=by_row)
    by_row /= by_row.sum(axis=-1, keepdims=True)
    mixed: Floats = (scores @ v.transpose(1, 0, 2)).reshape(-1, group, tokens, width)
    result: Floats = mixed.transpose(2, 0, 1, 3).reshape(tokens, -1)
    return result


def _rotate(rotary: RotaryConfig, x: Floats) -> Floats:
    """Pairs (j, j + half) of the rotated dimensions; x is [tokens, heads, width]."""
    half = len(rotary.inv_freq)
    angles = np.arange(len(x))[:, None, None] * np.array(rotary.inv_freq)
    cos = (np.cos(angles) * rotary.attention_factor).astype(np.float32)
    sin = (np.sin(angles) * rotary.attention_factor).astype(np.float32)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def _linear(part: Mapping[str, Floats], name: str, x: Floats) -> Floats:
    out: Floats = x @ part[name].T
    bias = part.get(f"{name}_bias")
    return out if bias is None else out + bias


def _rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    normed: Floats = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
    return normed


def _activation(config: ModelConfig, x: Floats) -> Floats:
    result: Floats
    if config.activation == "silu":
        result = x / (1 + np.exp(-np.maximum(x, -80)))
        return result
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    result = np.float32(0.5) * x * (1 + np.tanh(inner))
    return result
