"""Writes tiny models as users get them: a Hugging Face folder (sharded or not) and a GGUF file.

The GGUF side follows what llama.cpp's converter does: tensor names, metadata keys, q and k rows of Llama-like models
reordered for interleaved rotary pairs, Gemma's norm weights with the one already added.
"""

import json
import math

import numpy as np
from safetensors.numpy import save_file

from . import tiny_tokenizer
from .gguf_writer import write_gguf

_BF16 = "BF16"


def write_hf_folder(folder, config, weights, *, shards=1, dtype="F32", generation_config=None, chat_template=True):
    """config.json, tokenizer files and `model.safetensors` (or `shards` files with an index); returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "tokenizer.json").write_text(tiny_tokenizer.tokenizer_json(config["vocab_size"]), encoding="utf-8")
    tokenizer_config = {
        "bos_token": tiny_tokenizer.SPECIAL[0],
        "eos_token": tiny_tokenizer.SPECIAL[1],
        "add_bos_token": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if chat_template:
        tokenizer_config["chat_template"] = tiny_tokenizer.CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    if generation_config:
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
    names = list(weights)
    if shards == 1:
        _save_safetensors(folder / "model.safetensors", weights, dtype)
        return folder
    index = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard::shards]
        _save_safetensors(folder / file, {name: weights[name] for name in part}, dtype)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def _save_safetensors(path, weights, dtype):
    if dtype == _BF16:
        _save_bf16(path, weights)
    else:
        kind = {"F32": np.float32, "F16": np.float16}[dtype]
        save_file({name: np.ascontiguousarray(w, dtype=kind) for name, w in weights.items()}, path)


def _save_bf16(path, weights):
    """By hand: NumPy has no bfloat16. Layout: length of the header (u64), JSON header, data."""
    header, parts, offset = {}, [], 0
    for name, weight in weights.items():
        data = round_bf16(weight)[1].tobytes()
        header[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [offset, offset + len(data)]}
        parts.append(data)
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def round_bf16(weight):
    """(values as float32, uint16 codes), rounded to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(weight, dtype=np.float32).view(np.uint32)
    codes = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return (codes.astype(np.uint32) << 16).view(np.float32), codes


# Hugging Face name within a layer -> GGUF name within a block
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_GGUF_ARCHITECTURE = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
}


def gguf_name(config, name):
    """GGUF tensor name of a Hugging Face weight name."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    names = _LAYER_NAMES | (_GEMMA_NAMES if config["model_type"].startswith("gemma") else {})
    return f"blk.{layer}.{names[stem]}.{kind}"


def interleave_rows(weight, heads):
    """Rows of half-split rotary pairs (j, j + n) to interleaved pairs (2j, 2j + 1), per head."""
    rest = weight.shape[1:]
    return weight.reshape(heads, 2, -1, *rest).swapaxes(1, 2).reshape(weight.shape)


def gguf_metadata(config):
    arch = _GGUF_ARCHITECTURE[config["model_type"]]
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    values = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config["rope_theta"]),
        "vocab_size": config["vocab_size"],
    }
    if config.get("head_dim"):
        values |= {"attention.key_length": width, "attention.value_length": width}
    if arch in ("llama", "phi3"):
        values["rope.dimension_count"] = int(width * config.get("partial_rotary_factor", 1.0))
    if arch.startswith("gemma") or (arch == "phi3" and config.get("sliding_window")):
        values["attention.sliding_window"] = config["sliding_window"]
    if arch == "gemma2":
        values["attn_logit_softcapping"] = float(config["attn_logit_softcapping"])
        values["final_logit_softcapping"] = float(config["final_logit_softcapping"])
    if arch == "gemma3":
        values["rope.freq_base_swa"] = float(config["rope_local_base_freq"])
    values |= _rope_metadata(config)
    metadata = {"general.architecture": arch, "general.name": f"tiny {config['model_type']}", "general.file_type": 0}
    metadata |= {f"{arch}.{key}": value for key, value in values.items()}
    return metadata | tokenizer_metadata(config)


def _rope_metadata(config):
    scaling = config.get("rope_scaling")
    if not scaling:
        return {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "llama3":  # carried by the tensor rope_freqs.weight
        return {}
    if kind == "longrope":
        original = config["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / original
        return {
            "rope.scaling.original_context_length": original,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(factor) / math.log(original)),
        }
    values = {"rope.scaling.type": kind, "rope.scaling.factor": float(scaling["factor"])}
    if kind == "yarn":
        values["rope.scaling.original_context_length"] = scaling["original_max_position_embeddings"]
    return values


def tokenizer_metadata(config):
    tokens, merges = tiny_tokenizer.vocabulary(config["vocab_size"])
    types = [3 if t in tiny_tokenizer.SPECIAL else 5 if t.startswith("<unused") else 1 for t in tokens]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": tiny_tokenizer.BOS,
        "tokenizer.ggml.eos_token_id": tiny_tokenizer.EOS,
        "tokenizer.ggml.padding_token_id": tiny_tokenizer.PAD,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": tiny_tokenizer.CHAT_TEMPLATE,
    }


def write_model_gguf(path, config, weights, *, encoded=None, metadata=None):
    """Writes the model as GGUF, float32; `encoded` maps Hugging Face names to (GGML type, bytes) used instead.

    Encoded q and k matrices are taken as they are: pass rows in the file's order (`interleave_rows`).
    """
    encoded = encoded or {}
    gemma = config["model_type"].startswith("gemma")
    llama = _GGUF_ARCHITECTURE[config["model_type"]] == "llama"
    tensors = []
    for name, weight in weights.items():
        target = gguf_name(config, name)
        if name in encoded:
            kind, data = encoded[name]
            tensors.append((target, kind, weight.shape, data))
            continue
        if gemma and name.endswith("norm.weight"):
            weight = weight + np.float32(1)
        if llama and ".self_attn.q_proj." in name:
            weight = interleave_rows(weight, config["num_attention_heads"])
        if llama and ".self_attn.k_proj." in name:
            weight = interleave_rows(weight, config["num_key_value_heads"])
        tensors.append((target, "F32", weight.shape, np.ascontiguousarray(weight, dtype=np.float32).tobytes()))
    tensors += _rope_tensors(config)
    return write_gguf(path, {**gguf_metadata(config), **(metadata or {})}, tensors)


def _rope_tensors(config):
    """Divisors of the inverse frequencies, as the converter stores them."""
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "longrope":
        return [
            _f32_tensor("rope_factors_long.weight", scaling["long_factor"]),
            _f32_tensor("rope_factors_short.weight", scaling["short_factor"]),
        ]
    if kind != "llama3":
        return []
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    original = scaling["original_max_position_embeddings"]
    low_wavelength = original / scaling["low_freq_factor"]
    high_wavelength = original / scaling["high_freq_factor"]
    divisors = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (i / dim)
        if wavelength < high_wavelength:
            divisors.append(1.0)
        elif wavelength > low_wavelength:
            divisors.append(scaling["factor"])
        else:
            smooth = (original / wavelength - scaling["low_freq_factor"]) / (
                scaling["high_freq_factor"] - scaling["low_freq_factor"]
            )
            divisors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return [_f32_tensor("rope_freqs.weight", divisors)]


def _f32_tensor(name, values):
    array = np.asarray(values, dtype=np.float32)
    return name, "F32", array.shape, array.tobytes()
