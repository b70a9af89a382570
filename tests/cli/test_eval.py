"""`lpx eval`: a table for people, JSON for machines, a page, a gate with exit codes, a run in the ledger."""

from __future__ import annotations

import json
import re
import sqlite3

import pytest
from typer.testing import CliRunner

from lpx.cli.app import app
from tests.cli.test_errors import one_line
from tests.quality.conftest import TinyFiles, tiny

__all__ = ["tiny"]  # a fixture

FAST = ("--checks", "distributions,weights", "--window", "64", "--windows", "2", "--max-model-len", "512")


@pytest.fixture
def evaluate(lpx, tmp_path):
    def call(*arguments, **variables):
        return lpx("eval", *arguments, LPX_LEDGER=str(tmp_path / "ledger.sqlite"), **variables)

    return call


def test_gate_passes_sound_q8_and_fails_scales_off_by_3_percent(evaluate, tiny: TinyFiles) -> None:
    against = ("--reference", str(tiny.unquantized), "--gate", "kl:0.01,weights", "--gate", "p99_kl:0.1")
    sound = evaluate(str(tiny.quantized("Q8_0")), *FAST, *against)
    assert sound.returncode == 0, sound.stdout + sound.stderr
    broken = evaluate(str(tiny.quantized("Q8_0", 1.03)), *FAST, *against)
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "+3.0% off in size" in broken.stdout
    assert re.search(r"^  failed +kl:0.01 ", broken.stdout, re.MULTILINE)
    assert broken.stderr == ""


def test_json_ledger_and_report_say_the_same(evaluate, tiny: TinyFiles, tmp_path) -> None:
    page = tmp_path / "报告.md"
    text = tmp_path / "文.txt"
    text.write_text("The sea is calm tonight. 今晚海上很平静。" * 8, encoding="utf-8")
    done = evaluate(
        *(str(tiny.unquantized), "--kv-cache-dtype", "q8", *FAST, "--text", str(text)),
        *("--gate", "kl:0.5,ppl:+50%", "--report", str(page), "--json"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    divergence = found["evaluation"]["divergence"]
    assert found["evaluation"]["reference"]["in_use"]["kv_cache_dtype"] == "f16"
    assert found["evaluation"]["subject"]["in_use"]["kv_cache_dtype"] == "q8"
    assert [verdict["outcome"] for verdict in found["gate"]] == ["passed", "passed"]
    assert list(divergence["by_text"]) == ["文.txt"]
    shown = page.read_text(encoding="utf-8")
    assert f"| mean KL, nats | {divergence['kl']:.5f} |" in shown
    assert "文.txt" in shown
    ledger = sqlite3.connect(tmp_path / "ledger.sqlite")
    ((number, kind, settings),) = ledger.execute("SELECT id, kind, settings FROM runs")
    assert (number, kind) == (found["run_id"], "eval")
    assert ("kl_nats_mean", divergence["kl"]) in ledger.execute("SELECT name, value FROM figures").fetchall()
    ledger.close()

    from lpx.bench.workloads import measure_again

    again = measure_again("eval", json.loads(settings))
    assert again.figures["kl_nats_mean"] == divergence["kl"]


def test_weights_that_are_the_references_have_a_line(evaluate, tiny: TinyFiles, tmp_path) -> None:
    page = tmp_path / "quality.md"
    subject = (str(tiny.unquantized), "--kv-cache-dtype", "q8")
    done = evaluate(*subject, *FAST, "--checks", "weights", "--gate", "weights", "--report", str(page))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nweights: both run the same weights; only the KV types differ\n" in done.stdout
    assert "  passed   weights  both run the same weights" in done.stdout
    assert "## Weights\n\nBoth run the same weights" in page.read_text()
    assert "weights:" not in evaluate(*subject, *FAST, "--checks", "distributions").stdout


def test_without_reference_there_is_perplexity(evaluate, tiny: TinyFiles) -> None:
    done = evaluate(str(tiny.unquantized), *FAST)
    assert done.returncode == 0, done.stderr
    assert "perplexity" in done.stdout
    assert "reference" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 110


def test_review_and_stability_need_no_template(evaluate, base_model, tmp_path) -> None:
    items = tmp_path / "set.jsonl"
    rows = [
        {
            "id": f"a-{n}",
            "kind": kind,
            "messages": [{"role": "user", "content": "你好"}],
            "max_tokens": 4,
            "check": check,
        }
        for n, (kind, check) in enumerate([("能过", {"most_characters": 1000}), ("不能过", {"contains": ["§§§"]})])
    ]
    items.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    done = evaluate(
        *(str(base_model), "--checks", "review", "--review-set", str(items), "--max-model-len", "512"),
        *("--reference", "kv_cache_dtype=bf16", "--gate", "review:-5%", "--gate", "review:100%"),
    )
    assert done.returncode == 1, done.stderr
    assert "1/2" in done.stdout
    assert "能过" in done.stdout
    assert "passed   review:-5% " in done.stdout


def test_mistakes_are_one_line(evaluate, tiny: TinyFiles, tmp_path) -> None:
    model = str(tiny.unquantized)
    for arguments, said in (
        ((model, "--gate", "kl:0.01"), "--reference"),
        ((model, "--checks", "colour"), "colour"),
        ((model, "--text", str(tmp_path / "absent")), "absent"),
        ((model, "--report", str(tmp_path / "no" / "r.md")), "make it first"),
        ((model, *FAST, "--window", "100000"), "100000"),
    ):
        assert said in one_line(evaluate(*arguments), 2), arguments
    assert "no-such" in one_line(evaluate(model, "--reference", str(tmp_path / "no-such.gguf")), 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("/no/模型.gguf",), "/no/模型.gguf"),
        (("--window", "0"), "--window must be from 8"),
        (("--windows", "1" + "0" * 23), "--windows must be from 1"),
        (("--windows", "0"), "--windows must be from 1"),
        (("--runs", "1"), "--runs must be from 2"),
        (("--text", "/no/text"), "/no/text"),
        (("--report", "/"), "is a folder"),
    ],
)
def test_with_a_gate_no_error_is_taken_for_a_verdict(base_model, arguments, said) -> None:
    model = () if arguments[0].startswith("/") else (str(base_model),)
    bound = ("--gate", "ppl:15", "--checks", "distributions")
    done = CliRunner().invoke(app, ["eval", *model, *arguments, *bound, "--no-ledger"])
    assert done.exit_code == 2, done.output
    assert said in done.stderr


def test_with_a_gate_what_nobody_foresaw_is_no_verdict(base_model, monkeypatch) -> None:
    def broken(*arguments):
        raise ZeroDivisionError("nobody foresaw this")

    monkeypatch.setattr("lpx.quality.evaluation.evaluate", broken)
    done = CliRunner().invoke(app, ["eval", str(base_model), "--gate", "ppl:15", "--no-ledger"])
    assert done.exit_code == 2
    assert "ZeroDivisionError: nobody foresaw this" in done.stderr
