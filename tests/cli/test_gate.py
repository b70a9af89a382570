"""`lpx bench gate`, `baseline`, `compare` and `naive` as processes, on a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timezone

import pytest
from typer.testing import CliRunner

from lpx.bench.gate.pieces import DECODE, Piece, samples_of
from lpx.bench.ledger import Ledger
from lpx.bench.measurement import Measurement, Subject
from lpx.bench.weather import Look
from lpx.cli.app import app

GATE = ("bench", "gate", "--most-others", "100", "--seconds", "1")


@pytest.fixture
def engine(base_model):
    return {"model": str(base_model), "threads": 1, "max_model_len": 64, "kv_cache_memory": 1 << 20}


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "台账.sqlite"


def in_process(*arguments):
    """The command line without a process of its own, for what ends before anything is measured."""
    return CliRunner().invoke(app, arguments)


def record_baseline(ledger, engine, tokens_per_second, others=0.0):
    """A baseline of this speed, as if it had been measured on this machine."""
    pieces = [
        Piece(DECODE, session, {"decode_tokens_per_second": tokens_per_second}, Look(20e9, 200e9), others)
        for session in range(6)
    ]
    opened = Ledger(ledger)
    run_id = opened.record(
        Measurement(
            kind="latency",
            subject=Subject(model="base-model0", engine="lpx", device="cpu", threads=1),
            settings={"engine": engine, "input_len": 8, "output_len": 16, "batch_size": 1, "repeats": 5},
            figures={"decode_tokens_per_second": tokens_per_second},
            samples=samples_of(pieces),
            started=datetime.now(timezone.utc),
            seconds=1.0,
        )
    )
    opened.set_baseline("main", run_id)
    return run_id


def test_a_build_that_is_a_hundred_times_slower_fails(lpx, engine, ledger, tmp_path):
    record_baseline(ledger, engine, 1e9)
    report = tmp_path / "gate.md"
    done = lpx(
        *GATE, "--baseline", "main", "--ledger", str(ledger), "--allow-different", "model", "--json", "-o", str(report)
    )
    assert done.returncode == 1, done.stderr
    values = json.loads(done.stdout)
    assert values["outcome"] == "failed"
    assert values["conditions"][0]["change"] < -0.9
    assert "failed: slower than allowed" in report.read_text()
    run = Ledger(ledger).get(values["run"])  # what was measured now is kept, and could be a baseline
    assert run.measurement.samples["decode_session"]
    assert run.tags == ("gate:failed",)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--baseline NAME, or --against SIDE"),
        (("--baseline", "other"), "no baseline 'other'"),
        (("--baseline", "main", "--fail-on", "decode:5"), "no condition"),
        (("--baseline", "main", "--fail-on", "p99_ttft:+5%"), "it has decode"),
        (("--baseline", "main", "--set", "thread=1"), "'thread' is no option"),
        (("--baseline", "main", "--set", "threads"), "OPTION=VALUE"),
        (("--baseline", "main", "--input-len", "8"), "go with --against"),
        (("--against", "lpx", "--set", "threads=1"), "without one"),
        (("--against", "nonsense"), "no side of a comparison"),
        (("--against", "lpx:python=/no/python", "lpx:model=/no/model.gguf"), "/no/"),
        (("--baseline", "main", "--output", "/no/folder/file.md"), "no folder"),
        (("--baseline", "main", "--output", "/"), "is a folder"),
    ],
)
def test_whatever_keeps_it_from_judging_ends_with_2(engine, ledger, arguments, said):
    record_baseline(ledger, engine, 100.0)
    done = in_process(*GATE, "--ledger", str(ledger), *arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_model_that_is_gone_ends_with_2(engine, ledger):
    record_baseline(ledger, {**engine, "model": "/gone/模型.gguf"}, 100.0)
    done = in_process(*GATE, "--baseline", "main", "--ledger", str(ledger))
    assert done.exit_code == 2
    assert "/gone/模型.gguf" in done.stderr


def test_show_counts_the_sessions_of_a_baseline_instead_of_listing_their_numbers(engine, ledger):
    record_baseline(ledger, engine, 100.0)
    shown = in_process("bench", "show", "main", "--ledger", str(ledger)).stdout
    assert ["sessions", "6"] in [line.split() for line in shown.splitlines()]
    assert "decode_others_share" in shown
    assert "decode_session" not in shown


@pytest.mark.parametrize("others", [0.05, 0.48])
def test_a_baseline_says_that_other_programs_were_busy(engine, ledger, others):
    record_baseline(ledger, engine, 100.0, others)
    shown = in_process("bench", "baseline", "show", "main", "--ledger", str(ledger)).stdout
    assert ("other programs used 48% of the processors" in shown) == (others == 0.48)
    named = in_process("bench", "baseline", "set", "again", "main", "--ledger", str(ledger)).stdout
    assert named.endswith("lpx bench gate --baseline again --fail-on decode:-5%\n")


@pytest.fixture
def judged(ledger):
    """The gate of a process of its own whose outcome is made up: how it ends, and what it said on stderr."""

    def call(outcome, *arguments, stdout=subprocess.DEVNULL, **variables):
        script = f"""
from types import SimpleNamespace
import lpx.cli.app, lpx.cli.bench.gate, sys
import lpx.bench.gate.report as report
from lpx.bench.gate.trial import Outcome
from tests.bench.ledger.example_runs import a_measurement
command = sys.modules["lpx.cli.bench.gate"]
command._against_baseline = lambda *a: SimpleNamespace(outcome=Outcome.{outcome}, measurement=a_measurement())
report.gate_markdown = lambda found: "verdict" * 5000
from lpx.cli import main
main()
"""
        done = subprocess.run(
            [sys.executable, "-c", script, *GATE, "--ledger", str(ledger), *arguments],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stderr

    return call


@pytest.mark.parametrize(("outcome", "code"), [("PASSED", 2), ("FAILED", 1), ("UNDECIDED", 2)])
def test_an_output_that_cannot_be_written_is_never_taken_for_slower(judged, outcome, code):
    ended, said = judged(outcome, "--output", "/dev/full")
    assert ended == code
    assert "--output /dev/full cannot be written" in said
    assert "Traceback" not in said
    with open("/dev/full", "w") as full:
        ended, said = judged(outcome, stdout=full)
    assert ended == code
    assert "output cannot be written" in said


@pytest.mark.parametrize(("outcome", "code"), [("PASSED", 3), ("FAILED", 1), ("UNDECIDED", 2)])
def test_a_run_that_is_not_kept_ends_with_3_unless_the_verdict_says_more(judged, ledger, outcome, code):
    ledger.write_text("no database")
    ended, said = judged(outcome)
    assert ended == code
    assert "this run is not in the ledger" in said


def test_baselines_are_set_listed_shown_and_removed(lpx, base_model, ledger):
    made = lpx(
        *("bench", "baseline", "set", "主线", "-m", str(base_model), "--input-len", "8", "--output-len", "16"),
        *("--seconds", "1", "--most-others", "100", "--ledger", str(ledger), "--kv-cache-memory", "1M"),
        LPX_MAX_MODEL_LEN="64",
    )
    assert made.returncode == 0, made.stderr
    assert "lpx bench gate --baseline 主线 --fail-on decode:-5% --most-others 100\n" in made.stdout
    listed = json.loads(in_process("bench", "baseline", "list", "--json", "--ledger", str(ledger)).stdout)
    assert [entry["name"] for entry in listed] == ["主线"]
    shown = in_process("bench", "baseline", "show", "主线", "--ledger", str(ledger)).stdout
    assert "4 sessions" in shown
    assert "decode" in shown
    again = in_process("bench", "baseline", "set", "zwei", "last", "--ledger", str(ledger))
    assert again.exit_code == 0, again.stderr  # it was measured for a gate already
    assert in_process("bench", "baseline", "rm", "主线", "--ledger", str(ledger)).exit_code == 0
    assert in_process("bench", "baseline", "rm", "主线", "--ledger", str(ledger)).exit_code != 0
    assert Ledger(ledger).baselines() == {"zwei": 1}


def test_compare_shows_ratios_and_that_texts_agree(lpx, base_model, ledger, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text('你好，世界\n\n{"prompt": "one two"}\n', encoding="utf-8")
    side = f"lpx:model={base_model},max_model_len=128,kv_cache_memory=1M"
    done = lpx(
        *("bench", "compare", f"{side},threads=1", f"{side},threads=2,name=两线程", "--rounds", "2", "-n", "8"),
        *("--prompts", str(prompts), "--ignore-eos", "--ledger", str(ledger), "--json"),
    )
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)["sides"]
    assert (first["name"], second["name"]) == ("A", "两线程")
    assert first["subject"]["threads"] == 1
    assert second["subject"]["threads"] == 2
    assert first["ratios"] == {}
    assert 0 < second["ratios"]["ttft_ms"]["low"] <= second["ratios"]["ttft_ms"]["estimate"]
    assert second["texts"] == {"same": 4, "answers": 4, "differences": []}  # threads change no text
    assert [reply["tokens"] for reply in first["replies"]] == [8] * 4
    kinds = [run.measurement.kind for run in Ledger(ledger).find()]
    assert kinds == ["compare", "compare"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lpx",), "two sides or more"),
        (("lpx", "lpx", "--rounds", "0"), "--rounds"),
        (("lpx", "lpx", "--prompts", "/no/file"), "/no/file"),
        (("http://127.0.0.1:9", "lpx:model=/no/model.gguf"), "no server answers"),
    ],
)
def test_compare_refuses_with_a_way_out(arguments, said):
    done = in_process("bench", "compare", *arguments, "--no-ledger")
    assert done.exit_code in (1, 2)
    assert said in done.stderr


def test_naive_says_what_is_missing(lpx, base_model):
    done = lpx(
        *("bench", "naive", "-m", str(base_model), "--input-len", "8", "--output-len", "4", "--no-ledger"),
        LPX_MAX_MODEL_LEN="64",
    )
    if done.returncode == 0:
        pytest.skip("torch and transformers are installed")
    assert done.returncode == 2
    assert "pip install 'lpx[naive]'" in done.stderr
