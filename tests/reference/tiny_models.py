"""Tiny random models of every architecture: a Hugging Face config dict and a weights dict, from a seed.

Sizes are odd on purpose (no multiple of a vector, of a block, of 16 rows) unless a test overrides them. Weights are
scaled so that attention, softcaps and windows change the logits a lot: a decoder that leaves one out is far off.
"""

import numpy as np

_BASE = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 330,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": 256,
    "eos_token_id": 257,
    "torch_dtype": "float32",
}

_ARCHITECTURES = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False},
    "llama3": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rope_theta": 500.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 19},
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": False,
        "sliding_window": 64,
        "max_window_layers": 2,
        "tie_word_embeddings": True,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 20,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 3,
        "tie_word_embeddings": True,
    },
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "head_dim": 20,
        "query_pre_attn_scalar": 20,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
        "sliding_window": 19,
        "num_hidden_layers": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "head_dim": 20,
        "query_pre_attn_scalar": 20,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "sliding_window": 19,
        "sliding_window_pattern": 6,
        "rope_theta": 100000.0,
        "rope_local_base_freq": 1000.0,
        "num_hidden_layers": 7,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    "phi3": {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "sliding_window": None,
        "original_max_position_embeddings": 512,
        "partial_rotary_factor": 1.0,
        "pad_token_id": 257,
    },
    "phi3_longrope": {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "sliding_window": None,
        "original_max_position_embeddings": 64,
        "max_position_embeddings": 512,
        "partial_rotary_factor": 1.0,
        "pad_token_id": 257,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0, 1.1, 1.3, 1.7, 2.1, 2.9],
            "long_factor": [1.0, 1.5, 2.5, 4.5, 8.0, 12.0],
        },
    },
}

ARCHITECTURES = tuple(_ARCHITECTURES)


def make_tiny(arch, seed=0, **overrides):
    """Returns (Hugging Face config dict, {Hugging Face weight name: float32 array}).

    `arch` is one of `ARCHITECTURES`; `overrides` replace config entries (None removes nothing, it is the value).
    """
    config = {**_BASE, **_ARCHITECTURES[arch], **overrides}
    return config, _random_weights(config, np.random.default_rng(seed))


def _random_weights(config, rng):
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or hidden // heads
    kind = config["model_type"]
    gemma = kind.startswith("gemma")
    weights = {}

    def matrix(name, rows, cols, gain=1.0):
        weights[name] = (rng.standard_normal((rows, cols)) * gain / np.sqrt(cols)).astype(np.float32)

    def norm(name, size):
        # Gemma stores the weight minus one.
        weights[name] = (rng.uniform(0.5, 1.5, size) - (1.0 if gemma else 0.0)).astype(np.float32)

    def bias(name, size):
        weights[name] = rng.standard_normal(size).astype(np.float32) * np.float32(0.5)

    def linear(name, rows, cols, gain=1.0, with_bias=False):
        matrix(f"{name}.weight", rows, cols, gain)
        if with_bias:
            bias(f"{name}.bias", rows)

    # Gemma multiplies embeddings by sqrt(hidden).
    embedding = rng.standard_normal((vocab, hidden)) / (np.sqrt(hidden) if gemma else 1.0)
    weights["model.embed_tokens.weight"] = embedding.astype(np.float32)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        attention = f"{prefix}.self_attn"
        norm(f"{prefix}.input_layernorm.weight", hidden)
        qkv_bias = kind == "qwen2" or bool(config.get("attention_bias"))
        if kind == "phi3":
            linear(f"{attention}.qkv_proj", (heads + 2 * kv_heads) * width, hidden, 1.6)
        else:
            linear(f"{attention}.q_proj", heads * width, hidden, 1.6, qkv_bias)
            linear(f"{attention}.k_proj", kv_heads * width, hidden, 1.6, qkv_bias)
            linear(f"{attention}.v_proj", kv_heads * width, hidden, 1.6, qkv_bias)
        linear(f"{attention}.o_proj", hidden, heads * width, 1.6, bool(config.get("attention_bias")))
        if kind in ("qwen3", "gemma3_text"):
            norm(f"{attention}.q_norm.weight", width)
            norm(f"{attention}.k_norm.weight", width)
        norm(f"{prefix}.post_attention_layernorm.weight", hidden)
        if gemma:
            norm(f"{prefix}.pre_feedforward_layernorm.weight", hidden)
            norm(f"{prefix}.post_feedforward_layernorm.weight", hidden)
        if kind == "phi3":
            linear(f"{prefix}.mlp.gate_up_proj", 2 * inner, hidden)
        else:
            linear(f"{prefix}.mlp.gate_proj", inner, hidden)
            linear(f"{prefix}.mlp.up_proj", inner, hidden)
        linear(f"{prefix}.mlp.down_proj", hidden, inner)
    norm("model.norm.weight", hidden)
    if not config["tie_word_embeddings"]:
        matrix("lm_head.weight", vocab, hidden, 2.0)
    return weights


def random_prompt(config, length, seed=0):
    """`length` ids without the special ones."""
    return [int(i) for i in np.random.default_rng(seed).integers(0, 256, length)]
