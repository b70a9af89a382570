"""Greedy steps that compute a part of the logits sample what all logits would give."""

import numpy as np
import pytest

from lpx.model.files import open_model
from lpx.runtime.cpu.executor import CpuExecutor
from lpx.runtime.options import RuntimeOptions
from lpx.runtime.step import SamplerSettings, SequenceInput, StepBatch
from tests.reference.executor_rows import blocks_for
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny, random_prompt

PROMPT = 12
GREEDY = SamplerSettings(temperature=0.0)


@pytest.fixture(autouse=True)
def split_small_heads(monkeypatch):
    monkeypatch.setattr("lpx.runtime.memory.LEAST_SPLIT_HEAD", 0)


def _spread_head(weights, change=None):
    """Embeddings, tied or not, as those of a trained model: most tokens far from likely."""
    name = "lm_head.weight" if "lm_head.weight" in weights else "model.embed_tokens.weight"
    head = np.array(weights[name])
    rng = np.random.default_rng(4)
    head *= np.exp(rng.standard_normal((len(head), 1)))
    if change is not None:
        change(head)
    weights[name] = head


def _load(tmp_path, kind, *, change=None, quantization="q8", threads=2):
    config, weights = make_tiny(kind, 3)
    _spread_head(weights, change)
    folder = write_hf_folder(tmp_path / kind, config, weights)
    options = RuntimeOptions(
        threads=threads, quantization=quantization, max_model_len=64, max_num_seqs=16, max_num_batched_tokens=160
    )
    return config, CpuExecutor.load(open_model(folder, max_model_len=64), options)


def _rows(executor, config, count, settings=GREEDY, seed=50):
    tables = [blocks_for(executor, PROMPT + 1, first=i, stride=count) for i in range(count)]
    return [SequenceInput(random_prompt(config, PROMPT, seed + i), 0, tables[i], 1, settings) for i in range(count)]


def _screened(executor):
    return executor._decoder.screened_rows


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma3"])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_the_largest_logit_is_found(tmp_path, kind, threads, count):
    config, executor = _load(tmp_path, kind, threads=threads)
    try:
        found = set()
        for seed in range(12):
            rows = _rows(executor, config, count, seed=100 * seed)
            sampled = [output.sampled_ids[0] for output in executor.step(StepBatch(rows)).sequences]
            assert sampled == executor.logits(StepBatch(rows)).argmax(axis=1).tolist()
            found.update(sampled)
        assert (_screened(executor) > 0) == (count <= executor._decoder.most_screened_rows)
        assert len(found) > 1
    finally:
        executor.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("density", [0.002, 0.05, 0.5, 0.98])
def test_the_largest_of_what_a_mask_allows_is_found(tmp_path, threads, count, density):
    config, executor = _load(tmp_path, "llama", threads=threads)
    vocab = config["vocab_size"]
    rng = np.random.default_rng(threads)
    try:
        for seed in range(12):
            rows = _rows(executor, config, count, seed=100 * seed)
            expected = []
            for row, logits in zip(rows, executor.logits(StepBatch(rows)), strict=True):
                allowed = rng.random(vocab) < density
                allowed[rng.integers(vocab)] = True
                bits = np.zeros(-(-vocab // 32) * 32, dtype=np.uint8)
                bits[:vocab] = allowed
                row.masks = np.packbits(bits, bitorder="little").view(np.uint32)[None]
                expected.append(int(np.where(allowed, logits, -np.inf).argmax()))
            if seed % 3 == 2:  # beside rows without a mask
                rows[0].masks = None
                expected[0] = int(executor.logits(StepBatch(rows[:1]))[0].argmax())
            assert [output.sampled_ids[0] for output in executor.step(StepBatch(rows)).sequences] == expected
        assert (_screened(executor) > 0) == (count <= executor._decoder.most_screened_rows)
    finally:
        executor.close()


def test_equal_logits_go_to_the_lowest_id(tmp_path):
    def repeat(head):
        head[7::40] = 8 * head[7]  # in groups of both threads

    config, executor = _load(tmp_path, "llama", change=repeat)
    try:
        equal = set(range(7, config["vocab_size"], 40))
        seen = set()
        for seed in range(200):
            rows = _rows(executor, config, 1, seed=seed)
            logits = executor.logits(StepBatch(rows))[0]
            sampled = executor.step(StepBatch(rows)).sequences[0].sampled_ids[0]
            assert sampled == logits.argmax()
            seen.add(sampled)
        assert 7 in seen, "the equal logits were never the largest"
        assert seen & equal == {7}
    finally:
        executor.close()


@pytest.mark.parametrize(
    "settings",
    [
        SamplerSettings(temperature=0.7),
        SamplerSettings(temperature=0.0, logit_bias={3: 50.0}),
    ],
    ids=["temperature", "bias"],
)
def test_what_needs_other_logits_is_not_screened(tmp_path, settings):
    config, executor = _load(tmp_path, "llama")
    try:
        executor.step(StepBatch(_rows(executor, config, 1, settings)))
        assert _screened(executor) == 0
    finally:
        executor.close()


def test_small_heads_are_not_screened(tmp_path, monkeypatch):
    monkeypatch.undo()
    config, executor = _load(tmp_path, "llama")
    try:
        executor.step(StepBatch(_rows(executor, config, 1)))
        assert _screened(executor) == 0
    finally:
        executor.close()


def test_many_rows_and_capped_logits_are_not_screened(tmp_path):
    for kind, count in (("llama", 9), ("gemma2", 1)):
        config, executor = _load(tmp_path, kind)
        try:
            executor.step(StepBatch(_rows(executor, config, count)))
            assert _screened(executor) == 0
        finally:
            executor.close()


def test_a_head_of_floats_is_not_screened(tmp_path):
    config, executor = _load(tmp_path, "llama", quantization="none")
    try:
        executor.step(StepBatch(_rows(executor, config, 1)))
        assert _screened(executor) == 0
    finally:
        executor.close()
