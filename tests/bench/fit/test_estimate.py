"""Estimates against what is really planned, loaded and held; and what they say when something does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lpx.bench.fit import estimate_fit, gpu_target, machine_target, resolve_subject
from lpx.bench.fit.estimate import advice
from lpx.bench.fit.precisions import PRECISIONS, Precision, matrices_at, packed_bytes, parameter_count, stored_bytes
from lpx.engine.engine import Engine
from lpx.errors import ConfigError
from lpx.model.files import open_model
from lpx.options import EngineOptions
from lpx.runtime.memory import plan_memory
from lpx.runtime.options import RuntimeOptions

GIB = 2**30
NOWHERE = "/nonexistent"


@pytest.fixture
def machine():
    return machine_target(bytes_per_second=40e9, threads=2, memory_bytes=16 * GIB)


def estimate(name, target, context=None):
    return estimate_fit(resolve_subject(str(name), Path(NOWHERE)), target, context)


def row_of(report, precision, kv_cache_dtype="f16"):
    [row] = [row for row in report.rows if (row.precision, row.kv_cache_dtype) == (precision, kv_cache_dtype)]
    return row


@pytest.mark.parametrize("kv_cache_dtype", ["f16", "q8"])
def test_a_file_takes_what_the_plan_says(real_model_path, machine, kv_cache_dtype):
    row = row_of(estimate(real_model_path, machine, 2048), "file", kv_cache_dtype)
    options = RuntimeOptions(threads=2, max_model_len=2048, max_num_seqs=1, kv_cache_dtype=kv_cache_dtype)
    with open_model(real_model_path) as files:
        plan = plan_memory(files, options, available=16 * GIB)
    assert row.weight_bytes == plan.weight_bytes
    assert row.kv_bytes_per_token * 2048 == plan.kv_bytes
    assert row.buffer_bytes == plan.work_bytes


def test_the_limit_of_a_file_is_that_of_the_loaded_engine(real_model_path, machine):
    row = row_of(estimate(real_model_path, machine, 1024), "file")
    engine = Engine.load(
        EngineOptions(model=str(real_model_path), max_model_len=1024, threads=1, max_num_seqs=1, measure_steps=False)
    )
    try:
        read, kv = engine.info.bytes_per_token, engine.executor.kv_bytes_read(1024)
        assert row.weight_bytes == pytest.approx(engine.info.weight_bytes, rel=0.005)
    finally:
        engine.close()
    assert row.tokens_per_second == pytest.approx(40e9 / read, rel=0.01)
    assert row.tokens_per_second_at_context == pytest.approx(40e9 / (read + kv), rel=0.01)


_HELD = """
import sys
from lpx.engine.engine import Engine
from lpx.engine.sampling_params import SamplingParams
from lpx.options import EngineOptions
engine = Engine.load(EngineOptions(model=sys.argv[1], max_model_len=512, max_num_seqs=1, threads=2))
engine.add_request([7] * 470, SamplingParams(max_tokens=41, ignore_eos=True, temperature=0.0))
while engine.has_work:
    engine.step()
print([int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmRSS")][0])
"""


def test_a_process_holds_what_was_estimated(smollm2_path, machine):
    row = row_of(estimate(smollm2_path, machine, 512), "file")
    done = subprocess.run(
        [sys.executable, "-c", _HELD, str(smollm2_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert row.needed_bytes == pytest.approx(int(done.stdout), rel=0.08)


def test_the_mix_of_q4_is_that_of_the_usual_files(real_model_path):
    q4 = next(precision for precision in PRECISIONS if precision.name == "q4")
    if "q4_1" in real_model_path.name:
        q4 = Precision("q4_1", most="Q4_1", head="Q8_0", some="Q4_1")
    with open_model(real_model_path) as files:
        matrices = matrices_at(files.config, q4)
        assert stored_bytes(matrices) == pytest.approx(sum(files.weight_types.values()), rel=0.005)
        plan = plan_memory(files, RuntimeOptions(threads=1), available=16 * GIB)
        assert packed_bytes(matrices, files.config) == pytest.approx(plan.weight_bytes, rel=0.005)


@pytest.mark.parametrize(("name", "bits"), [("f16", 16), ("q8", 8.5), ("q6", 6.56), ("q5", 5.7), ("q4", 4.85)])
def test_bits_of_a_weight_are_those_of_the_formats(name, bits):
    config = resolve_subject("Qwen2.5-7B", Path(NOWHERE)).config
    precision = next(precision for precision in PRECISIONS if precision.name == name)
    assert 8 * stored_bytes(matrices_at(config, precision)) / parameter_count(config) == pytest.approx(bits, rel=0.02)


def test_the_longest_context_is_the_last_one_that_fits():
    for memory in (1 * GIB, 5 * GIB, 6 * GIB, 12 * GIB):
        target = machine_target(bytes_per_second=40e9, threads=2, memory_bytes=memory)
        row = row_of(estimate("Qwen2.5-7B", target), "q4")
        if not row.longest_context:
            assert row.weight_bytes > memory / 2
            continue
        assert row_of(estimate("Qwen2.5-7B", target, row.longest_context), "q4").fits
        if row.longest_context < 32768:
            assert not row_of(estimate("Qwen2.5-7B", target, row.longest_context + 32), "q4").fits


def test_windows_limit_what_a_token_reads_but_not_what_is_kept(machine):
    gemma = row_of(estimate("gemma-3-1b", machine, 32768), "q4")
    kept = gemma.kv_bytes_per_token * 32768
    read = 40e9 / gemma.tokens_per_second_at_context - 40e9 / gemma.tokens_per_second
    assert read == pytest.approx(kept * (4 * 32768 + 22 * 512) / (26 * 32768), rel=1e-6)


def test_a_card_is_counted_by_what_is_listed():
    report = estimate("Qwen2.5-7B", gpu_target("RTX 4060"))
    assert report.target.usable_bytes == pytest.approx(0.9 * 8 * GIB, rel=1e-6)
    q4 = row_of(report, "q4", "q8")
    assert q4.fits
    assert q4.tokens_per_second == pytest.approx(272e9 / (q4.weight_bytes * 0.93), rel=0.02)  # embeddings are not read
    assert not row_of(report, "f16").fits
    assert row_of(report, "f16").longest_context == 0


def test_advice_says_what_does_not_fit_and_what_would(machine):
    told = " ".join(advice(estimate("Qwen2.5-7B", gpu_target("RTX 4060"))))
    assert "f16 (at least 14.40 GiB)" in told
    assert "The most precise that fits: q6 with a cache of f16." in told
    assert "of 32,768 tokens; q6 with a cache of q8 has" in told
    nothing = " ".join(advice(estimate("70B", gpu_target("RTX 4060"))))
    assert "Nothing fits" in nothing
    assert "a model of about 12B parameters would fit" in nothing
    shorter = machine_target(memory_bytes=5 * GIB, threads=2)
    assert "It fits for up to" in " ".join(advice(estimate("Qwen2.5-7B", shorter, 32768)))
    assert advice(estimate("SmolLM2-135M", machine)) == []


def test_without_a_bandwidth_there_is_no_limit(tmp_path):
    target = machine_target(ledger=tmp_path / "none.sqlite", memory_bytes=GIB)
    assert target.bytes_per_second is None
    assert row_of(estimate("SmolLM2-135M", target), "q4").tokens_per_second is None


def test_unknown_cards_and_contexts_are_refused(machine):
    with pytest.raises(ConfigError, match="near are RTX 40"):
        gpu_target("RTX 4600")
    with pytest.raises(ConfigError, match="from 1 to 8192"):
        estimate("SmolLM2-135M", machine, 8193)


def test_json_holds_everything(machine):
    report = json.loads(json.dumps(estimate("7B", gpu_target("T4")).to_json()))
    assert report["target"]["gpu"]["capabilities"] == {
        **dict.fromkeys(("bf16", "fp8", "fp4"), False),
        **dict.fromkeys(("fp16", "int8", "int4"), True),
    }
    assert len(report["rows"]) == 2 * len(PRECISIONS)
    assert report["model"]["num_kv_heads"] == 8
