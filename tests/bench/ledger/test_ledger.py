"""What is recorded comes back as it was, and is found by what it is of."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import datetime, timedelta, timezone

import pytest

from lpx.bench.ledger import Ledger, LedgerError, RunFilter, UnknownRunError, default_ledger_path
from lpx.errors import ConfigError
from tests.bench.ledger.example_runs import ENVIRONMENT, NEWER_DRIVER, NOON, a_measurement


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "账本?#%.sqlite")  # characters that mean something in a URI


def record(ledger, *arguments, tags=(), note="", environment=ENVIRONMENT, **changes):
    return ledger.record(a_measurement(*arguments, **changes), environment=environment, tags=tags, note=note)


def test_a_run_comes_back_as_it_was(ledger):
    measured = a_measurement()
    run_id = ledger.record(measured, environment=ENVIRONMENT, tags=["旧驱动", "nightly"], note="before 570")
    run = ledger.get(run_id)
    assert run.measurement == measured
    assert list(run.measurement.figures) == list(measured.figures)  # in the order they were given
    assert run.environment == ENVIRONMENT
    assert (run.tags, run.note) == (("nightly", "旧驱动"), "before 570")


def test_figures_that_are_no_numbers_do_not_lose_the_run(ledger):
    run_id = record(
        ledger, figures={"a": math.nan, "b": math.inf, "c": 1}, samples={"s": (1.0, math.nan, -math.inf)}, errors={}
    )
    found = ledger.get(run_id).measurement
    assert math.isnan(found.figures["a"])
    assert found.figures["b"] == math.inf
    assert math.isnan(found.samples["s"][1])
    assert (found.samples["s"][0], found.samples["s"][2]) == (1.0, -math.inf)


def test_what_is_not_known_stays_unknown(ledger):
    unknown = {"quantization": None, "device": None, "isa": None, "threads": None, "engine_version": None}
    measured = a_measurement(subject=unknown, batch_size=None, input_len=None, output_len=None, samples={}, errors={})
    assert ledger.get(ledger.record(measured, environment=ENVIRONMENT)).measurement == measured


def test_starts_are_kept_in_utc(ledger):
    shanghai = timezone(timedelta(hours=8))
    run_id = record(ledger, started=datetime(2026, 1, 31, 20, 0, tzinfo=shanghai))
    assert ledger.get(run_id).measurement.started == NOON
    assert ledger.get(run_id).measurement.started.tzinfo == timezone.utc


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"a": object()}},
        {"settings": {"a": json.loads("[" * 500 + "]" * 500)}},
        {"batch_size": 1 << 70},
        {"figures": {"a": "abc"}},
        {"figures": {"a": 10**400}},
        {"samples": {"a": ("abc",)}},
        {"errors": {"a": None}},
        {"started": None},
        {"subject": {"threads": 1 << 70}},
    ],
)
def test_values_that_cannot_be_kept_are_refused_and_leave_nothing(ledger, changes):
    with pytest.raises(LedgerError, match="latency cannot be kept"):
        record(ledger, **changes)
    assert ledger.find() == []


@pytest.mark.parametrize("name", ["last", " last ", "12", "007", "9" * 30])
def test_a_baseline_is_not_called_what_means_another_run(ledger, name):
    run_id = record(ledger)
    with pytest.raises(ConfigError, match="cannot be called"):
        ledger.set_baseline(name, run_id)
    ledger.set_baseline(f"{name.strip()}a", run_id)
    assert ledger.named(f"{name.strip()}a").id == run_id


def test_names_of_files_that_are_no_text_do_not_lose_the_run(ledger):
    name = b"\xffmodel.gguf".decode("utf-8", "surrogateescape")
    run_id = record(ledger, name, settings={"model": name, "中": "文"}, errors={name: 1}, note=name)
    found = ledger.get(run_id).measurement
    assert (found.subject.model, found.errors) == ("?model.gguf", {"?model.gguf": 1})
    assert found.settings == {"model": name, "中": "文"}  # the file can still be found
    assert [run.id for run in ledger.find(RunFilter(model=name))] == [run_id]
    ledger.annotate(run_id, note=name)


def test_equal_environments_are_kept_once(ledger):
    for environment in (ENVIRONMENT, NEWER_DRIVER, ENVIRONMENT):
        record(ledger, environment=environment)
    runs = ledger.find()
    assert [run.environment for run in runs] == [ENVIRONMENT, NEWER_DRIVER, ENVIRONMENT]
    assert runs[0].environment_sha256 == runs[2].environment_sha256 != runs[1].environment_sha256


def test_runs_come_by_their_start_and_last_keeps_the_newest(ledger):
    for minutes in (30, 10, 20):
        record(ledger, minutes=minutes)
    starts = [run.measurement.started for run in ledger.find()]
    assert starts == sorted(starts)
    assert [run.measurement.started for run in ledger.find(RunFilter(last=2))] == starts[1:]
    assert ledger.find(RunFilter(last=0)) == []


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"model": "QWEN"}, {"a"}),
        ({"model": "千问"}, {"b"}),
        ({"model": "%"}, set()),
        ({"kind": "serve"}, {"b"}),
        ({"engine": "vllm"}, {"b"}),
        ({"device": "h100"}, {"b"}),
        ({"quantization": "q4_k"}, {"a"}),
        ({"batch_size": 16}, {"b"}),
        ({"tag": "nightly"}, {"a"}),
        ({"since": NOON + timedelta(minutes=1)}, {"b"}),
        ({"until": NOON + timedelta(minutes=1)}, {"a"}),
        ({"environment_sha256": NEWER_DRIVER.sha256}, {"b"}),
        ({"kind": "serve", "tag": "nightly"}, set()),
        ({}, {"a", "b"}),
    ],
)
def test_filters(ledger, where, expected):
    record(ledger, "Qwen2.5", tags=["nightly"], note="a")
    record(
        ledger,
        "千问",
        minutes=1,
        kind="serve",
        subject={"engine": "vllm", "device": "NVIDIA H100", "quantization": "fp8"},
        batch_size=16,
        environment=NEWER_DRIVER,
        note="b",
    )
    assert {run.note for run in ledger.find(RunFilter(**where))} == expected


def test_many_runs_are_found(ledger):
    for minutes in range(3):
        record(ledger, minutes=minutes)
    from lpx.bench.ledger import rows

    ids = [run.id for run in ledger.find()]
    before, rows._MOST_VARIABLES = rows._MOST_VARIABLES, 2  # SQLite takes so many values in a statement
    try:
        assert [run.id for run in ledger.find()] == ids
    finally:
        rows._MOST_VARIABLES = before


def test_lists_come_without_samples_unless_asked(ledger):
    record(ledger)
    assert ledger.find()[0].measurement.samples == {}
    assert ledger.find(with_samples=True)[0].measurement.samples == {"ttft_ms": (12.5, 20.25, 0.1)}


def test_an_absent_ledger_holds_nothing_and_is_not_made_by_looking(ledger):
    assert ledger.find() == []
    assert ledger.baselines() == {}
    with pytest.raises(UnknownRunError, match="no run 1"):
        ledger.get(1)
    with pytest.raises(UnknownRunError, match="no run yet"):
        ledger.newest()
    assert not ledger.path.exists()


@pytest.mark.parametrize("run_id", [0, -1, 2, 2**63, 10**30])
def test_unknown_runs_are_named(ledger, run_id):
    record(ledger)
    for call in (ledger.get, lambda one: ledger.remove([one]), ledger.annotate, lambda n: ledger.set_baseline("b", n)):
        with pytest.raises(UnknownRunError, match=str(run_id)):
            call(run_id)


def test_numbers_of_removed_runs_are_not_used_again(ledger):
    first, second = record(ledger), record(ledger)
    ledger.remove([second])
    assert record(ledger) > second
    assert [run.id for run in ledger.find()] == [first, second + 1]


def test_removing_is_all_or_nothing(ledger):
    first, second = record(ledger), record(ledger)
    with pytest.raises(UnknownRunError):
        ledger.remove([first, 99])
    ledger.set_baseline("release", second)
    with pytest.raises(LedgerError, match="release"):
        ledger.remove([first, second])
    assert len(ledger.find()) == 2
    ledger.remove_baseline("release")
    ledger.remove([first, second, second])
    assert ledger.find() == []


def test_baselines_are_names_of_runs(ledger):
    first, second = record(ledger), record(ledger)
    ledger.set_baseline("发布 1.0", first)
    ledger.set_baseline("nightly", first)
    ledger.set_baseline("nightly", second)
    assert ledger.baselines() == {"nightly": second, "发布 1.0": first}
    assert ledger.baseline("nightly") == second
    with pytest.raises(UnknownRunError, match="nightly, 发布"):
        ledger.baseline("nightli")


def test_runs_are_named_by_number_baseline_or_last(ledger):
    first, second = record(ledger, minutes=10), record(ledger)
    ledger.set_baseline("nightly", first)
    assert ledger.named("last").id == second  # recorded last, though it began earlier
    assert ledger.named(f" {first} ").id == ledger.named("nightly").id == first
    for text in ("", "²", "٣", "1e3", "9" * 30):
        with pytest.raises(UnknownRunError):
            ledger.named(text)


def test_notes_and_tags_change(ledger):
    run_id = record(ledger, tags=["a"], note="first")
    ledger.annotate(run_id, add=["b", "b"], drop=["a"])
    assert (ledger.get(run_id).tags, ledger.get(run_id).note) == (("b",), "first")
    ledger.annotate(run_id, note="")
    assert ledger.get(run_id).note == ""


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "\x1b[31m", "x" * 101])
def test_names_are_printable_and_short(ledger, name):
    run_id = record(ledger)
    with pytest.raises(ConfigError, match="printable"):
        ledger.annotate(run_id, add=[name])
    with pytest.raises(ConfigError, match="printable"):
        ledger.set_baseline(name, run_id)


def test_the_default_place_follows_the_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("LPX_LEDGER", str(tmp_path / "own.sqlite"))
    assert default_ledger_path() == Ledger().path == tmp_path / "own.sqlite"
    monkeypatch.setenv("LPX_LEDGER", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_ledger_path() == tmp_path / "lpx/ledger.sqlite"


def test_fractional_lengths_are_kept(ledger):
    measured = dataclasses.replace(a_measurement(), input_len=511.5)
    assert ledger.get(ledger.record(measured, environment=ENVIRONMENT)).measurement.input_len == 511.5
