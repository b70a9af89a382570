"""GGUF metadata to `ModelConfig`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lpx.errors import ModelFileError, UnsupportedModelError
from lpx.model import rotary
from lpx.model.architectures import (
    ARCHITECTURES,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITION,
    MAX_WIDTH,
    check_config,
    refuse_architecture,
)
from lpx.model.config import LayerConfig, ModelConfig, RotaryConfig
from lpx.model.config_values import ConfigValues
from lpx.model.mapped_file import StoredTensor

# Layers of Gemma's 27B models, the only ones whose query scale is not the head's; GGUF has no key for it.
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
_GEMMA3_LOCAL_BASE = 10_000.0
_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# Keys of other architectures that change the arithmetic, and the value that means "nothing".
_NEUTRAL = {
    "expert_count": 0,
    "expert_used_count": 0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "attention.clamp_kqv": 0.0,
    "attention.causal": True,
    "attention.temperature_scale": 0.0,
    "use_parallel_residual": False,
}


def config_from_gguf(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, StoredTensor],
    name: str,
    where: str,
    max_model_len: int | None = None,
) -> tuple[ModelConfig, frozenset[str]]:
    """The config, and the names of the tensors that went into it (rotary factors).

    Raises ModelFileError, or UnsupportedModelError for what LPX cannot run.
    """
    general = ConfigValues(metadata, where)
    arch_name = general.text("general.architecture")
    arch = ARCHITECTURES.get(arch_name)
    if arch is None or arch_name == "mistral":
        raise refuse_architecture(arch_name, where)
    values = ConfigValues(metadata, where, f"{arch_name}.")
    for key, neutral in _NEUTRAL.items():
        value = values.get(key)
        if value is not None and (isinstance(value, np.ndarray | list) or value != neutral):
            raise UnsupportedModelError(f"{values.where(key)} = {value!r:.40} is not supported for {arch_name}")
    hidden = values.integer("embedding_length", high=MAX_WIDTH)
    heads = values.integer("attention.head_count", high=MAX_HEADS)
    layers = values.integer("block_count", high=MAX_LAYERS)
    if "attention.key_length" not in values and hidden % heads:
        raise ModelFileError(f"{where}: {hidden} hidden values cannot be split among {heads} heads")
    head_dim = values.integer("attention.key_length", hidden // heads, high=MAX_HEAD_DIM)
    value_dim = values.integer("attention.value_length", head_dim, high=MAX_HEAD_DIM)
    if value_dim != head_dim:
        raise UnsupportedModelError(
            f"{where}: keys of {head_dim} and values of {value_dim} dimensions are not supported; they must be equal"
        )
    rotary_dim = values.integer("rope.dimension_count", head_dim, low=2, high=head_dim)
    if arch.interleaved_in_gguf and rotary_dim != head_dim:
        raise UnsupportedModelError(f"{where}: {arch_name} with {rotary_dim} of {head_dim} dimensions rotated")
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{where}: tensor 'token_embd.weight' is missing")
    context = values.integer("context_length", high=MAX_POSITION)
    rotary_config, max_position, used = _rotary(values, tensors, arch_name, rotary_dim, context, max_model_len)
    rotaries: tuple[RotaryConfig, ...] = (rotary_config,)
    if arch_name == "gemma3":
        local = values.positive("rope.freq_base_swa", _GEMMA3_LOCAL_BASE)
        rotaries += (rotary.config(rotary.frequencies(local, rotary_dim)),)
    config = ModelConfig(
        architecture=arch_name,
        name=name,
        hidden_size=hidden,
        intermediate_size=values.integer("feed_forward_length", high=MAX_WIDTH),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=values.integer("attention.head_count_kv", heads, high=MAX_HEADS),
        head_dim=head_dim,
        vocab_size=embedding.shape[0],
        max_position=max_position,
        norm_eps=values.positive("attention.layer_norm_rms_epsilon", high=1.0),
        rotaries=rotaries,
        layers=_layers(values, arch_name, layers),
        activation=arch.activation,
        embedding_scale=math.sqrt(hidden) if arch.scaled_embedding else 1.0,
        attention_scale=_attention_scale(values, arch_name, hidden, heads, head_dim, layers),
        attention_softcap=values.softcap("attn_logit_softcapping", 50.0 if arch_name == "gemma2" else 0.0),
        logit_softcap=values.softcap("final_logit_softcapping", 30.0 if arch_name == "gemma2" else 0.0),
        tied_head="output.weight" not in tensors,
    )
    return check_config(config, where), used


def _attention_scale(values: ConfigValues, arch: str, hidden: int, heads: int, head_dim: int, layers: int) -> float:
    scale = values.number("attention.scale", 0.0)
    if scale:
        return scale
    if layers == _GEMMA_27B_LAYERS.get(arch):
        return 1 / math.sqrt(hidden / heads)
    return 1 / math.sqrt(head_dim)


def _layers(values: ConfigValues, arch: str, count: int) -> tuple[LayerConfig, ...]:
    """Windows: of every layer, or of all but each n-th for the Gemmas, which also switch the rotary embedding."""
    window = values.integer("attention.sliding_window", 0, low=0, high=MAX_POSITION)
    period = {"gemma2": 2, "gemma3": 6}.get(arch)
    if period is None:
        if "attention.sliding_window_pattern" in values:
            raise UnsupportedModelError(
                f"{values.where('attention.sliding_window_pattern')} is not supported for {arch}"
            )
        return (LayerConfig(window),) * count
    if not window:
        raise ModelFileError(f"{values.where('attention.sliding_window')} is missing, but {arch} needs it")
    pattern = values.get("attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray):
        if pattern.dtype != np.bool_ or len(pattern) != count:
            raise ModelFileError(f"{values.where('attention.sliding_window_pattern')} must hold {count} bools")
        local = [bool(entry) for entry in pattern]
    else:
        period = values.integer("attention.sliding_window_pattern", period, high=MAX_LAYERS)
        local = [(i + 1) % period != 0 for i in range(count)]
    rotary_of_local = 1 if arch == "gemma3" else 0
    return tuple(LayerConfig(window, rotary_of_local) if entry else LayerConfig() for entry in local)


def _rotary(
    values: ConfigValues,
    tensors: Mapping[str, StoredTensor],
    arch: str,
    dim: int,
    context: int,
    max_model_len: int | None,
) -> tuple[RotaryConfig, int, frozenset[str]]:
    """The rotary embedding, the positions that it is good for, and the tensors that it used up."""
    base = values.positive("rope.freq_base", 1_000_000.0 if arch == "gemma3" else 10_000.0)
    if base <= 1:
        raise ModelFileError(f"{values.where('rope.freq_base')} is {base}, but must be above 1")
    original = values.integer("rope.scaling.original_context_length", context, low=2, high=MAX_POSITION)
    factor = values.positive("rope.scaling.factor", values.positive("rope.scale_linear", 1.0))
    # A factor without a type means linear, as it always has.
    kind = values.text("rope.scaling.type", "linear" if factor != 1 else "none")
    attention_factor = values.positive("rope.scaling.attn_factor", 1.0)
    inv_freq = rotary.frequencies(base, dim)
    max_position = context
    if kind == "linear":
        inv_freq = rotary.linear(inv_freq, factor)
    elif kind == "yarn":
        inv_freq = rotary.yarn(
            base,
            dim,
            factor,
            original,
            beta_fast=values.positive("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=values.positive("rope.scaling.yarn_beta_slow", 1.0),
        )
        for key, neutral in (("rope.scaling.yarn_ext_factor", 1.0), ("rope.scaling.yarn_attn_factor", 1.0)):
            if values.number(key, neutral, low=-math.inf) not in (neutral, -1.0):
                raise UnsupportedModelError(f"{values.where(key)} = {values.get(key)} is not supported")
        if values.number("rope.scaling.yarn_log_multiplier", 0.0):
            raise UnsupportedModelError(f"{values.where('rope.scaling.yarn_log_multiplier')} is not supported")
        # In GGUF the key multiplies YaRN's own magnitude, where config.json's attention_factor replaces it.
        attention_factor *= rotary.yarn_attention_factor(factor)
        max_position = max(context, int(original * factor))
    elif kind not in ("none", "longrope"):
        raise UnsupportedModelError(f"{values.where('rope.scaling.type')} = {kind!r} is not supported")
    used = frozenset(name for name in _ROPE_TENSORS if name in tensors)
    if "rope_freqs.weight" in used:
        inv_freq = rotary.divide(inv_freq, _factors(tensors["rope_freqs.weight"]), "tensor 'rope_freqs.weight'")
    pair = {"rope_factors_long.weight", "rope_factors_short.weight"} & used
    if len(pair) == 1 or (kind == "longrope" and not pair):
        raise ModelFileError(
            f"{values.where('rope.scaling')}: both rope_factors_long.weight and rope_factors_short.weight are needed"
        )
    if pair:
        # The short factors are for the original context; the long ones only pay off beyond it.
        chosen = "rope_factors_long.weight"
        if max_model_len is None or max_model_len <= original:
            chosen, max_position = "rope_factors_short.weight", min(original, context)
        inv_freq = rotary.divide(inv_freq, _factors(tensors[chosen]), f"tensor {chosen!r}")
    return rotary.config(inv_freq, attention_factor), max_position, used


def _factors(tensor: StoredTensor) -> Any:
    if tensor.type.name != "F32" or len(tensor.shape) != 1:
        raise ModelFileError(f"tensor {tensor.name!r} must be a vector of F32")
    return tensor.view().view(np.float32)
