"""What a latency measurement holds: parts that add up, bytes that can be counted by hand, refusals with a way out."""

import functools
import json
from contextlib import closing
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from lpx.bench.engine_subject import multiply_adds_per_token
from lpx.bench.latency import PARTS, _decode, measure_latency, measure_latency_again
from lpx.bench.roofline import MemoryReader
from lpx.bench.series import Series
from lpx.engine.engine import Engine
from lpx.errors import ConfigError
from lpx.options import EngineOptions
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny

WORKING_SET = 3 << 20
STEPS_AT_ONCE = 8


@pytest.fixture(scope="module", params=["llama", "mistral"])
def engine(request, tmp_path_factory):
    config, weights = make_tiny(request.param, seed=1)
    folder = write_hf_folder(tmp_path_factory.mktemp("model"), config, weights)
    options = EngineOptions(
        model=str(folder), threads=2, max_num_seqs=8, max_num_batched_tokens=64, kv_cache_memory=1 << 20
    )
    engine = Engine.load(options)
    yield engine
    assert not engine.has_work
    assert engine.kv_cache.num_free == engine.kv_cache.num_blocks
    engine.close()


def measure(engine, **options):
    return measure_latency(engine, **{"repeats": 2, "read_seconds": 0.0, "working_set_bytes": WORKING_SET, **options})


def test_one_stream(engine):
    told = []
    measured = measure(engine, input_len=40, output_len=9, progress=told.append)
    assert (measured.input_len, measured.output_len, measured.batch_size, measured.repeats) == (40, 9, 1, 2)
    assert measured.in_use == engine.info
    for series in (
        measured.prefill_tokens_per_second,
        measured.decode_tokens_per_second,
        measured.time_to_first_token_ms,
        measured.decode_step_ms,
    ):
        assert len(series.values) == 2
        assert 0 < series.low <= series.median <= series.high
    assert told


@pytest.mark.parametrize("batch_size", [1, 3])
def test_parts_of_a_step_add_up_to_it(engine, batch_size):
    step = measure(engine, input_len=16, output_len=6, batch_size=batch_size).step
    assert list(step.parts) == list(PARTS)
    assert 5 <= step.steps < 5 + STEPS_AT_ONCE
    assert sum(part.ms for part in step.parts.values()) == pytest.approx(step.step_ms)
    assert sum(part.share for part in step.parts.values()) == pytest.approx(1.0)
    assert all(part.ms >= 0 for part in step.parts.values())
    for name in ("qkv", "output", "gate_up", "down", "attention", "norm", "head", "python"):
        assert step.parts[name].ms > 0


@pytest.mark.parametrize("batch_size", [1, 4])
def test_bytes_and_limit_can_be_counted_by_hand(engine, batch_size):
    measured = measure(engine, input_len=30, output_len=6, batch_size=batch_size)
    limit = measured.limit
    # The steps after the first token see 31, 32, 33, 34 and 35 tokens of each stream. The last may be one of several
    # that run at once, and streams whose prompts took several steps are a little ahead.
    assert 33 <= limit.mean_context < 36 + STEPS_AT_ONCE / 2
    layers, heads, dims, padded = 3, 2, 12, 16
    window = 19 if measured.in_use.architecture == "mistral" else 10**6
    per_token = layers * heads * (dims + padded) * 2
    assert limit.kv_bytes_per_token == pytest.approx(per_token * min(limit.mean_context, window))
    assert limit.weight_bytes_per_token == engine.info.bytes_per_token / batch_size
    assert limit.bytes_per_token == limit.weight_bytes_per_token + limit.kv_bytes_per_token
    assert limit.tokens_per_second == pytest.approx(limit.best_read.bytes_per_second / limit.bytes_per_token)
    assert limit.fraction == pytest.approx(measured.decode_tokens_per_second.median / limit.tokens_per_second)


def test_each_repeat_is_compared_with_the_reading_around_it(engine, monkeypatch):
    reads = iter([8e9, 4e9, 2e9, 2e9])
    monkeypatch.setattr(
        MemoryReader, "read", lambda self, pattern, seconds: SimpleNamespace(repetitions=Series.of([next(reads)]))
    )
    measured = measure(engine, input_len=16, output_len=6, repeats=3)
    limit = measured.limit
    assert limit.turns_read_bytes_per_second.values == (6e9, 3e9, 2e9)
    assert limit.turns_tokens_per_second == pytest.approx(3e9 / limit.bytes_per_token)
    fractions = [
        speed * limit.bytes_per_token / read
        for speed, read in zip(measured.decode_tokens_per_second.values, (6e9, 3e9, 2e9), strict=True)
    ]
    assert limit.turns_fraction == pytest.approx(sorted(fractions)[1])


def test_steps_that_the_engine_runs_at_once_are_all_counted(engine):
    before = engine.stats().generation_tokens_total
    done = _decode(engine, [[1, 2, 3]], 40)
    assert done.steps == engine.stats().generation_tokens_total - before - 1  # the first token is the prompt's


def test_prompts_of_several_steps_still_decode_together(engine):
    measured = measure(engine, input_len=100, output_len=8, batch_size=4)
    assert 7 <= measured.step.steps < 7 + STEPS_AT_ONCE
    assert measured.limit.mean_context > 104


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"input_len": 0}, "--input-len"),
        ({"output_len": 1}, "--output-len"),
        ({"batch_size": 0}, "--batch-size"),
        ({"repeats": 0}, "--repeats"),
        ({"input_len": 505}, "--max-model-len"),
        ({"batch_size": 9}, "--max-num-seqs 9"),
        ({"input_len": 500, "batch_size": 8}, "--kv-cache-memory"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_way_out(engine, options, said):
    with pytest.raises(ConfigError, match=said):
        measure(engine, **{"input_len": 16, "output_len": 8, **options})


def test_engine_serves_requests_afterwards(engine):
    from lpx.engine.sampling_params import SamplingParams

    measure(engine, input_len=8, output_len=4)
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True))
    ended = [delta for _ in range(3) if engine.has_work for delta in engine.step() if delta.finish_reason]
    assert [delta.finish_reason for delta in ended] == ["length"]


@pytest.mark.parametrize("arch", ["llama", "gemma3"])  # with a head of its own, and with the embedding as head
def test_a_measurement_can_be_measured_again(tmp_path, monkeypatch, arch):
    config, weights = make_tiny(arch, seed=1)
    folder = write_hf_folder(tmp_path / "model", config, weights)
    options = EngineOptions(model=str(folder), threads=1, kv_cache_memory=1 << 20, max_num_seqs=4)
    quick = functools.partial(measure_latency, read_seconds=0.0, working_set_bytes=WORKING_SET)
    monkeypatch.setattr("lpx.bench.latency.measure_latency", quick)
    with closing(Engine.load(options)) as loaded:
        measured = quick(loaded, input_len=12, output_len=4, batch_size=2, repeats=3)
    first = measured.measurement(options, datetime(2026, 1, 31, tzinfo=timezone.utc), 1.0)
    assert (first.kind, first.subject.engine, first.subject.threads) == ("latency", "lpx", 1)
    assert len(first.samples["decode_tokens_per_second"]) == 3
    matrices = {name: array.size for name, array in weights.items() if array.ndim == 2}
    if "lm_head.weight" in matrices:
        matrices.pop("model.embed_tokens.weight")
    assert first.figures["multiply_adds_per_token"] == multiply_adds_per_token(folder) == sum(matrices.values())

    again = measure_latency_again(json.loads(json.dumps(first.settings)))
    assert (again.settings, again.subject) == (first.settings, first.subject)
    assert again.figures.keys() == first.figures.keys()
    with pytest.raises(ConfigError, match="settings"):
        measure_latency_again({**first.settings, "colour": "red"})
