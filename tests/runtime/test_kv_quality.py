"""What is said at start-up about a cache that holds 4-bit keys or values."""

import json
import logging

import pytest

from lpx.model.files import open_model
from lpx.options import parse_kv_cache_dtype
from lpx.runtime.cpu.executor import CpuExecutor
from lpx.runtime.kv_quality import describe_kv_loss, read_table
from lpx.runtime.options import RuntimeOptions
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny


@pytest.fixture
def files(tmp_path):
    config, weights = make_tiny("llama", 1)
    with open_model(write_hf_folder(tmp_path / "model", config, weights)) as files:
        yield files


def row(**changes):
    return {
        "model": "tiny.gguf",
        "architecture": "llama",
        "num_layers": 3,
        "hidden_size": 48,
        "kv_cache_dtype": "q8,q4",
        "kl": 0.0123,
        "top1": 0.95,
        **changes,
    }


def test_figures_are_those_of_the_model_and_the_types(files, tmp_path):
    table = tmp_path / "table.json"
    others = [row(num_layers=4, kl=1), row(hidden_size=64, kl=2), row(architecture="qwen2", kl=3)]
    table.write_text(json.dumps([*others, row(kv_cache_dtype="q4", kl=4), row()]))
    said = describe_kv_loss(files.config, "q8,q4", table)
    assert "tiny.gguf" in said
    assert "0.0123" in said
    assert "95.0%" in said
    assert "not measured" in describe_kv_loss(files.config, "q4,q8", table)


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8", "q8,f16"])
def test_other_types_need_no_words(files, kind):
    assert describe_kv_loss(files.config, kind) is None


@pytest.mark.parametrize(("kind", "warned"), [("q4", True), ("q8,q4", True), ("q8", False)])
def test_loading_warns_of_4_bits(files, kind, warned, caplog):
    with caplog.at_level(logging.WARNING):
        CpuExecutor.load(
            files, RuntimeOptions(threads=1, max_model_len=64, max_num_seqs=1, kv_cache_dtype=kind)
        ).close()
    said = [record.getMessage() for record in caplog.records if "loses quality" in record.getMessage()]
    assert len(said) == (1 if warned else 0)


def test_table_in_the_package_holds_figures_that_make_sense():
    rows = read_table()
    assert {row.kv_cache_dtype for row in rows} >= {"q4", "q8,q4"}
    for row in rows:
        assert "q4" in parse_kv_cache_dtype(row.kv_cache_dtype)
        assert 0 < row.kl < 20
        assert 0 < row.top1 < 1
