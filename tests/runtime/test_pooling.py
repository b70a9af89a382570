"""Sums of hidden states: equal to the reference's, and their bits as independent as those of logits (I1)."""

import numpy as np
import pytest

from lpx.model.files import open_model
from lpx.runtime.cpu.executor import CpuExecutor
from lpx.runtime.options import RuntimeOptions
from lpx.runtime.step import SamplerSettings, SequenceInput, StepBatch
from tests.reference.executor_rows import blocks_for, stored_kv
from tests.reference.model_files import write_hf_folder
from tests.reference.numpy_model import ReferenceModel
from tests.reference.tiny_models import ARCHITECTURES, make_tiny, random_prompt

TOLERANCE = 1e-5  # the largest difference, over the largest value
LENGTH = 70


def load(path, threads=2, max_num_batched_tokens=512, quantization="none"):
    with open_model(path, max_model_len=512) as files:
        return CpuExecutor.load(
            files,
            RuntimeOptions(
                threads=threads,
                quantization=quantization,
                max_model_len=512,
                max_num_seqs=8,
                max_num_batched_tokens=max_num_batched_tokens,
            ),
        )


def pooled(executor, prompt, chunk=None, table=None, others=()):
    """The sum over all rows of a prompt, `chunk` rows a step, with other sequences in each step."""
    table = table or blocks_for(executor, len(prompt))
    chunk = chunk or len(prompt)
    total = None
    for start in range(0, len(prompt), chunk):
        rows = prompt[start : start + chunk]
        sequence = SequenceInput(rows, start, table, pool_rows=(0, len(rows)), pool_sum=total)
        total = executor.step(StepBatch([*others, sequence])).sequences[-1].pool_sum
    return total


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("length", [1, 3, LENGTH])
def test_sum_of_hidden_states_equals_reference(arch, length, tmp_path):
    config, weights = make_tiny(arch, 21)
    executor = load(write_hf_folder(tmp_path / "model", config, weights))
    prompt = random_prompt(config, length, 6)
    actual = pooled(executor, prompt)
    reference = ReferenceModel(config, weights, kv_dtype=np.float16, sequence_length=512)
    expected = reference.hidden(prompt, stored_kv(executor, config, blocks_for(executor, length), length)).sum(axis=0)
    executor.close()
    assert actual.dtype == np.float64
    assert np.abs(actual - expected).max() < TOLERANCE * np.abs(expected).max()


@pytest.fixture(scope="module", params=["none", "q8"])
def model(request, tmp_path_factory):
    config, weights = make_tiny("llama", 22, hidden_size=64, intermediate_size=96)
    path = write_hf_folder(tmp_path_factory.mktemp("model"), config, weights)
    executors = {threads: load(path, threads, quantization=request.param) for threads in (1, 2, 3)}
    prompt = random_prompt(config, LENGTH, 7)
    yield executors, prompt, pooled(executors[1], prompt)
    for executor in executors.values():
        executor.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 64])
def test_threads_and_chunks_leave_the_bits_of_the_sum_alone(model, threads, chunk):
    executors, prompt, expected = model
    assert np.array_equal(pooled(executors[threads], prompt, chunk), expected)


@pytest.mark.parametrize("chunk", [2, 40])
def test_company_leaves_the_bits_of_the_sum_and_its_own_alone(model, chunk):
    executors, prompt, expected = model
    executor = executors[2]
    sampling = SequenceInput(prompt[:5], 0, [8], 1, SamplerSettings(), logprobs=3)
    pooling = SequenceInput(prompt[:9], 0, [9], pool_rows=(0, 9))
    alone = [executor.step(StepBatch([each])).sequences[0] for each in (sampling, pooling)]
    assert np.array_equal(pooled(executor, prompt, chunk, others=[pooling, sampling]), expected)
    first, second = executor.step(StepBatch([sampling, pooling])).sequences
    assert first == alone[0]
    assert np.array_equal(second.pool_sum, alone[1].pool_sum)


def test_some_rows_can_be_pooled(model):
    executors, prompt, _ = model
    executor = executors[2]
    table = blocks_for(executor, LENGTH)

    def of(begin, end):
        step = StepBatch([SequenceInput(prompt, 0, table, pool_rows=(begin, end))])
        return executor.step(step).sequences[0].pool_sum

    rows = [of(row, row + 1) for row in range(3, 6)]
    assert np.array_equal(of(3, 6), rows[0] + rows[1] + rows[2])


@pytest.mark.parametrize("rows", [(0, 0), (-1, 1), (0, 4), (2, 1)])
def test_rows_that_do_not_exist_are_refused(model, rows):
    executors, prompt, _ = model
    with pytest.raises(ValueError, match="pooled rows"):
        executors[1].step(StepBatch([SequenceInput(prompt[:3], 0, [0], pool_rows=rows)]))


def test_hidden_states_that_are_not_finite_are_an_error_of_their_sequence_alone(tmp_path):
    config, weights = make_tiny("llama", 3)
    weights["model.embed_tokens.weight"][9, 5] = np.nan
    executor = load(write_hf_folder(tmp_path / "model", config, weights))
    broken = SequenceInput([1, 9], 0, [0], pool_rows=(0, 2))
    sound = SequenceInput([1, 2], 0, [1], pool_rows=(0, 2))
    first, second = executor.step(StepBatch([broken, sound])).sequences
    executor.close()
    assert "not finite" in first.error
    assert second.error is None
    assert np.isfinite(second.pool_sum).all()
