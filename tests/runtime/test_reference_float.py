"""The decoder on float32 weights against the NumPy reference: every architecture, file kind and way of feeding.

The reference takes the float16 keys and values of the executor's cache, after it has checked each against its own: what
remains is the order of float32 sums.
"""

import numpy as np
import pytest

from lpx import _native
from lpx.model.files import open_model
from lpx.runtime.cpu.executor import CpuExecutor
from lpx.runtime.options import RuntimeOptions
from tests.reference.executor_rows import Stream, blocks_for, prompt_log_probs, run_step, stored_kv
from tests.reference.model_files import write_hf_folder, write_model_gguf
from tests.reference.numpy_model import ReferenceModel
from tests.reference.tiny_models import ARCHITECTURES, make_tiny, random_prompt

TOLERANCE = 1e-4  # the largest difference, over the largest log-probability
PROMPT = 61  # beyond the sliding windows of the tiny models


def load(path, max_model_len=512):
    files = open_model(path, max_model_len=max_model_len)
    options = RuntimeOptions(
        threads=2,
        isa=None,
        quantization=None,
        kv_cache_memory=None,
        max_model_len=max_model_len,
        max_num_seqs=8,
        max_num_batched_tokens=max_model_len,
    )
    return CpuExecutor.load(files, options)


def write_model(folder, kind, config, weights):
    if kind == "gguf":
        return write_model_gguf(folder / "model.gguf", config, weights)
    return write_hf_folder(folder / "model", config, weights)


def assert_close(actual, executor, reference, block_table, token_ids):
    stored = stored_kv(executor, reference.config, block_table, len(token_ids))
    expected = reference.log_probs(token_ids, stored)
    error = np.abs(actual - expected).max() / np.abs(expected).max()
    assert error < TOLERANCE, f"relative error {error:.1e}"


def check_whole_prompt(executor, reference, prompt, chunk=None):
    actual = prompt_log_probs(executor, reference.config["vocab_size"], prompt, chunk)
    assert_close(actual, executor, reference, blocks_for(executor, len(prompt)), prompt)


@pytest.fixture(
    scope="module", params=[(a, kind) for a in ARCHITECTURES for kind in ("gguf", "safetensors")], ids="-".join
)
def model(request, tmp_path_factory):
    """(executor, config, reference) of one architecture from one kind of file."""
    arch, kind = request.param
    # llama.cpp's converter drops Mistral's window: GGUF files of it attend to everything.
    overrides = {"sliding_window": None} if (arch, kind) == ("mistral", "gguf") else {}
    config, weights = make_tiny(arch, 11, **overrides)
    executor = load(write_model(tmp_path_factory.mktemp(arch), kind, config, weights))
    # The length chooses the LongRoPE factors: as for the executor, that of the context it was loaded for.
    yield executor, config, ReferenceModel(config, weights, kv_dtype=np.float16, sequence_length=512)
    executor.close()


def test_prompt_in_one_piece_equals_reference(model):
    executor, config, reference = model
    prompt = random_prompt(config, PROMPT, 1)
    check_whole_prompt(executor, reference, prompt)


def test_prompt_in_chunks_of_seven_equals_reference(model):
    executor, config, reference = model
    prompt = random_prompt(config, PROMPT, 2)
    check_whole_prompt(executor, reference, prompt, 7)


def test_decode_token_by_token_equals_reference(model):
    executor, config, reference = model
    ids = random_prompt(config, PROMPT, 3)
    stream = Stream(config["vocab_size"], blocks_for(executor, len(ids)))
    run_step(executor, [(stream, stream.feed(ids[:5]))])
    for token_id in ids[5:]:
        run_step(executor, [(stream, stream.decode(token_id))])
    assert_close(np.array(stream.rows), executor, reference, stream.block_table, ids)


def test_batch_of_prompts_and_decoding_streams_equals_reference(model):
    executor, config, reference = model
    vocab = config["vocab_size"]
    lengths = (3, 20, 33, 48, 61)
    prompts = [random_prompt(config, length, 10 + length) for length in lengths]
    # Interleaved block tables: blocks of one sequence are not neighbours.
    streams = [Stream(vocab, blocks_for(executor, 64, first=i, stride=len(lengths))) for i in range(len(lengths))]
    # Each starts at its own step with chunks of its own size, then decodes: every step mixes kinds of rows.
    for step in range(80):
        pairs = []
        for i, (stream, prompt) in enumerate(zip(streams, prompts, strict=True)):
            if step < 2 * i or stream.position == len(prompt):
                continue
            if stream.position < len(prompt) // 2:
                pairs.append((stream, stream.feed(prompt[stream.position : stream.position + 4 + i])))
            else:
                pairs.append((stream, stream.decode(prompt[stream.position])))
        if pairs:
            run_step(executor, pairs)
    for stream, prompt in zip(streams, prompts, strict=True):
        assert_close(np.array(stream.rows), executor, reference, stream.block_table, prompt)


def check_prompt(folder, config, weights, length, *, kind="safetensors", max_model_len=512, chunk=None):
    executor = load(write_model(folder, kind, config, weights), max_model_len)
    try:
        prompt = random_prompt(config, length, 5)
        reference = ReferenceModel(config, weights, kv_dtype=np.float16, sequence_length=max_model_len)
        check_whole_prompt(executor, reference, prompt, chunk)
    finally:
        executor.close()


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_context_over_many_blocks_and_splits_equals_reference(arch, tmp_path):
    overrides = {"max_position_embeddings": 2048, "num_hidden_layers": 2}
    if arch == "gemma3":
        overrides |= {"sliding_window": 300, "layer_types": ["sliding_attention", "full_attention"]}
    config, weights = make_tiny(arch, 4, **overrides)
    assert 2 * _native.SPLIT_TOKENS < 1500
    check_prompt(tmp_path, config, weights, 1500, max_model_len=1536, chunk=500)


@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (14, 2), (28, 4), (32, 8), (8, 1), (12, 12), (1, 1)])
def test_every_ratio_of_query_to_kv_heads_equals_reference(heads, kv_heads, tmp_path):
    config, weights = make_tiny(
        "llama", 5, num_attention_heads=heads, num_key_value_heads=kv_heads, hidden_size=heads * 8, head_dim=8
    )
    check_prompt(tmp_path, config, weights, PROMPT)


@pytest.mark.parametrize("head_dim", [8, 18, 64, 80, 96, 128, 256])
def test_every_head_size_equals_reference(head_dim, tmp_path):
    config, weights = make_tiny("qwen3", 6, head_dim=head_dim)
    check_prompt(tmp_path, config, weights, PROMPT)


ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    "yarn-explicit-attention-factor": {
        "rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 8, "attention_factor": 1.0
    },
    "yarn-two-mscales": {
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 16, "mscale": 0.707,
        "mscale_all_dim": 1.0,
    },
    "llama3": {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}  # fmt: skip


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_rotary_scaling_equals_reference(rope, tmp_path):
    config, weights = make_tiny("llama", 7, rope_scaling=rope)
    check_prompt(tmp_path, config, weights, 150)


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
@pytest.mark.parametrize("max_model_len", [64, 512], ids=["short-factors", "long-factors"])
def test_longrope_factors_follow_the_context(max_model_len, kind, tmp_path):
    config, weights = make_tiny("phi3_longrope", 8)
    check_prompt(tmp_path, config, weights, 60, kind=kind, max_model_len=max_model_len)


@pytest.mark.parametrize(
    ("arch", "overrides"),
    [
        ("llama", {"attention_bias": True}),
        ("llama", {"tie_word_embeddings": True}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
        ("qwen2", {"tie_word_embeddings": False}),
        ("gemma2", {"query_pre_attn_scalar": 33}),
        ("gemma3", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
        ("phi3", {"sliding_window": 11}),
        ("phi3", {"partial_rotary_factor": 0.5}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
def test_option_of_an_architecture_equals_reference(arch, overrides, tmp_path):
    config, weights = make_tiny(arch, 9, **overrides)
    check_prompt(tmp_path, config, weights, PROMPT)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_half_precision_safetensors_in_shards_equal_reference(dtype, tmp_path):
    config, weights = make_tiny("qwen2", 10)
    if dtype == "BF16":
        from tests.reference.model_files import round_bf16

        rounded = {name: round_bf16(weight)[0].reshape(weight.shape) for name, weight in weights.items()}
    else:
        rounded = {name: weight.astype(np.float16).astype(np.float32) for name, weight in weights.items()}
    executor = load(write_hf_folder(tmp_path / "model", config, weights, shards=3, dtype=dtype))
    try:
        prompt = random_prompt(config, PROMPT, 5)
        reference = ReferenceModel(config, rounded, kv_dtype=np.float16)
        check_whole_prompt(executor, reference, prompt)
    finally:
        executor.close()
