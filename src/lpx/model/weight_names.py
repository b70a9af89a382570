"""From the tensors of a file to the canonical weights of `WeightTensor`: names, shapes, parts and row orders.

Every tensor of the file must be wanted by a rule or be a known extra, and every rule must find its tensor: what is
left over or missing is an error that lists it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from lpx.errors import ModelFileError, UnsupportedModelError
from lpx.model.architectures import ARCHITECTURES
from lpx.model.config import ModelConfig
from lpx.model.mapped_file import StoredTensor

Container = Literal["gguf", "safetensors"]

# Canonical name of a layer's weight -> its name in the file, less ".weight" where it is one.
_GGUF_LAYER = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "o_bias": "attn_output.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "attn_post_norm": "post_attention_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "ffn_post_norm": "post_ffw_norm.weight",
}
_HF_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
# With norms on both sides, the name that others give to the norm before the feed-forward part means another one.
_HF_LAYER_POST_NORMS = _HF_LAYER | {
    "attn_post_norm": "post_attention_layernorm.weight",
    "ffn_norm": "pre_feedforward_layernorm.weight",
    "ffn_post_norm": "post_feedforward_layernorm.weight",
}
_FUSED = {
    "gguf": {"qkv": "attn_qkv.weight", "gate_up": "ffn_up.weight"},
    "safetensors": {"qkv": "self_attn.qkv_proj.weight", "gate_up": "mlp.gate_up_proj.weight"},
}
_HF_PREFIXES = ("model.", "language_model.model.", "model.language_model.", "")
_VISION = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")
_OLD_ROTARY_BUFFER = re.compile(r"(.*\.)?rotary_emb\.inv_freq")
_MLP_BIAS = re.compile(r"(.*\.mlp\.\w+_proj|blk\.\d+\.ffn_(gate|up|down))\.bias")
_LISTED = 8  # names that an error spells out


@dataclass(frozen=True, slots=True)
class WeightRule:
    """One canonical weight and where it comes from."""

    name: str
    source: str  # the tensor in the file
    shape: tuple[int, ...]
    source_shape: tuple[int, ...]  # larger than `shape` for a part of a fused matrix
    first_row: int = 0
    interleaved_heads: int = 0  # rows are stored for interleaved rotary pairs, in this many heads; 0: half-split
    norm_offset: float = 0.0  # added to each value


@dataclass(frozen=True, slots=True)
class WeightMap:
    rules: tuple[WeightRule, ...]  # in layer order
    ignored: tuple[str, ...]  # tensors of the file that LPX leaves alone knowingly
    config: ModelConfig  # as given, with the vocabulary's rows and the tied head as the file has them


def gguf_name(name: str, *, fused: bool = False) -> str:
    """What GGUF calls a canonical weight; with `fused`, the matrix that it is a part of."""
    top = {"embedding": "token_embd.weight", "final_norm": "output_norm.weight", "head": "output.weight"}
    if name in top:
        return top[name]
    _, layer, weight = name.split(".")
    inner = _GGUF_LAYER[weight]
    if fused:
        inner = _FUSED["gguf"]["qkv" if weight in ("q", "k", "v") else "gate_up"]
    return f"blk.{layer}.{inner}"


def map_weights(
    config: ModelConfig,
    tensors: Mapping[str, StoredTensor],
    container: Container,
    where: str,
    *,
    used: Collection[str] = (),
    tied: bool | None = None,
    vision: bool = False,
) -> WeightMap:
    """Match a file's tensors with what the config wants.

    `used` are tensors that the config has consumed; `tied` is what the config says of the head (None: nothing);
    `vision` allows the tensors of a vision tower, which are ignored. Raises ModelFileError.
    """
    prefix = _hf_prefix(tensors) if container == "safetensors" else ""
    top = (
        {"embedding": "token_embd.weight", "final_norm": "output_norm.weight", "head": "output.weight"}
        if container == "gguf"
        else {
            "embedding": f"{prefix}embed_tokens.weight",
            "final_norm": f"{prefix}norm.weight",
            "head": _hf_head(prefix, tensors),
        }
    )
    # A head that the config ties is the embedding, whatever else the file holds: so the reference has it.
    has_head = top["head"] in tensors and tied is not True
    if not has_head and tied is False:
        raise ModelFileError(f"{where}: tensor {top['head']!r} is missing, and the config says that it is not tied")
    config = replace(config, tied_head=not has_head)

    offset = ARCHITECTURES[config.architecture].norm_offset if container == "safetensors" else 0.0
    vocab = (config.vocab_size, config.hidden_size)
    rules = [
        WeightRule("embedding", top["embedding"], vocab, vocab),
        WeightRule("final_norm", top["final_norm"], vocab[1:], vocab[1:], norm_offset=offset),
    ]
    if has_head:
        rules.append(WeightRule("head", top["head"], vocab, vocab))
    layer_prefix = "blk" if container == "gguf" else f"{prefix}layers"
    rules += _layer_rules(config, tensors, container, layer_prefix, offset)

    extras = set(used)
    for name in tensors:
        if (
            _OLD_ROTARY_BUFFER.fullmatch(name)
            or (vision and _VISION.match(name))
            or (name == top["head"] and not has_head)
        ):
            extras.add(name)
    _check_names(rules, tensors, extras, config, where)
    for rule in rules:
        stored = tensors[rule.source]
        if stored.shape != rule.source_shape:
            raise ModelFileError(
                f"{where}: tensor {rule.source!r} has the shape {list(stored.shape)}, but the config wants "
                f"{list(rule.source_shape)}"
            )
        if len(rule.shape) == 1 and stored.type.name not in ("F32", "F16", "BF16"):
            raise UnsupportedModelError(f"{where}: tensor {rule.source!r} is a vector of type {stored.type.name}")
    return WeightMap(tuple(rules), tuple(sorted(extras - set(used))), config)


def _layer_rules(
    config: ModelConfig, tensors: Mapping[str, StoredTensor], container: Container, prefix: str, offset: float
) -> list[WeightRule]:
    arch = ARCHITECTURES[config.architecture]
    hf_names = _HF_LAYER_POST_NORMS if arch.post_norms else _HF_LAYER
    names = _GGUF_LAYER if container == "gguf" else hf_names
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "q": (q_rows, hidden),
        "k": (kv_rows, hidden),
        "v": (kv_rows, hidden),
        "o": (hidden, q_rows),
        "ffn_norm": (hidden,),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    if arch.qk_norm:
        shapes |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    if arch.post_norms:
        shapes |= {"attn_post_norm": (hidden,), "ffn_post_norm": (hidden,)}
    bias_shapes: dict[str, tuple[int, ...]] = {
        "q_bias": (q_rows,),
        "k_bias": (kv_rows,),
        "v_bias": (kv_rows,),
        "o_bias": (hidden,),
    }
    if arch.biases != "none":
        for bias, shape in bias_shapes.items():
            # One layer's bias is every layer's: a file that has some of them only is broken.
            found = any(f"{prefix}.{i}.{names[bias]}" in tensors for i in range(config.num_layers))
            if found or (arch.biases == "qkv" and bias != "o_bias"):
                shapes[bias] = shape
    fused: dict[str, tuple[str, int, int]] = {}  # canonical name -> (tensor, first row, rows of the tensor)
    if arch.fused:
        parts = _FUSED[container]
        qkv_rows = q_rows + 2 * kv_rows
        fused["gate"] = (parts["gate_up"], 0, 2 * inner)
        fused["up"] = (parts["gate_up"], inner, 2 * inner)
        fused["q"] = (parts["qkv"], 0, qkv_rows)
        fused["k"] = (parts["qkv"], q_rows, qkv_rows)
        fused["v"] = (parts["qkv"], q_rows + kv_rows, qkv_rows)
    interleaved: dict[str, int] = {}
    if arch.interleaved_in_gguf and container == "gguf":
        interleaved = dict.fromkeys(("q", "q_bias"), config.num_heads)
        interleaved |= dict.fromkeys(("k", "k_bias"), config.num_kv_heads)
    rules = []
    for layer in range(config.num_layers):
        for name, shape in shapes.items():
            source, first_row, rows = fused.get(name, (names.get(name, ""), 0, shape[0]))
            rules.append(
                WeightRule(
                    name=f"layers.{layer}.{name}",
                    source=f"{prefix}.{layer}.{source}",
                    shape=shape,
                    source_shape=(rows, *shape[1:]),
                    first_row=first_row,
                    interleaved_heads=interleaved.get(name, 0),
                    norm_offset=offset if name.endswith("norm") else 0.0,
                )
            )
    return rules


def _hf_prefix(tensors: Mapping[str, StoredTensor]) -> str:
    """What stands before `embed_tokens`: it differs for plain models, parts of multimodal ones, and bare decoders."""
    for prefix in _HF_PREFIXES:
        if f"{prefix}embed_tokens.weight" in tensors:
            return prefix
    return _HF_PREFIXES[0]


def _hf_head(prefix: str, tensors: Mapping[str, StoredTensor]) -> str:
    inner = "language_model.lm_head.weight"
    return inner if prefix == "language_model.model." and inner in tensors else "lm_head.weight"


def _check_names(
    rules: list[WeightRule], tensors: Mapping[str, StoredTensor], extras: set[str], config: ModelConfig, where: str
) -> None:
    wanted = {rule.source for rule in rules}
    problems = []
    if missing := sorted(wanted - tensors.keys()):
        problems.append(f"{len(missing)} tensors are missing: {_listed(missing)}")
    unexpected = sorted(tensors.keys() - wanted - extras)
    for name in unexpected:
        if _MLP_BIAS.fullmatch(name):
            raise UnsupportedModelError(f"{where}: tensor {name!r}: biases in the feed-forward part are not supported")
    if unexpected:
        problems.append(f"{len(unexpected)} tensors are not known for {config.architecture}: {_listed(unexpected)}")
    if problems:
        kind = ModelFileError if missing else UnsupportedModelError
        raise kind(f"{where}: {'; '.join(problems)}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(name if name.isprintable() else repr(name) for name in names[:_LISTED]) + more
