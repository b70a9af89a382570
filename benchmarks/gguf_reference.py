"""Log-probabilities of a real GGUF model from the NumPy reference: float32 on the dequantized weights.

Reading and dequantizing is the `gguf` package's work, the forward pass is `tests/reference/numpy_model.py`: nothing
here comes from LPX or from llama.cpp's kernels.
"""

import hashlib
import sys
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.reference.numpy_model import ReferenceModel

_MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
}
_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def load_reference(path):
    """A float32 `ReferenceModel` of a GGUF file."""
    reader = gguf.GGUFReader(path)
    config = _config(reader)
    return ReferenceModel(config, _weights(reader, config), dtype=np.float32)


def reference_log_probs(path, windows, cache):
    """Memory-mapped float32 [rows, vocab] over all positions of all windows; computed once, then read from `cache`."""
    key = hashlib.sha256(repr((path.name, path.stat().st_size, windows)).encode()).hexdigest()[:16]
    file = cache / f"{path.stem}-{key}.npy"
    if not file.exists():
        cache.mkdir(parents=True, exist_ok=True)
        model = load_reference(path)
        rows = sum(len(window) for window in windows)
        partial = file.with_suffix(".partial")
        out = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=(rows, model.config["vocab_size"]))
        row = 0
        for window in windows:
            out[row : row + len(window)] = model.log_probs(window)
            row += len(window)
        out.flush()
        partial.rename(file)
    return np.load(file, mmap_mode="r")


def _config(reader):
    arch = reader.get_field("general.architecture").contents()

    def get(key, default=None):
        field = reader.get_field(f"{arch}.{key}")
        return default if field is None else field.contents()

    heads = get("attention.head_count")
    hidden = get("embedding_length")
    width = get("attention.key_length", hidden // heads)
    if get("rope.scaling.type", "none") != "none":
        raise SystemExit(f"the benchmark's reference does not read rotary scaling of {arch} files")
    return {
        "model_type": _MODEL_TYPES[arch],
        "hidden_size": hidden,
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": width,
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": get("context_length"),
        # Gemma 3 files hold the base of the global layers only; the local one is a constant of the architecture.
        "rope_theta": get("rope.freq_base", 1e6 if arch == "gemma3" else 1e4),
        "rope_local_base_freq": get("rope.freq_base_swa", 1e4),
        "query_pre_attn_scalar": width,
        "sliding_window": get("attention.sliding_window"),
        "attn_logit_softcapping": get("attn_logit_softcapping"),
        "final_logit_softcapping": get("final_logit_softcapping"),
        "vocab_size": len(reader.get_field("tokenizer.ggml.tokens").data),
    }


def _weights(reader, config):
    gemma = config["model_type"].startswith("gemma")
    names = _NAMES | (_GEMMA_NAMES if gemma else {})
    weights = {}
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":
            raise SystemExit("the benchmark's reference does not read rotary scaling tensors")
        stem, kind = tensor.name.rsplit(".", 1)
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if stem in _TOP:
            name = f"{_TOP[stem]}.{kind}"
        else:
            _, layer, part = stem.split(".")
            name = f"model.layers.{layer}.{names[part]}.{kind}"
        if gemma and name.endswith("norm.weight"):
            values = values - np.float32(1)  # the reference adds it back, as for the published weights
        if config["model_type"] == "llama" and ".self_attn.q_proj." in name:
            values = _half_split(values, config["num_attention_heads"])
        if config["model_type"] == "llama" and ".self_attn.k_proj." in name:
            values = _half_split(values, config["num_key_value_heads"])
        weights[name] = values
    return weights


def _half_split(values, heads):
    """Rows of interleaved rotary pairs (2j, 2j + 1) back to half-split ones (j, j + n), per head."""
    return values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
