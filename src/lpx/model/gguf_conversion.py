"""A Hugging Face folder as the parts of a GGUF file: metadata, and tensors in another type.

Rows and offsets are as llama.cpp has them: Llama's queries and keys for interleaved rotary pairs, Gemma's norms with
the one added. What is written is compared with what was read before it is given out (`check_same`), so a model that
cannot be told in GGUF is refused instead of changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpx.errors import ConfigError, UnsupportedModelError
from lpx.model import rotary
from lpx.model.architectures import ARCHITECTURES
from lpx.model.config import ModelConfig
from lpx.model.gguf_writer import GgufTensor
from lpx.model.mapped_file import StoredTensor
from lpx.model.tensor_types import TYPES
from lpx.model.weight_names import WeightRule, gguf_name

# What --to takes, the type of matrices, and llama.cpp's number for such a file (general.file_type).
TARGETS = {"f32": ("F32", 0), "f16": ("F16", 1), "bf16": ("BF16", 32), "q8": ("Q8_0", 7)}
FREQUENCY_FACTORS = "rope_freqs.weight"
_CHUNK_VALUES = 1 << 22
_BLOCK = 32  # values that share a scale in Q8_0

Floats = NDArray[np.float32]


def check_target(target: str) -> None:
    """Raise ConfigError unless `target` is one of `TARGETS`."""
    if target not in TARGETS:
        raise ConfigError(f"the type {target!r} is not known; use one of {', '.join(TARGETS)}")


def config_metadata(config: ModelConfig, config_json: Mapping[str, Any], name: str, target: str) -> dict[str, Any]:
    """The keys that describe the decoder. Raises UnsupportedModelError for what GGUF has no keys for."""
    arch = "llama" if config.architecture == "mistral" else config.architecture
    text = config_json.get("text_config") if isinstance(config_json.get("text_config"), dict) else config_json
    assert isinstance(text, Mapping)
    values: dict[str, Any] = {
        "context_length": config.max_position,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.norm_eps),
        "rope.dimension_count": 2 * len(config.rotaries[0].inv_freq),
        "rope.freq_base": _base(text, "full_attention", 1e6 if arch == "gemma3" else 1e4),
        "vocab_size": config.vocab_size,
    }
    if arch == "gemma3":
        values["rope.freq_base_swa"] = _base(text, "sliding_attention", 1e4)
    if window := max(layer.window for layer in config.layers):
        values["attention.sliding_window"] = window
    if config.attention_softcap:
        values["attn_logit_softcapping"] = float(config.attention_softcap)
    if config.logit_softcap:
        values["final_logit_softcapping"] = float(config.logit_softcap)
    if factor := _linear_factor(text):
        values |= {"rope.scaling.type": "linear", "rope.scaling.factor": factor}
    general = {"architecture": arch, "name": name, "file_type": TARGETS[target][1], "quantization_version": 2}
    return {
        **{f"general.{key}": value for key, value in general.items()},
        **{f"{arch}.{key}": value for key, value in values.items()},
    }


@dataclass(frozen=True, slots=True)
class FolderTensor:
    """A tensor of the GGUF file to come, still in the folder's own file."""

    name: str  # in GGUF
    shape: tuple[int, ...]
    stored: StoredTensor
    heads: int  # whose rows are re-ordered for interleaved rotary pairs; 0: none
    offset: float  # added to each value

    def rows(self, begin: int, end: int) -> Floats:
        """Some rows as GGUF orders them: [end - begin, columns] of a matrix, [1, end - begin] of a vector."""
        raw = self.stored.view().reshape(self.shape[0], -1)
        chosen = raw[_interleaved_rows(self.shape[0], self.heads)[begin:end]] if self.heads else raw[begin:end]
        values = _floats(chosen, self.stored.type.name)
        return values + np.float32(self.offset) if self.offset else values


def folder_tensors(
    config: ModelConfig, rules: tuple[WeightRule, ...], stored: Mapping[str, StoredTensor]
) -> Iterator[FolderTensor]:
    """Every tensor of the model but the rotary factors. Raises UnsupportedModelError for weights of 4 bits."""
    if packed := next((tensor for tensor in stored.values() if tensor.type.block_values != 1), None):
        raise UnsupportedModelError(
            f"{packed.file.path} is quantized to 4 bits already: run it as it is, or take the unquantized model"
        )
    arch = ARCHITECTURES[config.architecture]
    for source in dict.fromkeys(rule.source for rule in rules):
        first = next(rule for rule in rules if rule.source == source)
        fused = len(first.source_shape) == 2 and first.source_shape != first.shape
        heads = 0
        if arch.interleaved_in_gguf and first.name.rpartition(".")[2] in ("q", "q_bias", "k", "k_bias"):
            heads = config.num_heads if first.name.rpartition(".")[2].startswith("q") else config.num_kv_heads
        name = gguf_name(first.name, fused=fused)
        yield FolderTensor(name, first.source_shape, stored[source], heads, first.norm_offset)


def tensors_of(
    config: ModelConfig,
    config_json: Mapping[str, Any],
    rules: tuple[WeightRule, ...],
    stored: Mapping[str, StoredTensor],
    target: str,
) -> Iterator[GgufTensor]:
    """Every tensor of the model, to be read when it is written. Matrices become `target`; vectors are F32.

    A matrix whose rows are no whole blocks stays F16 when `target` is quantized.
    """
    for tensor in folder_tensors(config, rules, stored):
        kind = "F32" if len(tensor.shape) == 1 else TARGETS[target][0]
        if kind == "Q8_0" and tensor.shape[-1] % _BLOCK:
            kind = "F16"
        yield GgufTensor(tensor.name, TYPES[kind], tensor.shape, partial(_pieces, tensor, kind))
    factors = frequency_factors(config, config_json)
    if factors is not None:
        yield GgufTensor(FREQUENCY_FACTORS, TYPES["F32"], factors.shape, lambda: [factors])


def check_same(before: ModelConfig, after: ModelConfig) -> None:
    """Raise UnsupportedModelError unless both configs describe the same decoder."""
    different = []
    for field in fields(ModelConfig):
        name, one, other = field.name, getattr(before, field.name), getattr(after, field.name)
        if name == "name" or (name == "architecture" and {one, other} == {"mistral", "llama"}):
            continue
        if name == "rotaries":
            same = len(one) == len(other) and all(
                np.allclose(a.inv_freq, b.inv_freq, rtol=1e-5) and np.isclose(a.attention_factor, b.attention_factor)
                for a, b in zip(one, other, strict=True)
            )
        else:
            same = np.isclose(one, other) if isinstance(one, float) else one == other
        if not same:
            different.append(name)
    if different:
        raise UnsupportedModelError(
            f"this model cannot be told in GGUF yet ({', '.join(different)} would differ): run it as it is, with "
            "--quantization q8 or q4 if it shall be smaller"
        )


def _pieces(tensor: FolderTensor, kind: str) -> Iterator[NDArray[Any]]:
    """The bytes of a tensor in another type, so many rows at a time."""
    columns = tensor.shape[-1] if len(tensor.shape) == 2 else 1
    step = max(1, _CHUNK_VALUES // columns)
    for begin in range(0, tensor.shape[0], step):
        yield _ENCODERS[kind](tensor.rows(begin, min(tensor.shape[0], begin + step)))
    tensor.stored.file.drop(tensor.stored.offset, tensor.stored.nbytes)


def _floats(raw: NDArray[np.uint8], kind: str) -> Floats:
    data = np.ascontiguousarray(raw)
    if kind == "F32":
        return data.view("<f4").astype(np.float32)
    if kind == "F16":
        return data.view("<f2").astype(np.float32)
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)  # BF16 is the upper half of an F32


def _as_f16(values: Floats) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        codes = values.astype(np.float16)
    # Beyond float16's range there is only infinity, which would spoil all; the largest value is what is nearest.
    most = np.float16(65504)
    return np.where(np.isinf(codes), np.copysign(most, codes), codes).astype("<f2")


def _as_bf16(values: Floats) -> NDArray[Any]:
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")  # to nearest, ties to even


def _as_q8_0(values: Floats) -> NDArray[Any]:
    """Blocks of 32 codes of 8 bits with a float16 scale."""
    blocks = values.reshape(-1, _BLOCK)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    codes = np.rint(blocks * inverse).astype(np.int8)
    return np.concatenate([_as_f16(scales).view(np.uint8), codes.view(np.uint8)], axis=1)


_ENCODERS: dict[str, Callable[[Floats], NDArray[Any]]] = {
    "F32": lambda values: values.astype("<f4"),
    "F16": _as_f16,
    "BF16": _as_bf16,
    "Q8_0": _as_q8_0,
}


def _interleaved_rows(rows: int, heads: int) -> NDArray[np.intp]:
    """For each row in the file, the row it has in the folder: pairs (j, j + half) of a head lie side by side."""
    return np.arange(rows).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)


def _base(text: Mapping[str, Any], layer_type: str, default: float) -> float:
    rope = text.get("rope_parameters")
    if isinstance(rope, Mapping):
        rope = rope.get(layer_type, rope)
        if isinstance(rope, Mapping) and isinstance(rope.get("rope_theta"), int | float):
            return float(rope["rope_theta"])
    value = text.get("rope_local_base_freq" if layer_type == "sliding_attention" else "rope_theta", default)
    return float(value)


def _scaling(text: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    rope = text.get("rope_parameters")
    rope = rope.get("full_attention", rope) if isinstance(rope, Mapping) else text.get("rope_scaling")
    if not isinstance(rope, Mapping):
        return "default", {}
    return str(rope.get("rope_type", rope.get("type", "default"))), rope


def _linear_factor(text: Mapping[str, Any]) -> float | None:
    kind, rope = _scaling(text)
    return float(rope["factor"]) if kind == "linear" else None


def frequency_factors(config: ModelConfig, config_json: Mapping[str, Any]) -> Floats | None:
    """Llama 3's scaling, one divisor a pair; other kinds have keys, or are found different by `check_same`."""
    if _scaling(config_json)[0] != "llama3":
        return None
    found = np.array(config.rotaries[0].inv_freq)
    plain = rotary.frequencies(_base(config_json, "full_attention", 1e4), 2 * len(found))
    factors: Floats = (plain / found).astype(np.float32)
    return factors
