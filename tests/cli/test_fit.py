"""`lpx fit`: a table of 80 columns, JSON, and the bandwidth that was measured last."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from lpx.bench.roofline import measure_roofline
from lpx.cli.app import app
from lpx.store import find_stored
from lpx.store.importing import import_model
from tests.reference.model_files import write_hf_folder, write_model_gguf
from tests.reference.tiny_models import make_tiny


@pytest.fixture
def fit(tmp_path):
    def call(*arguments, **environment):
        environment = {"LPX_LEDGER": str(tmp_path / "ledger.sqlite"), **environment}
        done = CliRunner().invoke(app, ["fit", *arguments], env=environment, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done

    return call


def test_the_table_is_80_columns_wide_and_says_what_fits(fit):
    done = fit("7B", "--gpu", "rtx 4060", COLUMNS="80")
    lines = done.stdout.splitlines()
    table = [line for line in lines if line.startswith(("f16", "q8", "q6", "q5", "q4", "weights"))]
    assert len(table) == 11
    assert all(len(line) <= 80 for line in table)
    assert "multiplies FP16, BF16, INT8, INT4, FP8; no FP4" in done.stdout
    assert "Does not fit for 4,096 tokens: f16 (at least" in done.stdout


def test_json_and_the_file_as_it_is(fit, smollm2_path):
    done = fit(str(smollm2_path), "--bandwidth", "36", "--json")
    report = json.loads(done.stdout)
    assert report["rows"][0]["precision"] == "file"
    assert report["rows"][0]["tokens_per_second"] == pytest.approx(373, rel=0.01)
    assert report["target"]["bandwidth_source"] == "given"


@pytest.fixture
def stored(tmp_path):
    """A model folder with one model, whose file has another name and calls itself something else."""
    file = tmp_path / "tiny-instruct-q4_1.gguf"
    write_model_gguf(file, *make_tiny("llama", seed=1))
    import_model(file, tmp_path / "models", name="千问-tiny")
    return tmp_path / "models"


@pytest.mark.parametrize("by", ["name", "path"])
def test_a_model_has_its_name_in_the_model_folder_and_its_file_is_said(fit, stored, by):
    path = find_stored("千问-tiny", stored).path
    named = ("千问-tiny" if by == "name" else str(path), "--models-dir", str(stored))
    first, second, *_ = fit(*named, COLUMNS="").stdout.splitlines()
    assert first.startswith("千问-tiny (llama): ")
    assert second == f"from {path} (it calls itself tiny llama)"
    model = json.loads(fit(*named, "--json").stdout)["model"]
    assert (model["name"], model["own_name"], model["path"]) == ("千问-tiny", "tiny llama", str(path))


def test_a_file_elsewhere_is_named_by_its_own_name(fit, stored, tmp_path):
    file = tmp_path / "tiny-instruct-q4_1.gguf"
    first, second, *_ = fit(str(file), "--models-dir", str(stored), COLUMNS="").stdout.splitlines()
    assert first.startswith("tiny-instruct-q4_1 (llama): ")
    assert second == f"from {file} (it calls itself tiny llama)"


def test_what_was_measured_is_remembered(fit, monkeypatch):
    def measure(**options):
        return measure_roofline(seconds=0.0, working_set_bytes=3 << 20)

    assert "--measure finds it out" in fit("7B").stdout
    monkeypatch.setattr("lpx.bench.roofline.measure_roofline", measure)
    assert "(measured now)" in fit("7B", "--measure").stdout
    assert "(run 1 of the ledger)" in fit("7B").stdout


def test_cards_are_listed(fit):
    done = fit("--gpus")
    assert "RTX 4060 Laptop" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert any(gpu["name"] == "H200" for gpu in json.loads(fit("--gpus", "--json").stdout))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("7Q",), "7B"),
        ((), "no model"),
        (("7B", "--gpu", "Voodoo 2"), "lpx fit --gpus"),
        (("7B", "--gpu", "T4", "--measure"), "--measure"),
        (("7B", "--max-model-len", "9999999"), "from 1 to"),
        (("7B", "--memory", "0"), "--memory must be at least 1"),
        (("7B", "--gpu", "T4", "--memory", "0"), "--memory must be at least 1"),
        (("7B", "--bandwidth", "nan"), "--bandwidth must be a number"),
        (("a" * 5000,), "cannot be looked for"),
    ],
)
def test_what_cannot_be_answered_ends_with_one_line(arguments, said):
    done = CliRunner().invoke(app, ["fit", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error[LPX-E")
    assert said in line


@pytest.mark.parametrize("bandwidth", ["inf", "1e308", "-inf", "0"])
def test_bandwidths_that_no_memory_has_are_refused(bandwidth):
    done = CliRunner().invoke(app, ["fit", "7B", "--bandwidth", bandwidth])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--bandwidth" in done.stderr


def test_names_of_others_do_not_move_the_cursor(fit, tmp_path):
    config, weights = make_tiny("llama", seed=1)
    folder = write_hf_folder(tmp_path / "evil\x1b[2Jmodel", config, weights)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    values = json.loads((folder / "config.json").read_text())
    values["quantization_config"] = {"quant_method": "\x1b]0;owned\x07"}
    (folder / "config.json").write_text(json.dumps(values))
    shown = fit(str(folder)).stdout
    assert "evil?[2Jmodel" in shown
    assert "?]0;owned?" in shown
    assert "\x1b" not in shown
