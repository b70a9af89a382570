"""Whole models with every type of KV cache against the NumPy reference on what their cache holds."""

import numpy as np
import pytest

from lpx.model.files import open_model
from lpx.runtime.cpu.executor import CpuExecutor
from lpx.runtime.options import RuntimeOptions
from tests.reference.executor_rows import blocks_for, prompt_log_probs, stored_kv
from tests.reference.model_files import write_hf_folder
from tests.reference.numpy_model import ReferenceModel
from tests.reference.tiny_models import make_tiny, random_prompt

PROMPT = 61
# Largest difference over the largest log-probability: order of float32 sums, or 16-bit codes of queries and weights.
TOLERANCE = {"bf16": 1e-4, "q8": 1e-3, "q4": 1e-3, "q8,q4": 1e-3, "f16,q8": 1e-3}
# Mean difference of what is kept from what was computed, over the mean magnitude.
KEPT = {"bf16": 0.003, "q8": 0.02, "q4": 0.2, "q8,q4": 0.2, "f16,q8": 0.02}


class CachedReference(ReferenceModel):
    """Takes the keys and values that a cache under test holds, once they are near its own."""

    limit = 0.0

    def _kept(self, x, stored):
        assert np.abs(stored - x).mean() < self.limit * np.abs(x).mean()
        return stored.astype(self.dtype)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "gemma2", "gemma3"])
@pytest.mark.parametrize("kind", TOLERANCE)
def test_logits_follow_from_what_the_cache_holds(kind, arch, tmp_path):
    config, weights = make_tiny(arch, 11)
    with open_model(write_hf_folder(tmp_path / "model", config, weights)) as files:
        options = RuntimeOptions(threads=2, max_model_len=512, max_num_seqs=8, kv_cache_dtype=kind)
        executor = CpuExecutor.load(files, options)
    prompt = random_prompt(config, PROMPT, 1)
    actual = prompt_log_probs(executor, config["vocab_size"], prompt, chunk=23)
    reference = CachedReference(config, weights, kv_dtype=np.float32)
    reference.limit = KEPT[kind]
    expected = reference.log_probs(prompt, stored_kv(executor, config, blocks_for(executor, PROMPT), PROMPT))
    executor.close()
    assert np.abs(actual - expected).max() < TOLERANCE[kind] * np.abs(expected).max()


def _mean_kl(expected, actual):
    return float((np.exp(expected) * (expected - actual)).sum(axis=1).mean())


@pytest.mark.parametrize("one_head", [False, True])
def test_large_biases_of_keys_in_steady_dimensions_leave_the_rest_its_codes(one_head, tmp_path):
    """Frequencies are 1e-8 to the power of j / 6: the pairs (4, 10) and (5, 11) hardly turn, the others do."""
    config, weights = make_tiny("qwen2", 5, rope_theta=1e8)
    prompt = random_prompt(config, PROMPT, 1)
    for layer in range(config["num_hidden_layers"]):
        bias = weights[f"model.layers.{layer}.self_attn.k_proj.bias"].reshape(-1, 12)
        bias[:, [4, 5, 10, 11]] = 40.0
        if one_head:
            bias[1:] = 0.0
    kl = {}
    rows = {}
    with open_model(write_hf_folder(tmp_path / "model", config, weights)) as files:
        for kind in ("f16", "q8", "q4,f16"):
            options = RuntimeOptions(threads=2, max_model_len=512, max_num_seqs=8, kv_cache_dtype=kind)
            executor = CpuExecutor.load(files, options)
            rows[kind] = prompt_log_probs(executor, config["vocab_size"], prompt)
            executor.close()
            kl[kind] = _mean_kl(rows["f16"], rows[kind])
    assert kl["q8"] < 0.005
    assert kl["q4,f16"] < 0.4
