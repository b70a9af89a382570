"""A ledger that somebody else made: a row that no LPX writes is named, and can be taken out."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from typer.testing import CliRunner

from lpx.bench.ledger import Ledger, LedgerError
from lpx.cli.app import app
from tests.bench.ledger.example_runs import ENVIRONMENT, a_measurement

_DEEP = "[" * 5000 + "]" * 5000


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for minutes in range(2):
        ledger.record(a_measurement(minutes=minutes), environment=ENVIRONMENT, tags=["tag"])
    ledger.set_baseline("main", 2)
    return ledger


def change(ledger, statement, *values):
    with closing(sqlite3.connect(ledger.path)) as db, db:
        db.execute(statement, values)


def lpx(ledger, *arguments):
    return CliRunner().invoke(app, ["bench", *arguments, "--ledger", str(ledger.path)])


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("kind", b"blob"),
        ("started", "yesterday"),
        ("started", "0001-01-01T00:00:00.000000Z"),
        ("started", 12),
        ("seconds", "long"),
        ("seconds", float("inf")),
        ("model", b"\xff\xfe"),
        ("engine", b""),
        ("threads", "many"),
        ("batch_size", b"1"),
        ("input_len", "abc"),
        ("output_len", float("inf")),
        ("settings", "{nope"),
        ("settings", "[]"),
        ("settings", _DEEP),
        ("settings", '{"a": ' + "[" * 900 + "]" * 900 + "}"),
        ("settings", "9" * 5000),
        ("note", b"note"),
    ],
)
def test_a_bad_value_of_a_run_names_the_run(ledger, column, value):
    change(ledger, f"UPDATE runs SET {column} = ? WHERE id = 2", value)
    with pytest.raises(LedgerError, match=f"run 2 of the ledger cannot be read: {column} "):
        ledger.find()
    assert ledger.get(1).id == 1


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("UPDATE figures SET value = ? WHERE run_id = 2", "abc"),
        ("UPDATE OR REPLACE figures SET name = ? WHERE run_id = 2", b"blob"),
        ("UPDATE samples SET series = ? WHERE run_id = 2", '{"a": 1}'),
        ("UPDATE samples SET series = ? WHERE run_id = 2", '["1", [2]]'),
        ("UPDATE samples SET series = ? WHERE run_id = 2", "[1" + "0" * 400 + "]"),
        ("UPDATE errors SET count = ? WHERE run_id = 2", "often"),
        ("UPDATE tags SET tag = ? WHERE run_id = 2", b"tag"),
    ],
)
def test_a_bad_value_beside_a_run_names_the_run(ledger, statement, value):
    change(ledger, statement, value)
    with pytest.raises(LedgerError, match="run 2 of the ledger cannot be read"):
        ledger.get(2)


@pytest.mark.parametrize(
    "content", ["[]", '{"cpu_model": 5}', '{"gpus": "abc"}', '{"gpus": [1]}', '{"packages": []}', _DEEP, b"blob"]
)
def test_a_bad_environment_names_a_run(ledger, content):
    change(ledger, "UPDATE environments SET content = ?", content)
    with pytest.raises(LedgerError, match="run 1 of the ledger cannot be read"):
        ledger.find()


def test_every_command_says_so_in_one_line_and_the_run_can_be_removed(ledger, tmp_path):
    change(ledger, "UPDATE runs SET started = 'yesterday' WHERE id = 2")
    for command in (
        ("history",),
        ("history", "--json"),
        ("show", "2"),
        ("export", str(tmp_path / "runs.csv")),
        ("baseline", "list"),
        ("baseline", "show", "main"),
    ):
        done = lpx(ledger, *command)
        assert done.exit_code == 3, done.output
        assert "run 2 of the ledger cannot be read: started is 'yesterday'" in done.stderr
        assert "lpx bench rm 2" in done.stderr
    ledger.remove_baseline("main")
    assert lpx(ledger, "rm", "2", "--yes").exit_code == 0
    assert [run.id for run in ledger.find()] == [1]


def test_a_baseline_that_is_no_name_is_an_error_of_the_ledger(ledger):
    change(ledger, "INSERT INTO baselines VALUES (?, 1)", b"blob")
    assert lpx(ledger, "baseline", "list").exit_code == 3


def test_a_view_in_place_of_a_table_is_not_read(ledger):
    change(ledger, "ALTER TABLE tags RENAME TO real_tags")
    change(ledger, "CREATE VIEW tags AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x, x FROM n")
    with pytest.raises(LedgerError, match="no table tags"):
        ledger.find()
