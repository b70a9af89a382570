"""I1: the bits of a row do not depend on threads, chunks, blocks, or on what else is in the batch."""

import numpy as np
import pytest

from lpx import _native
from lpx.model.files import open_model
from lpx.runtime.cpu.executor import CpuExecutor
from lpx.runtime.options import RuntimeOptions
from lpx.runtime.step import SamplerSettings, SequenceInput, StepBatch
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny, random_prompt

LENGTH = 600  # more than two splits of attention, and enough rows for threads that keep to their own
BLOCKS = -(-LENGTH // _native.KV_BLOCK_SIZE)

# architecture, quantization of the weights, types of the KV cache, changes of the config
MODELS = {
    "llama": ("llama", "none", "f16", {}),
    "llama-q8": ("llama", "q8", "f16", {"hidden_size": 64, "intermediate_size": 96}),
    "mistral-q4": ("mistral", "q4", "f16", {"hidden_size": 64, "intermediate_size": 96}),
    "qwen2-biases": ("qwen2", "q8", "f16", {}),
    "qwen3": ("qwen3", "none", "f16", {"head_dim": 40}),
    "gemma2": ("gemma2", "q8", "f16", {}),
    "one-head-a-group": ("llama", "none", "f16", {"num_attention_heads": 6, "num_key_value_heads": 6}),
    "many-heads-a-group": ("llama", "none", "f16", {"num_attention_heads": 12, "num_key_value_heads": 1}),
    "kv-bf16": ("llama", "none", "bf16", {}),
    "kv-q8": ("llama", "q8", "q8", {"hidden_size": 64, "intermediate_size": 96}),
    "kv-q8-window": ("mistral", "none", "q8", {}),
    "kv-q8-one-head-a-group": ("llama", "none", "q8", {"num_attention_heads": 6, "num_key_value_heads": 6}),
    "kv-q8-many-heads-a-group": ("llama", "none", "q8", {"num_attention_heads": 12, "num_key_value_heads": 1}),
    "kv-q4-soft-cap": ("gemma2", "none", "q4", {"head_dim": 40}),
    "kv-q8-q4": ("qwen3", "none", "q8,q4", {"head_dim": 48}),
    "kv-q4-f16": ("llama", "none", "q4,f16", {}),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    """(load(threads), config, all logits of the prompt in one piece on one thread)"""
    arch, quantization, kv_cache_dtype, overrides = MODELS[request.param]
    config, weights = make_tiny(arch, 3, max_position_embeddings=1024, **overrides)
    path = write_hf_folder(tmp_path_factory.mktemp("model"), config, weights)
    executors = {}

    def load(threads):
        if threads not in executors:
            with open_model(path) as files:
                options = RuntimeOptions(
                    threads=threads,
                    quantization=quantization,
                    kv_cache_dtype=kv_cache_dtype,
                    max_model_len=1024,
                    max_num_seqs=16,
                    max_num_batched_tokens=LENGTH,
                )
                executors[threads] = CpuExecutor.load(files, options)
        return executors[threads]

    prompt = random_prompt(config, LENGTH, 5)
    yield load, prompt, in_chunks(load(1), prompt, LENGTH)
    for executor in executors.values():
        executor.close()


def rows_of(tokens, start, table):
    return SequenceInput(list(tokens), start, table, len(tokens), SamplerSettings())


def in_chunks(executor, prompt, chunk, table=None):
    table = list(range(BLOCKS)) if table is None else table
    return np.concatenate(
        [
            executor.logits(StepBatch([rows_of(prompt[start : start + chunk], start, table)]))
            for start in range(0, len(prompt), chunk)
        ]
    )


def assert_same_bits(actual, expected):
    assert np.array_equal(actual.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 3, 7, 64, LENGTH])
def test_threads_and_chunks_leave_the_bits_alone(model, threads, chunk):
    load, prompt, expected = model
    if chunk < 7:  # one row at a time from where the third split begins
        executor = load(threads)
        start = 2 * _native.SPLIT_TOKENS - 2
        executor.logits(StepBatch([rows_of(prompt[:start], 0, list(range(BLOCKS)))]))
        for position in range(start, start + 30, chunk):
            step = StepBatch([rows_of(prompt[position : position + chunk], position, list(range(BLOCKS)))])
            assert_same_bits(executor.logits(step), expected[position : position + chunk])
    else:
        assert_same_bits(in_chunks(load(threads), prompt, chunk), expected)


def test_blocks_leave_the_bits_alone(model):
    load, prompt, expected = model
    executor = load(2)
    shuffled = np.random.default_rng(1).permutation(executor.info.num_blocks)[:BLOCKS].tolist()
    assert_same_bits(in_chunks(executor, prompt, 200, shuffled), expected)


def test_old_content_of_blocks_leaves_the_bits_alone(model):
    load, prompt, expected = model
    executor = load(2)
    in_chunks(executor, prompt[::-1], LENGTH)
    assert_same_bits(in_chunks(executor, prompt[:97], 50), expected[:97])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_batch_of_thirteen_lengths_leaves_the_bits_alone(model, threads):
    load, prompt, expected = model
    executor = load(threads)
    lengths = [1, 2, 5, 17, 31, 32, 33, 40, 64, 65, 90, 100, 110]
    tables, used = [], 0
    for length in lengths:
        count = -(-(length + 3) // _native.KV_BLOCK_SIZE)
        tables.append(list(range(used, used + count)))
        used += count
    first = executor.logits(
        StepBatch([rows_of(prompt[:n], 0, table) for n, table in zip(lengths, tables, strict=True)])
    )
    assert_same_bits(first, np.concatenate([expected[:n] for n in lengths]))
    # Then one decoding row of each, but for one that goes on with three rows and one whose next chunk has many.
    more = [1] * 13
    more[3], more[10] = 3, 6
    tables[10].append(used)
    then = executor.logits(
        StepBatch([rows_of(prompt[n : n + m], n, t) for n, m, t in zip(lengths, more, tables, strict=True)])
    )
    assert_same_bits(then, np.concatenate([expected[n : n + m] for n, m in zip(lengths, more, strict=True)]))


@pytest.mark.parametrize("kv_cache_dtype", ["f16", "bf16", "q8", "q4"])
def test_a_sequence_that_is_not_finite_leaves_its_neighbours_alone(kv_cache_dtype, tmp_path):
    config, weights = make_tiny("llama", 3)
    weights["model.embed_tokens.weight"][9, 5] = np.nan
    path = write_hf_folder(tmp_path / "model", config, weights)
    with open_model(path) as files:
        options = RuntimeOptions(threads=2, max_model_len=512, kv_cache_dtype=kv_cache_dtype)
        executor = CpuExecutor.load(files, options)
    sound = SequenceInput([1, 2, 3], 0, [0], 1, SamplerSettings())
    (alone,) = executor.step(StepBatch([sound])).sequences
    broken = SequenceInput([1, 9, 9], 0, [1], 1, SamplerSettings())
    first, second = executor.step(StepBatch([broken, sound])).sequences
    assert "not finite" in first.error
    assert second == alone
    # The block of the broken sequence is clean enough for the next owner.
    (again,) = executor.step(StepBatch([SequenceInput([1, 2, 3], 0, [1], 1, SamplerSettings())])).sequences
    assert again == alone


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": [330]}, "token id 330"),
        ({"token_ids": [-1]}, "token id -1"),
        ({"block_table": [10**6]}, "KV block 1000000"),
        ({"block_table": [-1]}, "KV block -1"),
        ({"block_table": []}, "does not reach position"),
        ({"start_position": -1}, "positions"),
        ({"start_position": 512, "block_table": list(range(17))}, "do not fit a context of 512"),
        ({"token_ids": [], "sample_rows": 0}, "positions"),
        ({"token_ids": [1] * 600, "block_table": list(range(16))}, "600 rows"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_indices_out_of_range_are_refused(tmp_path, change, message):
    config, weights = make_tiny("llama", 3)
    path = write_hf_folder(tmp_path / "model", config, weights)
    with open_model(path) as files:
        executor = CpuExecutor.load(files, RuntimeOptions(threads=1, max_model_len=512, max_num_seqs=4))
    good = {"token_ids": [1], "start_position": 0, "block_table": [0], "sample_rows": 1, "sampling": SamplerSettings()}
    with pytest.raises(ValueError, match=message):
        executor.step(StepBatch([SequenceInput(**{**good, **change})]))
    assert len(executor.step(StepBatch([SequenceInput(**good)])).sequences[0].sampled_ids) == 1


@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_rows_that_are_scored_and_sampled_come_twice(model, count):
    """So a step can want more logits than it has rows."""
    load, prompt, _ = model
    executor = load(2)
    inputs = [
        SequenceInput([prompt[i]], 0, [i], 1, SamplerSettings(), logprobs=1, score_targets=[prompt[i + 1]])
        for i in range(count)
    ]
    alone = [executor.step(StepBatch([sequence])).sequences[0] for sequence in inputs]
    assert executor.step(StepBatch(inputs)).sequences == alone
    assert all(output.scores[0].token_id == prompt[i + 1] for i, output in enumerate(alone))
