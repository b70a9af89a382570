"""Which sides are measured on which workload."""

import dataclasses

import pytest

from lpx.bench.gate.pairs import Pair, compare_pairs, paired_workload
from lpx.bench.measurement import Measurement
from lpx.bench.sides.spec import EngineSide, ServerSide
from lpx.errors import ConfigError
from tests.bench.gate.test_gate import baseline

ENGINE = {"model": "/m/a.gguf", "kv_cache_dtype": "q8", "threads": 2}
LENGTHS = {"input_len": 1536, "output_len": 64, "batch_size": 2}


@pytest.fixture
def measured() -> Measurement:
    return dataclasses.replace(baseline().measurement, settings={"engine": ENGINE, **LENGTHS, "repeats": 5})


def test_a_baselines_workload_on_this_and_another_installation(measured):
    plan = paired_workload(None, "lpx:python=/old/bin/python", measured, ["kv_cache_dtype=f16"], {})
    assert plan.ours == EngineSide("now", {**ENGINE, "kv_cache_dtype": "f16"})
    assert plan.theirs == EngineSide("before", ENGINE, "/old/bin/python")
    assert {name: plan.settings[name] for name in LENGTHS} == LENGTHS
    assert plan.described()["workload"]["kind"] == "latency"


def test_sides_alone_have_lengths_of_the_command():
    plan = paired_workload("lpx:threads=1", "lpx:threads=2", None, (), {"input_len": 64, "output_len": None})
    assert (plan.ours.name, plan.theirs.name) == ("A", "B")
    assert dict(plan.settings) == {"input_len": 64, "output_len": 128, "batch_size": 1}


def test_a_load_of_a_baseline_goes_to_both_servers(measured):
    load = dataclasses.replace(measured, kind="serve", settings={"base_url": "http://a:1", "num_prompts": 9})
    plan = paired_workload(None, "http://b:2", load, (), {})
    assert (plan.ours, plan.theirs) == (ServerSide("now", "http://a:1"), ServerSide("before", "http://b:2"))
    with pytest.raises(ConfigError, match="asks a server"):
        paired_workload(None, "http://b:2", load, ["threads=1"], {})


def test_a_baseline_has_its_own_lengths(measured):
    with pytest.raises(ConfigError, match="lengths of its own"):
        paired_workload(None, "lpx", measured, (), {"input_len": 5})


def test_ratio_of_times_is_of_performance():
    pairs = [Pair("prefill", number, {"ttft_ms_median": 50.0}, {"ttft_ms_median": 100.0}) for number in range(4)]
    found = compare_pairs(pairs, "ttft_ms_median", 0.95)
    assert found.ratio.estimate == pytest.approx(2)
    assert (found.before, found.after) == (100, 50)
    assert compare_pairs(pairs, "decode_tokens_per_second", 0.95) is None
