"""Every table that measuring commands print fits a terminal of 80 columns, with long and with Chinese names."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timezone
from pathlib import Path

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from lpx.bench.gate.pieces import DECODE, Piece, samples_of
from lpx.bench.headline import BAD_FIT
from lpx.bench.ledger import Ledger
from lpx.bench.tune import Goal, Outcome, Step
from lpx.bench.weather import Look
from lpx.cli.app import app
from lpx.cli.tables import print_table, wrapped
from lpx.cli.tune import _print_outcome
from tests.bench.ledger.example_runs import ENVIRONMENT, NEWER_DRIVER, a_measurement
from tests.reference.model_files import write_model_gguf
from tests.reference.tiny_models import make_tiny

CHINESE = "千问二点五代码模型零点五亿参数指令微调量化版本四比特混合精度"
LONG = "a-model-with-a-name-that-is-much-longer-than-any-terminal-is-wide-" * 2
FIGURES = {"decode_tokens_per_second": 12345.6, "ttft_ms_median": 12345.6, "prefill_tokens_per_second": 98765.4}


@pytest.fixture
def ledger(tmp_path):
    file = tmp_path / "ledger.sqlite"
    ledger = Ledger(file)
    for kind, name, engine, figures in (
        ("latency", CHINESE, "lpx", FIGURES),
        ("serve", LONG, "llama-cpp-python", FIGURES),
        ("roofline", "", "lpx", {"read_bytes_per_second": 123e9}),
        ("eval", CHINESE, "lpx", {"perplexity": 12.3456, "kl_nats_mean": 0.01}),
        ("compare", LONG, "lpx", {"decode_ratio": 0.987}),
        ("decode", CHINESE, "unknown", {**FIGURES, BAD_FIT: 1.0}),
        ("tune", LONG, "lpx", FIGURES),
        ("other", "x", "lpx", {"a_figure_that_nobody_knows_whose_name_is_very_long": 1.0}),
    ):
        measured = a_measurement(
            name, kind=kind, subject={"engine": engine}, figures=figures, batch_size=1024, input_len=131072
        )
        ledger.record(
            dataclasses.replace(measured, started=datetime.now(timezone.utc)),
            environment=ENVIRONMENT if kind != "tune" else NEWER_DRIVER,
            tags=[f"标签-{kind}-{number}" for number in range(5)],
        )
    pieces = [
        Piece(DECODE, session, {"decode_tokens_per_second": 100.0 + session}, Look(20e9, 200e9), 0.0)
        for session in range(6)
    ]
    run_id = ledger.record(a_measurement(LONG, samples=samples_of(pieces), figures=FIGURES), environment=ENVIRONMENT)
    ledger.set_baseline(f"基线-{CHINESE}"[:60], run_id)
    ledger.set_baseline("main", run_id)
    return file


@pytest.fixture
def folder(tmp_path):
    config, weights = make_tiny("llama", seed=1)
    folder = tmp_path / "models"
    folder.mkdir()
    for name in (CHINESE[:40], LONG[:90]):
        write_model_gguf(folder / f"{name}.gguf", config, weights)
    return folder


def run(*arguments, columns="80"):
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": columns})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.stdout


def too_wide(shown, columns=80):
    return [line for line in shown.splitlines() if cell_len(line) > columns]


def test_tables_of_the_ledger_fit(ledger):
    where = ("--ledger", str(ledger))
    for command in (
        ("history",),
        ("history", "--figure", "decode_tokens_per_second", "--figure", "ttft_ms_median"),
        ("show", "1"),
        ("show", "last"),
        ("baseline", "list"),
        ("baseline", "show", "main"),
    ):
        shown = run("bench", *command, *where)
        assert len(shown.splitlines()) >= 3, shown
        assert too_wide(shown) == []


def test_history_says_what_each_kind_is_about(ledger):
    shown = run("bench", "history", "--ledger", str(ledger), columns="400")
    for kind, result in (
        ("latency", "12345.6 tok/s"),
        ("roofline", "123.0 GB/s"),
        ("eval", "12.346 ppl"),
        ("compare", "×0.987 decode"),
        ("decode", "bad fit"),
    ):
        [line] = [line for line in shown.splitlines() if line.split()[3] == kind][:1]
        assert result in line
    assert "SPEED" not in shown


def test_tables_of_models_fit(folder):
    where = ("--models-dir", str(folder))
    shown = run("models", "list", *where)
    table, _, rest = shown.partition("\n\n")
    assert "千问二点五" in table
    assert too_wide(table) == []
    assert rest.startswith("Model folder: ")  # a path that people copy is not broken
    for name in (CHINESE[:40], LONG[:90]):
        shown = run("models", "show", name, *where)
        assert too_wide(shown) == []


def test_tables_of_fit_and_doctor_fit(folder):
    for command in (
        ("fit", str(folder / f"{CHINESE[:40]}.gguf"), "--bandwidth", "123456"),
        ("fit", "7B", "--gpu", "RTX 4060", "--max-model-len", "32768"),
        ("fit", "--gpus"),
        ("doctor",),
        ("doctor", "--verbose"),
    ):
        shown = run(*command)
        assert len(shown.splitlines()) >= 3, shown
        assert too_wide(shown) == []


def test_the_table_of_a_tuning_fits_and_shows_values_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    steps = (
        Step("max_num_batched_tokens", 1024, "not kept", "no clear difference", 0.973, 0.92, 1.03, 5),
        Step("kv_cache_dtype", None, "not tried", "changes answers: --allow-lossy tries it"),
        Step(
            "all together", {}, "kept", "against the start: not decided; a longer --duration tells more", 1.4, 0.8, 2.6
        ),
    )
    outcome = Outcome({}, steps, None, None, True, False, 0.0, 0.0)
    _print_outcome(outcome, Goal("latency"), Path("lpx.toml"))
    shown = capsys.readouterr().out
    assert too_wide(shown) == []
    assert "1024" in shown
    assert "…" not in shown


def test_help_speaks_of_one_name_for_a_duration_and_old_names_work(ledger):
    for command in (("tune",), ("bench", "gate"), ("bench", "baseline", "set"), ("bench", "serve")):
        shown = run(*command, "--help")
        assert "--duration" in shown
        assert "--seconds" not in shown
        assert "--budget-s" not in shown
    where = ("--ledger", str(ledger), "--no-ledger")
    for name in ("--duration", "--seconds"):
        done = CliRunner().invoke(app, ["bench", "gate", name, "0.5", *where])
        assert "0.5 is not in the range" in done.stderr


@pytest.mark.parametrize("columns", [20, 40, 79, 80, 200])
def test_a_table_fits_whatever_it_holds(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [(CHINESE, "1,234,567.8 tokens/s", LONG, "标签 " * 30), ("x", "1", "", "")]
    print_table(
        ("MODEL", "two\nlines", "WHY", "TAGS"),
        rows,
        right=("two\nlines",),
        cut=("MODEL",),
        folded=("WHY",),
        below=("TAGS",),
    )
    shown = capsys.readouterr().out
    assert too_wide(shown, columns) == []
    assert "1,234,567.8" in shown  # numbers are never shortened
    assert "".join(shown.split()).count("标签") == 30


def test_a_table_is_as_wide_as_it_needs_where_nobody_says(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(("A", "B"), [(LONG, "x")], folded=("A",))
    assert capsys.readouterr().out == f"A{' ' * (len(LONG) + 1)}B\n{LONG}  x\n"


def test_wrapping_loses_nothing_and_breaks_where_people_do():
    assert wrapped("one two three", 8) == ["one two", "three"]
    assert wrapped("你好世界 ok", 5) == ["你好", "世界", "ok"]
    assert wrapped("abcdefgh", 3) == ["abc", "def", "gh"]
    assert wrapped("a: bcdefgh ij", 6, "  ") == ["a: bcd", "  efgh", "  ij"]  # no word gets a space
    assert wrapped("名字 很长的文字", 6, "  ") == ["名字", "  很长", "  的文", "  字"]
    assert wrapped("  indented text", 11) == ["  indented", "text"]
    assert wrapped("", 5) == [""]
    assert wrapped("abc def", 3, " " * 9) == ["abc", "def"]  # no room for the indent


@pytest.mark.parametrize("columns", [20, 60, 80, 120])
def test_columns_that_are_not_there_go_nowhere(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(("NAME", "ENGINE"), [(LONG, LONG)], below=("ENGINE", "TAGS"))
    assert "ENGINE" in capsys.readouterr().out.upper()
