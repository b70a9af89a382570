"""`lpx quantize` as people and scripts meet it."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_errors import one_line
from tests.quantize.conftest import sources

__all__ = ["sources"]  # a fixture


def test_tables_result_and_exit_codes(lpx, sources, tmp_path) -> None:
    target = tmp_path / "模型.gguf"
    made = lpx("quantize", str(sources.gguf), str(target), "--gate", "kl:0.9", "--windows", "1", COLUMNS="80")
    assert made.returncode == 0, made.stdout + made.stderr
    assert "Q4_K does not hold rows of 64" in made.stdout
    assert "calibrated on english, chinese, code" in made.stdout
    assert f"made {target}" in made.stdout
    assert made.stderr == ""
    again = lpx("quantize", str(sources.gguf), str(target))
    assert "is there already" in one_line(again, 2)
    strict = lpx("quantize", str(sources.folder), str(tmp_path / "b.gguf"), "--gate", "kl:0.00001", "--windows", "1")
    assert strict.returncode == 1, strict.stdout + strict.stderr
    assert "rejected" in strict.stdout
    assert not (tmp_path / "b.gguf").exists()
    assert (tmp_path / "b.gguf.rejected").exists()


def test_json_lists_every_tensor(lpx, sources, tmp_path) -> None:
    made = lpx("quantize", str(sources.gguf), str(tmp_path / "a.gguf"), "--scheme", "q6", "--no-check", "--json")
    found = json.loads(made.stdout)
    assert found["accepted"] is True
    assert found["divergence"] is None
    assert found["bytes"] == (tmp_path / "a.gguf").stat().st_size
    assert {tensor["type"] for tensor in found["tensors"]} == {"Q6_K", "Q8_0", "F32"}


@pytest.mark.parametrize(
    "options", [("--no-check", "--gate", "kl:1"), ("--no-calibration", "--calibration", "x.txt"), ("--scheme", "q3")]
)
def test_contradictions_are_one_line(lpx, sources, tmp_path, options) -> None:
    refused = lpx("quantize", str(sources.gguf), str(tmp_path / "a.gguf"), *options)
    one_line(refused, 2)
    assert not list(tmp_path.iterdir())
