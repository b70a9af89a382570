"""A Hugging Face `config.json` to `ModelConfig`, in the layouts of transformers 4 and 5."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lpx.errors import ModelFileError, UnsupportedModelError
from lpx.model import rotary
from lpx.model.architectures import (
    ARCHITECTURES,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITION,
    MAX_VOCAB,
    MAX_WIDTH,
    Architecture,
    check_config,
    refuse_architecture,
)
from lpx.model.config import LayerConfig, ModelConfig, RotaryConfig
from lpx.model.config_values import ConfigValues
from lpx.model.int4_checkpoint import int4_format

_ARCHITECTURE_OF = {"gemma3_text": "gemma3", "gemma3": "gemma3"}  # model_type -> our name, where they differ
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
# Values that the classes of transformers fill in, and that published files therefore leave out.
_GEMMA3_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
}
_GEMMA2_DEFAULTS: dict[str, Any] = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_MAX_MSCALE = 1e6
_FULL, _SLIDING = "full_attention", "sliding_attention"


def config_from_hf(
    config_json: Mapping[str, Any], name: str, where: str, max_model_len: int | None = None
) -> tuple[ModelConfig, bool | None]:
    """The config, and `tie_word_embeddings` (None when the file leaves it to the architecture).

    `ModelConfig.tied_head` is filled in from that; a missing head decides it where the config does not say.
    Raises ModelFileError, or UnsupportedModelError for what LPX cannot run.
    """
    top = ConfigValues(config_json, where)
    model_type = top.text("model_type")
    arch = ARCHITECTURES.get(_ARCHITECTURE_OF.get(model_type, model_type))
    if arch is None:
        raise refuse_architecture(model_type, where)
    int4_format(config_json, where)  # refuses what cannot be read
    values = top
    tied = top.flag("tie_word_embeddings", arch.tied_by_default) if "tie_word_embeddings" in top else None
    if model_type == "gemma3" and "text_config" in top:
        text = config_json["text_config"]
        if not isinstance(text, dict):
            raise ModelFileError(f"{where}: text_config must be an object")
        values = ConfigValues(text, f"{where}: text_config")
    if arch.name == "gemma3":
        values = values.with_defaults(_GEMMA3_DEFAULTS)
    elif arch.name == "gemma2":
        values = values.with_defaults(_GEMMA2_DEFAULTS)
    for key in ("num_local_experts", "num_experts"):
        if values.integer(key, 0, low=0) > 1:
            raise UnsupportedModelError(f"{values.where(key)}: mixtures of experts are not supported")
    if values.flag("mlp_bias", False):
        raise UnsupportedModelError(f"{values.where('mlp_bias')}: biases in the feed-forward part are not supported")
    if values.flag("use_bidirectional_attention", False):
        raise UnsupportedModelError(f"{values.where('use_bidirectional_attention')} is not supported")
    _check_activation(values, arch)

    hidden = values.integer("hidden_size", high=MAX_WIDTH)
    heads = values.integer("num_attention_heads", high=MAX_HEADS)
    layers = values.integer("num_hidden_layers", high=MAX_LAYERS)
    if "head_dim" not in values and hidden % heads:
        raise ModelFileError(f"{where}: {hidden} hidden values cannot be split among {heads} heads")
    head_dim = values.integer("head_dim", hidden // heads, high=MAX_HEAD_DIM)
    rotaries, max_position = _rotaries(values, arch, head_dim, max_model_len)
    query_scalar = float(head_dim)
    if arch.name in ("gemma2", "gemma3"):
        query_scalar = values.positive("query_pre_attn_scalar", query_scalar)
    gemma = arch.name in ("gemma2", "gemma3")
    config = ModelConfig(
        architecture=arch.name,
        name=name,
        hidden_size=hidden,
        intermediate_size=values.integer("intermediate_size", high=MAX_WIDTH),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=values.integer("num_key_value_heads", heads, high=MAX_HEADS),
        head_dim=head_dim,
        vocab_size=values.integer("vocab_size", high=MAX_VOCAB),
        max_position=max_position,
        norm_eps=values.positive("rms_norm_eps", 1e-6, high=1.0),
        rotaries=rotaries,
        layers=_layers(values, arch.name, layers),
        activation=arch.activation,
        # The reference rounds this to the model's dtype (34 for a bf16 model of 1152, not 33.94); converters and
        # float32 runs do not, nor does LPX.
        embedding_scale=math.sqrt(hidden) if arch.scaled_embedding else 1.0,
        attention_scale=1 / math.sqrt(query_scalar),
        attention_softcap=values.softcap("attn_logit_softcapping") if gemma else 0.0,
        logit_softcap=values.softcap("final_logit_softcapping") if gemma else 0.0,
        tied_head=arch.tied_by_default if tied is None else tied,
    )
    return check_config(config, where), tied


def _check_activation(values: ConfigValues, arch: Architecture) -> None:
    # Gemma's old `hidden_act: gelu` means the tanh form; `hidden_activation` is the key that counts.
    key = "hidden_activation" if "hidden_activation" in values else "hidden_act"
    name = values.text(key, "gelu_pytorch_tanh" if arch.activation == "gelu_tanh" else "silu")
    if arch.activation == "gelu_tanh" and key == "hidden_act" and name == "gelu":
        return
    if _ACTIVATIONS.get(name) != arch.activation:
        raise UnsupportedModelError(f"{values.where(key)} = {name!r} is not supported for {arch.name}")


def _layers(values: ConfigValues, arch: str, count: int) -> tuple[LayerConfig, ...]:
    window = values.integer("sliding_window", 0, low=0, high=MAX_POSITION)
    if arch == "llama" or (arch in ("qwen2", "qwen3") and not values.flag("use_sliding_window", False)):
        window = 0  # the key may be there, but nothing reads it
    types = values.get("layer_types")
    if types is None:
        if arch in ("qwen2", "qwen3") and window:
            first = values.integer("max_window_layers", low=0, high=MAX_LAYERS)
            types = [_SLIDING if i >= first else _FULL for i in range(count)]
        elif arch == "gemma2":
            types = [_FULL if i % 2 else _SLIDING for i in range(count)]
        elif arch == "gemma3":
            key = "_sliding_window_pattern" if "_sliding_window_pattern" in values else "sliding_window_pattern"
            period = values.integer(key, 6, high=MAX_LAYERS)
            types = [_SLIDING if (i + 1) % period else _FULL for i in range(count)]
        else:
            types = [_SLIDING if window else _FULL] * count
    if not isinstance(types, list) or len(types) != count:
        raise ModelFileError(f"{values.where('layer_types')} must name the type of each of {count} layers")
    layers = []
    for index, kind in enumerate(types):
        if kind == _FULL:
            layers.append(LayerConfig())
        elif kind == _SLIDING:
            if not window:
                raise ModelFileError(f"{values.where('sliding_window')} is missing, but layer {index} needs it")
            layers.append(LayerConfig(window, 1 if arch == "gemma3" else 0))
        else:
            raise UnsupportedModelError(f"{values.where('layer_types')}: {kind!r} of layer {index} is not supported")
    return tuple(layers)


def _rotaries(
    values: ConfigValues, arch: Architecture, head_dim: int, max_model_len: int | None
) -> tuple[tuple[RotaryConfig, ...], int]:
    """One rotary embedding for all layers, or Gemma 3's two: of global layers, then of local ones."""
    context = values.integer("max_position_embeddings", 8192 if arch.name == "gemma2" else None, high=MAX_POSITION)
    default_base = 1_000_000.0 if arch.name == "gemma3" else 10_000.0
    new = values.section("rope_parameters")
    by_layer_type = new is not None and (_FULL in new or _SLIDING in new)
    if new is not None and by_layer_type:
        rope = new.section(_FULL)
        if rope is None:
            raise ModelFileError(f"{new.where(_FULL)} is missing")
    elif new is not None:
        rope = new
    else:
        rope = values.section("rope_scaling") or ConfigValues({}, values.where("rope_scaling"))
    base = rope.positive("rope_theta", values.positive("rope_theta", default_base))
    result, max_position = _scaled(values, rope, arch, base, head_dim, context, max_model_len)
    if arch.name == "gemma3":
        local = new.section(_SLIDING) if new is not None and by_layer_type else None
        local_base = values.positive("rope_local_base_freq", 10_000.0)
        if local is not None:
            if _kind(local) != "default":
                raise UnsupportedModelError(f"{local.where('rope_type')} = {_kind(local)!r} is not supported")
            local_base = local.positive("rope_theta", local_base)
        return (result, rotary.config(rotary.frequencies(_base(local_base, values), head_dim))), max_position
    if new is not None and by_layer_type:
        sliding = new.section(_SLIDING)
        if sliding is not None and _scaled(values, sliding, arch, base, head_dim, context, max_model_len)[0] != result:
            raise UnsupportedModelError(f"{new.where(_SLIDING)} differs from {_FULL}, which only Gemma 3 may do")
    return (result,), max_position


def _kind(rope: ConfigValues) -> str:
    return rope.text("rope_type", rope.text("type", "default"))


def _base(base: float, values: ConfigValues) -> float:
    if base <= 1:
        raise ModelFileError(f"{values.where('rope_theta')} is {base}, but must be above 1")
    return base


def _scaled(
    values: ConfigValues,
    rope: ConfigValues,
    arch: Architecture,
    base: float,
    head_dim: int,
    context: int,
    max_model_len: int | None,
) -> tuple[RotaryConfig, int]:
    """One rotary embedding with its scaling, and the positions that it is good for."""
    _base(base, values)
    fraction = rope.positive("partial_rotary_factor", values.positive("partial_rotary_factor", 1.0), high=1.0)
    if fraction != 1 and arch.name != "phi3":
        raise UnsupportedModelError(f"{values.where('partial_rotary_factor')} is not supported for {arch.name}")
    dim = int(head_dim * fraction)
    if dim < 2 or dim % 2:
        raise ModelFileError(f"{values.where('partial_rotary_factor')}: {dim} rotated dimensions are no whole pairs")
    inv_freq = rotary.frequencies(base, dim)
    kind = _kind(rope)
    if kind == "default":
        return rotary.config(inv_freq), context
    original = values.optional_integer("original_max_position_embeddings", low=2, high=MAX_POSITION)
    original = rope.integer("original_max_position_embeddings", original or context, low=2, high=MAX_POSITION)
    if kind == "linear":
        factor = rope.positive("factor")
        # Gemma's context length already counts the scaling.
        longer = context if arch.name == "gemma3" else int(context * factor)
        return rotary.config(rotary.linear(inv_freq, factor)), longer
    if kind == "llama3":
        inv_freq = rotary.llama3(
            inv_freq,
            rope.positive("factor"),
            rope.positive("low_freq_factor"),
            rope.positive("high_freq_factor"),
            original,
        )
        return rotary.config(inv_freq), context
    if kind == "yarn":
        factor = rope.positive("factor", context / original)
        inv_freq = rotary.yarn(
            base,
            dim,
            factor,
            original,
            beta_fast=rope.positive("beta_fast", 32.0),
            beta_slow=rope.positive("beta_slow", 1.0),
            truncate=rope.flag("truncate", True),
        )
        attention_factor = rotary.yarn_attention_factor(
            factor,
            rope.positive("attention_factor") if "attention_factor" in rope else None,
            rope.optional_number("mscale", high=_MAX_MSCALE),
            rope.optional_number("mscale_all_dim", high=_MAX_MSCALE),
        )
        return rotary.config(inv_freq, attention_factor), max(context, int(original * factor))
    if kind == "dynamic":
        # It leaves everything as it is up to the model's own context, and LPX goes no further.
        if max_model_len is not None and max_model_len > context:
            raise UnsupportedModelError(
                f"{rope.where('rope_type')} = 'dynamic': lengths beyond {context} need rotary frequencies that change "
                f"with the length, which LPX does not support; a length of {max_model_len} was asked for"
            )
        return rotary.config(inv_freq), context
    if kind in ("longrope", "su"):
        # The short factors are for the original context; the long ones only pay off beyond it.
        if "original_max_position_embeddings" not in rope and "original_max_position_embeddings" not in values:
            raise ModelFileError(f"{values.where('original_max_position_embeddings')} is missing, but {kind} needs it")
        use_long = max_model_len is not None and max_model_len > original
        key = "long_factor" if use_long else "short_factor"
        factors = rope.numbers(key, dim // 2)
        attention_factor = rope.positive("attention_factor", rotary.longrope_attention_factor(context, original))
        return (
            rotary.config(rotary.divide(inv_freq, factors, rope.where(key)), attention_factor),
            context if use_long else min(original, context),
        )
    raise UnsupportedModelError(f"{rope.where('rope_type')} = {kind!r} is not supported")
