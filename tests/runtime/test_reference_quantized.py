"""Low-precision weights end to end: as close to the reference on dequantized weights as int8 activations allow."""

import numpy as np
import pytest

from lpx import _native
from lpx.model.files import open_model
from lpx.runtime.cpu.executor import CpuExecutor
from lpx.runtime.options import RuntimeOptions
from tests.reference.executor_rows import prompt_log_probs
from tests.reference.ggml_blocks import BLOCKS, dequantize, random_blocks
from tests.reference.model_files import interleave_rows, write_hf_folder, write_model_gguf
from tests.reference.numpy_model import ReferenceModel
from tests.reference.quantized_model import Int8Activations, quantize_at_load
from tests.reference.tiny_models import make_tiny, random_prompt

QUANTIZED = [name for name in BLOCKS if name not in ("F32", "F16", "BF16")]
# Whole super-blocks of 256 in every row; four heads of 64.
SIZES = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 2, "vocab_size": 330}


def log_probs(path, prompt, vocab_size, isa=None, quantization=None):
    options = RuntimeOptions(
        threads=2,
        isa=isa,
        quantization=quantization,
        kv_cache_memory=None,
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=256,
    )
    with open_model(path) as files:
        executor = CpuExecutor.load(files, options)
        try:
            return prompt_log_probs(executor, vocab_size, prompt)
        finally:
            executor.close()


def rms(x):
    return float(np.sqrt(np.mean(np.square(x))))


def write_encoded_model(path, arch, kind, seed):
    """A GGUF file with every matrix in one GGML type, and its weights dequantized (Hugging Face names and order)."""
    scale = {"query_pre_attn_scalar": SIZES["head_dim"]} if arch == "gemma3" else {}
    config, weights = make_tiny(arch, seed, **SIZES, **scale)
    rng = np.random.default_rng(seed)
    encoded, exact = {}, dict(weights)
    for name, weight in weights.items():
        if weight.ndim == 1:
            continue
        std = float(weight.std())
        data = random_blocks(kind, weight.shape, rng, std)
        encoded[name] = (kind, data)
        values = dequantize(kind, data, weight.shape)
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        projection = name.split(".")[-2]
        if config["model_type"] == "llama" and projection in heads:
            order = interleave_rows(np.arange(len(values)), heads[projection])
            values[order] = values.copy()  # row i of the file is row order[i] of the model
        exact[name] = values
    return write_model_gguf(path, config, weights, encoded=encoded), config, exact


def allowed_error(kind, config, exact, prompt, expected):
    """RMS that arithmetic (float weights) or int8 activations (all others) explain."""
    if kind not in QUANTIZED:
        return 1e-4 * rms(expected)
    return 1.5 * rms(Int8Activations(config, exact, kv_dtype=np.float16).log_probs(prompt) - expected)


@pytest.mark.parametrize("arch", ["qwen2", "gemma3"])
@pytest.mark.parametrize("kind", list(BLOCKS))
def test_file_format_is_as_close_as_its_activations_allow(kind, arch, tmp_path):
    path, config, exact = write_encoded_model(tmp_path / "model.gguf", arch, kind, 21)
    prompt = random_prompt(config, 40, 1)
    expected = ReferenceModel(config, exact, kv_dtype=np.float16).log_probs(prompt)
    actual = log_probs(path, prompt, config["vocab_size"])
    assert rms(actual - expected) <= allowed_error(kind, config, exact, prompt, expected)


@pytest.mark.parametrize("kind", ["q8", "q4"])
def test_weights_quantized_at_load_lose_what_their_bits_lose(kind, tmp_path):
    config, weights = make_tiny("llama", 22, **SIZES)
    path = write_hf_folder(tmp_path / "model", config, weights)
    prompt = random_prompt(config, 40, 2)
    expected = ReferenceModel(config, weights).log_probs(prompt)
    simulated = Int8Activations(config, quantize_at_load(weights, kind)).log_probs(prompt)
    actual = log_probs(path, prompt, config["vocab_size"], quantization=kind)
    lost = rms(actual - expected)
    assert lost <= 1.3 * rms(simulated - expected)
    assert lost > 1e-4, "the weights were not quantized"


@pytest.mark.parametrize("kind", list(BLOCKS))
def test_every_instruction_set_is_as_close_and_names_the_same_top_tokens(kind, tmp_path):
    path, config, exact = write_encoded_model(tmp_path / "model.gguf", "llama", kind, 23)
    prompt = random_prompt(config, 48, 3)
    expected = ReferenceModel(config, exact, kv_dtype=np.float16).log_probs(prompt)
    allowed = allowed_error(kind, config, exact, prompt, expected)
    portable = log_probs(path, prompt, config["vocab_size"], isa="portable")
    assert rms(portable - expected) <= allowed
    top_two = np.sort(portable, axis=1)[:, -2:]
    # Sums in another order may round an activation to the other side: a tie can fall either way.
    clear = (top_two[:, 1] - top_two[:, 0]) > 0.05
    assert clear.sum() > 30
    others = [isa for isa in _native.available_isas() if isa != "portable"]
    for isa in others:
        actual = log_probs(path, prompt, config["vocab_size"], isa=isa)
        assert rms(actual - expected) <= allowed, isa
        assert (actual.argmax(axis=1) == portable.argmax(axis=1))[clear].all(), isa
