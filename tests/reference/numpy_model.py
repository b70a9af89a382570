"""An independent decoder in NumPy: Hugging Face config dict and weights in, logits out. No cache, no batching.

It is what the native decoder is compared with, so it shares no code with `lpx` and prefers the plainest form of every
formula. `check_against_transformers.py` compares it with the published implementations.
"""

import math

import numpy as np

from .rope import rotate_half_split, scaled_frequencies

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3")


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax(x):
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class ReferenceModel:
    """Full forward passes of one model.

    `weights` has Hugging Face names. `kv_dtype=np.float16` rounds keys (after rotation) and values as a float16 cache
    does, so that what is left is arithmetic; a value next to a rounding boundary may still land on either side of it,
    so `stored`, the [tokens, heads, width] keys and values of each layer that the cache under test holds, is taken
    instead, once every value proved to be a correct rounding. `sequence_length` fixes what length-dependent rotary
    scaling sees (default: the prompt's own length).
    """

    def __init__(self, config, weights, dtype=np.float64, kv_dtype=None, sequence_length=None):
        self.config = config
        self.kind = config["model_type"]
        if self.kind not in ARCHITECTURES:
            raise ValueError(f"the reference knows no architecture {self.kind!r}")
        self.dtype = dtype
        self.kv_dtype = kv_dtype
        self.sequence_length = sequence_length
        self.weights = {name: np.asarray(value, dtype=dtype) for name, value in weights.items()}
        self.gemma = self.kind.startswith("gemma")
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.eps = config["rms_norm_eps"]
        if self.gemma:
            self.attention_scale = config["query_pre_attn_scalar"] ** -0.5
        else:
            self.attention_scale = self.head_dim**-0.5
        # Published activations: silu, but for Gemma the tanh approximation of gelu.
        self.activation = gelu_tanh if self.gemma else silu

    def logits(self, token_ids, stored=None):
        """[tokens, vocab] of every position of one prompt."""
        logits = self._head(self.hidden(token_ids, stored))
        cap = self.config.get("final_logit_softcapping") if self.gemma else None
        return cap * np.tanh(logits / cap) if cap else logits

    def hidden(self, token_ids, stored=None):
        """[tokens, hidden size] behind the last norm."""
        self._stored = stored
        ids = np.asarray(token_ids)
        embedding = self.weights["model.embed_tokens.weight"]
        x = embedding[ids]
        if self.gemma:
            x = x * self.dtype(math.sqrt(self.config["hidden_size"]))
        for layer in range(self.config["num_hidden_layers"]):
            x = self._layer(x, layer)
        return self._norm(x, "model.norm.weight")

    def log_probs(self, token_ids, stored=None):
        return log_softmax(self.logits(token_ids, stored))

    def _kept(self, x, stored):
        """Keys or values as the cache keeps them."""
        rounded = x.astype(self.kv_dtype).astype(self.dtype)
        if stored is None:
            return rounded
        stored = stored.astype(self.dtype)
        half_step = np.spacing(np.maximum(np.abs(rounded), np.abs(stored)).astype(self.kv_dtype)).astype(self.dtype) / 2
        excess = np.abs(stored - x) - half_step
        assert excess.max() < 1e-5 * np.abs(x).max(), "the cache holds something else than the rounded key or value"
        return stored

    def _norm(self, x, name):
        weight = self.weights[name]
        return rms_norm(x, 1 + weight if self.gemma else weight, self.eps)

    def _linear(self, x, name):
        out = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return out if bias is None else out + bias

    def _head(self, x):
        return x @ self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"]).T

    def _layer(self, x, layer):
        prefix = f"model.layers.{layer}"
        attention = self._attention(self._norm(x, f"{prefix}.input_layernorm.weight"), layer)
        if self.gemma:
            x = x + self._norm(attention, f"{prefix}.post_attention_layernorm.weight")
            mlp = self._mlp(self._norm(x, f"{prefix}.pre_feedforward_layernorm.weight"), prefix)
            return x + self._norm(mlp, f"{prefix}.post_feedforward_layernorm.weight")
        x = x + attention
        return x + self._mlp(self._norm(x, f"{prefix}.post_attention_layernorm.weight"), prefix)

    def _mlp(self, x, prefix):
        if self.kind == "phi3":
            gate, up = np.split(self._linear(x, f"{prefix}.mlp.gate_up_proj"), 2, axis=-1)
        else:
            gate, up = self._linear(x, f"{prefix}.mlp.gate_proj"), self._linear(x, f"{prefix}.mlp.up_proj")
        return self._linear(self.activation(gate) * up, f"{prefix}.mlp.down_proj")

    def _attention(self, x, layer):
        prefix = f"model.layers.{layer}.self_attn"
        tokens, width = len(x), self.head_dim
        if self.kind == "phi3":
            fused = self._linear(x, f"{prefix}.qkv_proj")
            q, k, v = np.split(fused, [self.heads * width, (self.heads + self.kv_heads) * width], axis=-1)
        else:
            q, k, v = (self._linear(x, f"{prefix}.{name}_proj") for name in "qkv")
        q = q.reshape(tokens, self.heads, width)
        k = k.reshape(tokens, self.kv_heads, width)
        v = v.reshape(tokens, self.kv_heads, width)
        if self.kind in ("qwen3", "gemma3_text"):
            q = self._norm(q, f"{prefix}.q_norm.weight")
            k = self._norm(k, f"{prefix}.k_norm.weight")
        positions = np.arange(tokens, dtype=np.float64)
        freq, factor = self._rotary(layer, tokens)
        q, k = rotate_half_split(q, positions, freq, factor), rotate_half_split(k, positions, freq, factor)
        if self.kv_dtype is not None:
            stored_k, stored_v = self._stored[layer] if self._stored is not None else (None, None)
            k, v = self._kept(k, stored_k), self._kept(v, stored_v)
        group = self.heads // self.kv_heads
        cap = self.config.get("attn_logit_softcapping") if self.kind == "gemma2" else None
        window = self._window(layer)
        row, column = np.arange(tokens)[:, None], np.arange(tokens)[None, :]
        hidden = column > row
        if window:
            hidden = hidden | (column <= row - window)
        out = np.empty((tokens, self.heads, width), dtype=self.dtype)
        for head in range(self.heads):
            scores = q[:, head] @ k[:, head // group].T * self.dtype(self.attention_scale)
            if cap:
                scores = cap * np.tanh(scores / cap)
            scores[hidden] = -np.inf
            out[:, head] = softmax(scores) @ v[:, head // group]
        return self._linear(out.reshape(tokens, -1), f"{prefix}.o_proj")

    def _window(self, layer):
        """Tokens a row attends to, itself included; 0: all."""
        config = self.config
        if self.kind in ("mistral", "phi3"):
            return config.get("sliding_window") or 0
        if self.kind in ("qwen2", "qwen3"):
            if not config.get("use_sliding_window") or layer < config["max_window_layers"]:
                return 0
            return config.get("sliding_window") or 0
        if self.gemma:
            return config["sliding_window"] if self._sliding(layer) else 0
        return 0

    def _sliding(self, layer):
        """Gemma: every second (Gemma 2) or sixth (Gemma 3) layer sees everything, unless `layer_types` says more."""
        if self.config.get("layer_types"):
            return self.config["layer_types"][layer] == "sliding_attention"
        period = 2 if self.kind == "gemma2" else self.config.get("sliding_window_pattern", 6)
        return (layer + 1) % period != 0

    def _rotary(self, layer, tokens):
        config = self.config
        dim = int(self.head_dim * config.get("partial_rotary_factor", 1.0))
        if self.kind == "gemma3_text" and self._sliding(layer):
            return scaled_frequencies(config["rope_local_base_freq"], dim, None, 0, tokens)
        scaling = config.get("rope_scaling")
        if scaling and "original_max_position_embeddings" in config:  # Phi-3 has it beside `rope_scaling`
            scaling = {"original_max_position_embeddings": config["original_max_position_embeddings"], **scaling}
        length = self.sequence_length or tokens
        return scaled_frequencies(config["rope_theta"], dim, scaling, config["max_position_embeddings"], length)
