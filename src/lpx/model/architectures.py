"""The architectures that LPX knows: what each has, beyond the numbers of its config.

A new architecture is an entry here, its names in `weight_names.py` when they differ, and its rules for windows and
rotary embeddings in `hf_config.py` and `gguf_config.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lpx.errors import ModelFileError, UnsupportedModelError
from lpx.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Architecture:
    name: str
    activation: Literal["silu", "gelu_tanh"] = "silu"
    biases: Literal["none", "optional", "qkv"] = "none"  # "qkv": q, k and v must have one
    qk_norm: bool = False
    post_norms: bool = False  # a norm after attention and one after the feed-forward part too
    norm_offset: float = 0.0  # Hugging Face files hold norm weights less this; converters to GGUF add it
    scaled_embedding: bool = False  # embeddings are multiplied by sqrt(hidden_size)
    fused: bool = False  # q, k, v are one matrix, and so are gate and up
    interleaved_in_gguf: bool = False  # converters to GGUF re-order rows of q and k for interleaved rotary pairs
    tied_by_default: bool = False  # what a config.json without tie_word_embeddings means


ARCHITECTURES: dict[str, Architecture] = {
    arch.name: arch
    for arch in (
        Architecture("llama", biases="optional", interleaved_in_gguf=True),
        Architecture("mistral", biases="optional", interleaved_in_gguf=True),
        Architecture("qwen2", biases="qkv"),
        Architecture("qwen3", biases="optional", qk_norm=True),
        Architecture(
            "gemma2",
            activation="gelu_tanh",
            post_norms=True,
            norm_offset=1.0,
            scaled_embedding=True,
            tied_by_default=True,
        ),
        Architecture(
            "gemma3",
            activation="gelu_tanh",
            qk_norm=True,
            post_norms=True,
            norm_offset=1.0,
            scaled_embedding=True,
            tied_by_default=True,
        ),
        Architecture("phi3", fused=True),
    )
}

# Bounds that no model of the supported kinds comes near; they keep a hostile file from making LPX work for long.
MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20
MAX_HEADS = 1 << 12
MAX_HEAD_DIM = 1 << 12
MAX_VOCAB = 1 << 24
MAX_POSITION = 1 << 30


def refuse_architecture(name: str, where: str) -> UnsupportedModelError:
    """The error for an architecture that is not in the table."""
    return UnsupportedModelError(
        f"{where}: architecture {name!r} is not supported. LPX runs {', '.join(ARCHITECTURES)}"
    )


def check_config(config: ModelConfig, where: str) -> ModelConfig:
    """The config itself, after checks of how its numbers fit together. Raises ModelFileError."""
    if config.num_heads % config.num_kv_heads:
        raise ModelFileError(
            f"{where}: {config.num_heads} attention heads cannot share {config.num_kv_heads} key/value heads evenly"
        )
    if config.head_dim % 2:
        raise ModelFileError(f"{where}: the head dimension {config.head_dim} is odd, so it cannot be rotated in pairs")
    for rotary in config.rotaries:
        if not 0 < 2 * len(rotary.inv_freq) <= config.head_dim:
            raise ModelFileError(
                f"{where}: {2 * len(rotary.inv_freq)} rotated dimensions do not fit heads of {config.head_dim}"
            )
    return config
