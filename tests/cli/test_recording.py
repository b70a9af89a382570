"""The one way in which commands record: never in the way of the result, and never silent about a failure."""

from __future__ import annotations

import hashlib

import pytest

from lpx.bench.ledger import Ledger
from lpx.cli import late_failures
from lpx.cli.bench.recording import LedgerOptions, print_run, record
from lpx.errors import ConfigError
from tests.bench.ledger.example_runs import a_measurement


@pytest.fixture(autouse=True)
def no_failure_yet(monkeypatch):
    monkeypatch.setattr(late_failures, "_exit_code", 0)


def test_a_run_is_recorded_with_tags_and_the_hash_of_its_model(tmp_path, capsys):
    model = tmp_path / "模型.gguf"
    model.write_bytes(b"weights")
    options = LedgerOptions(ledger=tmp_path / "ledger.sqlite", tag=["nightly"])
    run_id = record(options, a_measurement(), model=model)
    print_run(run_id)
    run = Ledger(options.ledger).get(run_id)
    assert run.measurement.subject.model_sha256 == hashlib.sha256(b"weights").hexdigest()
    assert run.tags == ("nightly",)
    assert late_failures.exit_code_after_success() == 0
    assert capsys.readouterr() == (f"\nrun {run_id}: lpx bench show {run_id}\n", "")


def test_a_hash_that_is_known_is_kept(tmp_path):
    options = LedgerOptions(ledger=tmp_path / "ledger.sqlite")
    measured = a_measurement(subject={"model_sha256": "abc"})
    run_id = record(options, measured, model=tmp_path / "absent.gguf")
    assert Ledger(options.ledger).get(run_id).measurement == measured


def test_no_ledger_keeps_nothing(tmp_path, capsys):
    options = LedgerOptions(no_ledger=True, ledger=tmp_path / "no-folder" / "ledger.sqlite")
    assert record(options, a_measurement(), model=tmp_path / "absent.gguf") is None
    print_run(None)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_a_failure_is_said_and_ends_with_an_exit_code(tmp_path, capsys):
    file = tmp_path / "ledger.sqlite"
    file.write_text("no database")
    assert record(LedgerOptions(ledger=file), a_measurement()) is None
    assert late_failures.exit_code_after_success() == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error[LPX-E090]: this run is not in the ledger: ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("why", ["absent", "interrupted"])
def test_a_run_is_kept_even_without_the_hash_of_its_model(tmp_path, capsys, monkeypatch, why):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    if why == "interrupted":
        monkeypatch.setattr(Ledger, "model_sha256", interrupt)
    options = LedgerOptions(ledger=tmp_path / "ledger.sqlite")
    run_id = record(options, a_measurement(), model=tmp_path / "absent.gguf")
    assert Ledger(options.ledger).get(run_id).measurement == a_measurement()
    assert "without the model's hash" in capsys.readouterr().err


def test_places_that_cannot_be_are_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match="no folder"):
        LedgerOptions(ledger=tmp_path / "absent" / "ledger.sqlite")
    with pytest.raises(ConfigError, match="is a folder"):
        LedgerOptions(ledger=tmp_path)
    with pytest.raises(ConfigError, match="printable"):
        LedgerOptions(tag=["nightly", "\x1b[2J"])
