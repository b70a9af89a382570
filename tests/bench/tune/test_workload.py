"""The prompts, what a round of them gives, and how large it is made."""

from __future__ import annotations

import pytest

from lpx.bench.tune.workload import Workload, encode_prompts, first_workload, run_round, sized, texts
from lpx.engine.engine import Engine
from lpx.errors import ConfigError


@pytest.fixture(scope="module")
def engine(tiny_model):
    from lpx.options import EngineOptions

    engine = Engine.load(EngineOptions(model=str(tiny_model), threads=1, kv_cache_memory=8 << 20))
    yield engine
    assert not engine.has_work
    assert engine.kv_cache.num_free == engine.kv_cache.num_blocks
    engine.close()


def test_the_set_has_english_and_chinese_texts_and_code():
    assert len(texts()) == 8
    assert sum(any("\u4e00" <= character <= "\u9fff" for character in text) for text in texts()) >= 2
    assert any("```" in text for text in texts())


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_round_answers_every_request_once(engine, concurrency):
    workload = Workload(prompts=4, max_tokens=20, concurrency=concurrency, requests=6)
    prompts = encode_prompts(engine, workload)
    before = engine.stats()
    done = run_round(engine, prompts, workload)
    after = engine.stats()
    assert after.requests_total - before.requests_total == 6
    assert done.tokens == after.generation_tokens_total - before.generation_tokens_total
    assert len(done.ttft_ms) == len(done.itl_ms) == len(done.answers) == 6
    assert all(16 <= len(answer) <= 20 for answer in done.answers)
    assert done.answers[0] == done.answers[4]  # prompts take turns
    assert all(value > 0 for value in (*done.ttft_ms, *done.itl_ms, done.score))
    if concurrency == 1:
        assert done.score == pytest.approx(_answers_per_second(done))
    else:
        assert done.score == done.tokens / done.seconds


def _answers_per_second(done):
    from statistics import geometric_mean

    return 1e3 / geometric_mean([ttft + 127 * itl for ttft, itl in zip(done.ttft_ms, done.itl_ms, strict=True)])


def test_rounds_do_not_help_each_other(engine):
    workload = Workload(prompts=2, max_tokens=16, requests=2)
    prompts = encode_prompts(engine, workload)
    run_round(engine, prompts, workload)
    before = engine.stats().prefix_cache_hits_total
    run_round(engine, prompts, workload)
    assert engine.stats().prefix_cache_hits_total == before


def test_prompts_that_do_not_fit_are_left_out(engine):
    room = engine.info.max_model_len
    lengths = [len(ids) for ids in encode_prompts(engine, Workload(8, 16))]
    assert len(lengths) == 8
    assert len(encode_prompts(engine, Workload(8, room - sorted(lengths)[3]))) == 4
    with pytest.raises(ConfigError, match="--max-model-len"):
        encode_prompts(engine, Workload(8, room))


def test_rounds_are_made_as_long_as_there_is_time():
    first = first_workload(1)
    assert (first.prompts, first.requests) == (8, 8)
    assert sized(first, seconds=2.0, wanted_seconds=4.0).max_tokens == 96
    assert sized(first, seconds=2.0, wanted_seconds=400.0).max_tokens == 128
    short = sized(first, seconds=30.0, wanted_seconds=5.0)
    assert (short.max_tokens, short.prompts, short.requests) == (32, 3, 3)
    many = first_workload(16)
    assert (many.concurrency, many.requests) == (16, 16)
    assert sized(many, seconds=30.0, wanted_seconds=5.0).requests == 16
