"""Steps that follow one another natively sample what single steps sample."""

import numpy as np
import pytest

from lpx.engine.engine import Engine
from lpx.engine.sampling_params import SamplingParams
from lpx.options import EngineOptions
from lpx.runtime.step import SamplerSettings, SequenceInput, StepBatch
from tests.reference.executor_rows import blocks_for
from tests.reference.tiny_models import random_prompt

PROMPT = 30  # the steps cross the end of a KV block
STEPS = 8


def settings(i):
    return SamplerSettings(temperature=0.0 if i % 2 else 1.0, seed=7 + i, logit_bias={5: 1.0})


def rows_of(executor, tokens, start, tables, **wanted):
    return [
        SequenceInput(ids, start, table, sample_rows=1, sampling=settings(i), **wanted)
        for i, (ids, table) in enumerate(zip(tokens, tables, strict=True))
    ]


def start_streams(executor, config, count):
    """(block tables, first sampled id of each stream)"""
    tables = [blocks_for(executor, PROMPT + STEPS + 1, first=i, stride=count) for i in range(count)]
    prompts = [random_prompt(config, PROMPT, 20 + i) for i in range(count)]
    outputs = executor.step(StepBatch(rows_of(executor, prompts, 0, tables))).sequences
    return tables, [output.sampled_ids[0] for output in outputs]


def single_steps(executor, tables, ids):
    sampled = [[] for _ in ids]
    for step in range(STEPS):
        outputs = executor.step(StepBatch(rows_of(executor, [[i] for i in ids], PROMPT + step, tables))).sequences
        ids = [output.sampled_ids[0] for output in outputs]
        for row, i in zip(sampled, ids, strict=True):
            row.append(i)
    return sampled


@pytest.mark.parametrize("count", [1, 3])
def test_following_steps_sample_the_same(executor, folder, count):
    tables, first = start_streams(executor, folder[0], count)
    expected = single_steps(executor, tables, first)
    batch = StepBatch(rows_of(executor, [[i] for i in first], PROMPT, tables), more_steps=STEPS - 1)
    assert [output.sampled_ids for output in executor.step(batch).sequences] == expected
    assert len(np.unique(expected)) > 3


def test_a_stop_id_of_any_sequence_ends_them_for_all(executor, folder):
    tables, first = start_streams(executor, folder[0], 3)
    expected = single_steps(executor, tables, first)
    rows = rows_of(executor, [[i] for i in first], PROMPT, tables)
    rows[1].stop_ids = {expected[1][2]}
    steps = expected[1].index(expected[1][2]) + 1
    outputs = executor.step(StepBatch(rows, more_steps=STEPS - 1)).sequences
    assert [output.sampled_ids for output in outputs] == [row[:steps] for row in expected]


def test_steps_cannot_follow_a_prompt_log_probabilities_or_penalties(executor, folder):
    tables, first = start_streams(executor, folder[0], 1)

    def refused(match, **changes):
        [row] = rows_of(executor, [[first[0]]], PROMPT, tables)
        for name, value in changes.items():
            setattr(row, name, value)
        with pytest.raises(ValueError, match=match):
            executor.step(StepBatch([row], more_steps=STEPS - 1))

    refused("one row", token_ids=[1, 2])
    refused("one row", sample_rows=0)
    refused("log-probabilities", logprobs=2)
    refused(
        "penalties",
        sampling=SamplerSettings(presence_penalty=0.5),
        prompt_ids=[1, 2],
        output_ids=[3],
    )
    refused("block table", block_table=tables[0][:1])


PARAMS = {
    "greedy": SamplingParams(temperature=0, max_tokens=40, ignore_eos=True),
    "seeded": SamplingParams(temperature=1.2, seed=4, max_tokens=23, ignore_eos=True, n=2),
    "least tokens": SamplingParams(temperature=0.9, seed=1, max_tokens=30, min_tokens=9),
    "penalties": SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, frequency_penalty=0.7),
    "log-probabilities": SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=1),
}


def run(engine, params, monkeypatch, unseen_ns):
    """(token ids and ends by choice, native calls that ran more than one step)"""
    monkeypatch.setattr("lpx.engine.steps_ahead._UNSEEN_NS", unseen_ns)
    followed = []
    step = engine.executor.step
    monkeypatch.setattr(engine.executor, "step", lambda batch: followed.append(batch.more_steps) or step(batch))
    engine.add_request([3, 1, 4, 1, 5], params)
    ids, ends = {}, {}
    while engine.has_work:
        for delta in engine.step():
            ids.setdefault(delta.index, []).extend(delta.token_ids)
            ends[delta.index] = delta.finish_reason
    assert engine.kv_cache.num_free == engine.kv_cache.num_blocks
    monkeypatch.undo()
    return ids, ends, sum(more > 0 for more in followed)


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_an_engine_gives_the_same_tokens_with_and_without(folder, params, monkeypatch):
    engine = Engine.load(EngineOptions(str(folder[1]), threads=2))
    try:
        with_them = run(engine, params, monkeypatch, 10**12)
        without = run(engine, params, monkeypatch, 0)
        stop = SamplingParams(temperature=0, max_tokens=40, stop_token_ids=[with_them[0][0][5]])
        stopped = run(engine, stop, monkeypatch, 10**12)
        assert stopped[:2] == run(engine, stop, monkeypatch, 0)[:2]
    finally:
        engine.close()
    assert with_them[:2] == without[:2]
    assert without[2] == 0
    assert (with_them[2] > 0) == (params.logprobs is None and not params.frequency_penalty)
