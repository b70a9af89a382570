"""What a decoder is, in numbers: the one description that every architecture is mapped to.

A new architecture is a mapping to `ModelConfig` (see `architectures.py`) and, at most, a new field here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RotaryConfig:
    """Rotary embedding with scaling already applied: angle of pair j at position p is p * inv_freq[j].

    Pairs are (j, j + rotary_dim/2) of each head ("half-split"); weights stored for interleaved pairs are re-ordered
    by `WeightTensor.row_map` at load. Dimensions from 2 * len(inv_freq) on are left unrotated. cos and sin are
    multiplied by `attention_factor`.
    """

    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class LayerConfig:
    window: int = 0  # tokens a row attends to, itself included; 0: all
    rotary: int = 0  # index into ModelConfig.rotaries


@dataclass(frozen=True, slots=True)
class ModelConfig:
    architecture: str  # "llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "mistral"
    name: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int  # context length the model was made for
    norm_eps: float
    rotaries: tuple[RotaryConfig, ...]
    layers: tuple[LayerConfig, ...]
    activation: Literal["silu", "gelu_tanh"] = "silu"
    embedding_scale: float = 1.0
    attention_scale: float = 0.0  # multiplies q.k
    attention_softcap: float = 0.0  # 0: off; cap*tanh(x/cap) on scaled scores before the mask
    logit_softcap: float = 0.0  # 0: off
    tied_head: bool = False  # the output head is the embedding


@dataclass(slots=True)
class WeightTensor:
    """One weight in the file's own encoding.

    Canonical names: `embedding` [vocab, hidden], `head` [vocab, hidden] (absent when tied), `final_norm` [hidden], and
    per layer `layers.{i}.` + `attn_norm`, `q`, `k`, `v`, `o`, optional `q_bias`, `k_bias`, `v_bias`, `o_bias`,
    optional `q_norm`, `k_norm` [head_dim], optional `attn_post_norm`, `ffn_norm`, `gate`, `up`, `down`, optional
    `ffn_post_norm`. Matrices are [out, in] row-major. Vectors (norms, biases) always come as F32; norm weights are
    final (Gemma's +1 of safetensors is applied).
    """

    name: str
    type: str  # GGML type name: "F32", "F16", "BF16", "Q4_0", ..., "IQ4_XS"
    shape: tuple[int, ...]
    data: NDArray[np.uint8]  # raw bytes, see `mapped`
    row_map: NDArray[np.int32] | None = None  # row i of the decoder is row row_map[i] of `data`
    mapped: bool = False  # `data` is a view of a mapped file: its memory may be given back once it is read
