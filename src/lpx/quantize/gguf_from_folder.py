"""A Hugging Face folder as GGUF has it: metadata keys, tensor names, the order of rows.

Names and conventions are those of llama.cpp's converter: q and k rows of Llama-like models in interleaved rotary pairs,
fused matrices where the architecture has them, norm weights with Gemma's one added (as `ModelFiles` hands them out).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpx.errors import UnsupportedModelError
from lpx.model import rotary
from lpx.model.architectures import ARCHITECTURES
from lpx.model.config import ModelConfig, WeightTensor
from lpx.model.files import ModelFiles
from lpx.model.hf_folder import HfFolder
from lpx.model.weight_names import gguf_name
from lpx.quantize.float_decoder import decode
from lpx.quantize.gguf_tokenizer_keys import tokenizer_keys
from lpx.quantize.source import Floats, SourceTensor

_GGUF_ARCHITECTURE = {"mistral": "llama"}
_PERIODS = {"gemma2": 2, "gemma3": 6}  # of layers, the last of which sees everything; what readers take for granted


def gguf_metadata(files: ModelFiles) -> dict[str, Any]:
    """Keys of the model and its tokenizer. Raises UnsupportedModelError for what GGUF has no keys for."""
    config = files.config
    name = _GGUF_ARCHITECTURE.get(config.architecture, config.architecture)
    keys: dict[str, Any] = {
        "context_length": _context(files),
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.layer_norm_rms_epsilon": float(config.norm_eps),
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "vocab_size": config.vocab_size,
        **_window_keys(config, files),
        **_rotary_keys(config, files),
    }
    if config.attention_softcap or config.architecture == "gemma2":
        keys["attn_logit_softcapping"] = float(config.attention_softcap)
    if config.logit_softcap or config.architecture == "gemma2":
        keys["final_logit_softcapping"] = float(config.logit_softcap)
    if not math.isclose(config.attention_scale, 1 / math.sqrt(config.head_dim), rel_tol=1e-6):
        keys["attention.scale"] = float(config.attention_scale)
    metadata = {"general.architecture": name, "general.type": "model", "general.name": config.name}
    metadata |= {f"{name}.{key}": value for key, value in keys.items()}
    metadata |= tokenizer_keys(files)
    if files.chat_template is not None:
        metadata["tokenizer.chat_template"] = files.chat_template
    return metadata


def gguf_tensors(files: ModelFiles) -> list[SourceTensor]:
    """All tensors, those outside of the layers first."""
    config = files.config
    arch = ARCHITECTURES[config.architecture]
    weights = {weight.name: weight for weight in files.weights()}
    parts: dict[str, list[WeightTensor]] = {}
    for name in sorted(weights, key=_order):
        parts.setdefault(gguf_name(name, fused=arch.fused), []).append(weights[name])
    tensors = []
    for name, group in parts.items():
        heads = 0
        if arch.interleaved_in_gguf:
            part = group[0].name.rpartition(".")[2].removesuffix("_bias")
            heads = {"q": config.num_heads, "k": config.num_kv_heads}.get(part, 0)
        rows = sum(weight.shape[0] for weight in group)
        shape = (rows, *group[0].shape[1:])
        tensors.append(SourceTensor(name, shape, group[0].type, _reader(group, heads)))
    return tensors + _rotary_tensors(files)


def _order(name: str) -> tuple[int, int]:
    """Layers by number; of a fused matrix the parts in their order."""
    if not name.startswith("layers."):
        return -1, 0
    _, layer, part = name.split(".")
    return int(layer), {"q": 0, "k": 1, "v": 2, "gate": 3, "up": 4}.get(part, 5)


def _reader(group: Sequence[WeightTensor], heads: int) -> Callable[[int, int], Floats]:
    """Rows of one matrix, or of several one below the other; `heads` are re-ordered from halves to pairs."""
    if len(group[0].shape) == 1:
        return lambda start, stop: _in_pairs(np.concatenate([decode(part) for part in group]), heads)[None]
    counts = [part.shape[0] for part in group]
    order = _in_pairs(np.arange(sum(counts)), heads)

    def rows(start: int, stop: int) -> Floats:
        wanted = order[start:stop]
        pieces, first = [], 0
        for part, count in zip(group, counts, strict=True):
            inside = wanted[(wanted >= first) & (wanted < first + count)] - first
            if len(inside):
                pieces.append(decode(part, inside))
            first += count
        return np.concatenate(pieces)

    return rows


def _in_pairs(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    return rows if not heads else rows.reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)


def _context(files: ModelFiles) -> int:
    """What config.json says: a model with long and short rotary factors is opened for its original context."""
    value = _text_config(files).get("max_position_embeddings")
    scaled = _rope(files)[0] in ("linear", "yarn")
    return value if isinstance(value, int) and not scaled else files.config.max_position


def _window_keys(config: ModelConfig, files: ModelFiles) -> dict[str, Any]:
    windows = [layer.window for layer in config.layers]
    if not any(windows):
        return {}
    keys: dict[str, Any] = {"attention.sliding_window": max(windows)}
    local = [window > 0 for window in windows]
    period = _PERIODS.get(config.architecture)
    if period is None and not all(local):
        raise UnsupportedModelError(
            f"{files.path}: sliding windows in some layers only have no place in a GGUF file of {config.architecture}"
        )
    if period is not None and local != [(index + 1) % period != 0 for index in range(config.num_layers)]:
        keys["attention.sliding_window_pattern"] = np.array(local)
    return keys


def _text_config(files: ModelFiles) -> Mapping[str, Any]:
    values = HfFolder(files.path).config
    inner = values.get("text_config")
    return inner if isinstance(inner, dict) else values


def _rope(files: ModelFiles) -> tuple[str, Mapping[str, Any]]:
    """The kind of rotary scaling, and what config.json says of it: `open_model` has checked it."""
    values = _text_config(files)
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    rope = rope.get("full_attention", rope)
    kind = rope.get("rope_type", rope.get("type", "default"))
    return kind, {"original_max_position_embeddings": values.get("original_max_position_embeddings"), **rope}


def _rotary_keys(config: ModelConfig, files: ModelFiles) -> dict[str, Any]:
    dim = 2 * len(config.rotaries[0].inv_freq)
    kind, rope = _rope(files)
    values = _text_config(files)
    default = 1_000_000.0 if config.architecture == "gemma3" else 10_000.0
    base = float(rope.get("rope_theta") or values.get("rope_theta") or default)
    keys: dict[str, Any] = {"rope.freq_base": base, "rope.dimension_count": dim}
    if len(config.rotaries) > 1:
        keys["rope.freq_base_swa"] = round(config.rotaries[1].inv_freq[1] ** (-dim / 2), 3)
    if kind == "linear":
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    elif kind == "yarn":
        original = rope["original_max_position_embeddings"] or values["max_position_embeddings"]
        factor = float(rope.get("factor") or values["max_position_embeddings"] / original)
        extra = {"beta_fast": 32.0, "beta_slow": 1.0}
        if not math.isclose(config.rotaries[0].attention_factor, rotary.yarn_attention_factor(factor)) or any(
            rope.get(key) not in (None, usual) for key, usual in (*extra.items(), ("truncate", True))
        ):
            raise UnsupportedModelError(f"{files.path}: this form of YaRN scaling has no place in a GGUF file")
        keys |= {
            "rope.scaling.type": kind,
            "rope.scaling.factor": factor,
            "rope.scaling.original_context_length": int(original),
        }
    elif kind in ("longrope", "su"):
        keys |= {
            "rope.scaling.original_context_length": int(rope["original_max_position_embeddings"]),
            "rope.scaling.attn_factor": float(config.rotaries[0].attention_factor),
        }
    elif kind not in ("default", "llama3"):
        raise UnsupportedModelError(f"{files.path}: rotary scaling of the kind {kind!r} has no place in a GGUF file")
    return keys


def _rotary_tensors(files: ModelFiles) -> list[SourceTensor]:
    """Divisors of the rotary frequencies, where a rule has them in a tensor."""
    kind, rope = _rope(files)
    if kind in ("longrope", "su"):
        return [
            _vector(f"rope_factors_{which}.weight", np.asarray(rope[f"{which}_factor"], dtype=np.float32))
            for which in ("long", "short")
        ]
    if kind != "llama3":
        return []
    scaled = np.array(files.config.rotaries[0].inv_freq)
    base = _rotary_keys(files.config, files)["rope.freq_base"]
    return [_vector("rope_freqs.weight", (rotary.frequencies(base, 2 * len(scaled)) / scaled).astype(np.float32))]


def _vector(name: str, values: Floats) -> SourceTensor:
    return SourceTensor(name, values.shape, "F32", lambda start, stop: values[None])
