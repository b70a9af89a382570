"""The memory plan: what it counts, what it refuses, and that loading allocates what it said (I5)."""

import platform

import psutil
import pytest

from lpx import _native
from lpx.errors import ConfigError, MemoryLimitError, UnsupportedModelError
from lpx.model.files import open_model
from lpx.runtime.cpu.executor import CpuExecutor
from lpx.runtime.memory import plan_memory, quantize_bits
from lpx.runtime.options import RuntimeOptions
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny

GIB = 2**30
# K transposed and V, float16, of 3 layers with 2 KV heads of 12 dimensions; values are padded to 16.
BLOCK_BYTES = 3 * 2 * 2 * _native.KV_BLOCK_SIZE * (12 + 16)


def open_tiny(folder, **overrides):
    config, weights = make_tiny("llama", 1, **overrides)
    return open_model(write_hf_folder(folder / "model", config, weights))


def block_bytes(kind, dim):
    """Of one KV head of `dim` dimensions: codes padded to 16, with a float16 scale (q4: and minimum) for every 32.

    Values of q8 hold the scales, so that it takes half of f16.
    """
    padded = -(-dim // 16) * 16
    scales = 2 * -(-dim // 32)
    token = {
        "f16": 2 * dim + 2 * padded,
        "q8": 2 * padded,
        "q4": 2 * (padded // 2 + 2 * scales),
        "q8,q4": padded + scales + padded // 2 + 2 * scales,
        "q4,q8": padded // 2 + 2 * scales + padded,
    }
    return _native.KV_BLOCK_SIZE * token[kind]


@pytest.fixture
def files(tmp_path):
    with open_tiny(tmp_path) as files:
        yield files


@pytest.mark.parametrize("quantization", ["none", "q8", "q4"])
def test_loading_allocates_what_was_planned(files, quantization):
    options = RuntimeOptions(threads=2, quantization=quantization, max_model_len=256, max_num_seqs=3)
    plan = plan_memory(files, options)
    info = CpuExecutor.load(files, options).info
    norms = (2 * 3 + 1) * files.config.hidden_size * 4
    assert info.weight_bytes == plan.weight_bytes + norms
    assert (info.kv_bytes, info.work_bytes, info.num_blocks) == (plan.kv_bytes, plan.work_bytes, plan.num_blocks)


@pytest.mark.parametrize("kind", ["f16", "q8", "q4", "q8,q4", "q4,q8"])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_blocks_are_as_large_as_their_types(kind, dim, tmp_path):
    with open_tiny(tmp_path, head_dim=dim) as files:
        options = RuntimeOptions(threads=2, max_model_len=256, max_num_seqs=3, kv_cache_dtype=kind)
        plan = plan_memory(files, options)
        executor = CpuExecutor.load(files, options)
    layers, heads = 3, 2
    assert plan.kv_bytes == plan.num_blocks * layers * heads * block_bytes(kind, dim)
    assert (executor.info.kv_bytes, executor.info.work_bytes) == (plan.kv_bytes, plan.work_bytes)
    assert executor.info.kv_cache_dtype == kind
    per_token = layers * heads * block_bytes(kind, dim) / _native.KV_BLOCK_SIZE
    assert executor.kv_bytes_read(100) == pytest.approx(100 * per_token)


@pytest.mark.parametrize(("dim", "times"), [(64, 2.0), (80, 1.8), (96, 2.0), (128, 2.0), (256, 2.0)])
def test_q8_holds_twice_the_tokens_of_f16(dim, times, tmp_path):
    """But for head sizes that are no multiple of 32: the last values are padded to that."""
    with open_tiny(tmp_path, head_dim=dim) as files:
        blocks = {
            kind: plan_memory(files, RuntimeOptions(threads=1, kv_cache_memory=2**28, kv_cache_dtype=kind)).num_blocks
            for kind in ("f16", "q8")
        }
    assert blocks["q8"] >= times * blocks["f16"]


@pytest.mark.parametrize(
    ("given", "in_use"),
    [("auto", "f16"), ("f16", "f16"), ("bf16", "bf16"), ("q8,q8", "q8"), ("q8, q4", "q8,q4"), ("auto,q8", "f16,q8")],
)
def test_type_of_the_cache_is_named_as_it_is_in_use(files, given, in_use):
    assert plan_memory(files, RuntimeOptions(threads=1, kv_cache_dtype=given)).kv_cache_dtype == in_use


def test_default_cache_holds_every_sequence_when_memory_is_plenty(files):
    plan = plan_memory(files, RuntimeOptions(threads=1, max_model_len=100, max_num_seqs=5), available=GIB)
    assert plan.num_blocks == 5 * -(-100 // plan.block_size)
    assert plan.kv_bytes == plan.num_blocks * BLOCK_BYTES
    assert plan.max_model_len == 100


def test_default_cache_takes_a_quarter_of_what_is_left(files):
    options = RuntimeOptions(threads=1, max_num_seqs=10**6)
    rest = plan_memory(files, options, available=GIB)
    spare = GIB - rest.weight_bytes - rest.work_bytes
    assert rest.kv_bytes <= spare / 4 < rest.kv_bytes + BLOCK_BYTES


def test_one_sequence_always_fits_or_is_refused(files):
    options = RuntimeOptions(threads=1, max_model_len=512)
    plan = plan_memory(files, options, available=GIB)
    tight = plan.weight_bytes + plan.work_bytes + 16 * BLOCK_BYTES
    assert plan_memory(files, options, available=tight).num_blocks == 16
    with pytest.raises(MemoryLimitError, match="--max-model-len"):
        plan_memory(files, options, available=tight - 1)


def test_refusal_holds_the_numbers_and_comes_before_loading(files, monkeypatch):
    monkeypatch.setattr("lpx.runtime.memory.available_bytes", lambda: 3 * 2**20)
    monkeypatch.setattr(files, "weights", lambda: pytest.fail("read a weight"))
    with pytest.raises(MemoryLimitError, match=r"weights .* MiB, KV cache .* MiB .*work buffers .* only 3\.0 MiB"):
        CpuExecutor.load(files, RuntimeOptions(threads=1))


def test_cache_of_a_given_size(files):
    plan = plan_memory(files, RuntimeOptions(threads=1, kv_cache_memory=10 * BLOCK_BYTES + 5), available=GIB)
    assert plan.num_blocks == 10
    assert plan.max_model_len == 10 * plan.block_size


def test_cache_too_small_for_the_context_asked_for_is_refused(files):
    options = RuntimeOptions(threads=1, kv_cache_memory=10 * BLOCK_BYTES, max_model_len=512)
    with pytest.raises(MemoryLimitError, match="512 tokens needs"):
        plan_memory(files, options, available=GIB)
    with pytest.raises(MemoryLimitError, match="32 tokens needs"):
        plan_memory(files, RuntimeOptions(threads=1, kv_cache_memory=100), available=GIB)


def test_hundreds_of_thousands_of_blocks_work(files):
    options = RuntimeOptions(threads=1, kv_cache_memory=300_000 * BLOCK_BYTES, max_num_seqs=10**6)
    plan = plan_memory(files, options, available=100 * GIB)
    assert plan.num_blocks == 300_000
    assert plan.max_model_len == 512


def test_quantization_of_quantized_weights_is_refused(files):
    assert quantize_bits("layers.0.q", "F32", "q4") == 4
    assert quantize_bits("head", "BF16", "q4") == 8
    assert quantize_bits("embedding", "F16", "q4") == 8
    assert quantize_bits("layers.0.q", "F16", "q8") == 8
    assert quantize_bits("layers.0.q", "Q4_1", "q8") == 0
    with pytest.raises(ConfigError, match="not known"):
        plan_memory(files, RuntimeOptions(threads=1, quantization="q3"), available=GIB)


def test_head_sizes_beyond_the_kernels_are_refused(tmp_path):
    with open_tiny(tmp_path, head_dim=520) as files, pytest.raises(UnsupportedModelError, match="head size 520"):
        plan_memory(files, RuntimeOptions(threads=1), available=GIB)


def test_unknown_instruction_set_is_refused_with_the_choices(files):
    with pytest.raises(ConfigError, match="portable"):
        CpuExecutor.load(files, RuntimeOptions(threads=1, isa="mmx"))


def test_memory_of_blocks_can_be_there_before_they_are_written(tmp_path):
    def resident():
        return psutil.Process().memory_info().rss

    with open_tiny(tmp_path) as files:
        options = RuntimeOptions(threads=1, kv_cache_memory=64 << 20)
        executor = CpuExecutor.load(files, options)
    count = (32 << 20) // BLOCK_BYTES
    before = resident()
    if not executor.populate_kv(1, count):
        assert tuple(map(int, platform.release().split("-")[0].split(".")[:2])) < (5, 14)
        return
    assert resident() - before > 28 << 20
    for first, blocks in ((-1, 1), (0, executor.info.num_blocks + 1), (executor.info.num_blocks, 1)):
        with pytest.raises(IndexError, match="outside of the KV cache"):
            executor.populate_kv(first, blocks)
    executor.close()
