"""Files that cannot be a ledger, or not be written: one line says which, why, and the way out."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
from contextlib import closing, contextmanager

import pytest

from lpx.bench.ledger import Ledger, LedgerError, schema
from tests.bench.ledger.example_runs import ENVIRONMENT, a_measurement

NOBODY = 65534


def record(ledger):
    return ledger.record(a_measurement(), environment=ENVIRONMENT)


def refusal(call):
    with pytest.raises(LedgerError) as refused:
        call()
    text = str(refused.value)
    assert "\n" not in text
    return text


@contextmanager
def without_root():
    """The superuser may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder(tmp_path_factory):
    """A folder that another user reaches."""
    folder = tmp_path_factory.mktemp("open")
    parents = [folder, *folder.parents]
    modes = {parent: parent.stat().st_mode for parent in parents if parent.stat().st_uid == os.getuid()}
    if os.geteuid() == 0:
        for parent, mode in modes.items():
            parent.chmod(mode | 0o055)
    yield folder
    for parent, mode in modes.items():
        parent.chmod(mode)


def test_a_newer_ledger_is_refused_and_left_as_it_is(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    record(ledger)
    with closing(sqlite3.connect(ledger.path)) as db:
        db.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    before = ledger.path.read_bytes()
    for call in (lambda: record(ledger), ledger.find):
        text = refusal(call)
        assert f"format {schema.VERSION + 1}" in text
        assert "newer LPX" in text
    assert ledger.path.read_bytes() == before


def test_an_older_ledger_is_brought_forward(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    run_id = record(ledger)
    later = (*schema.MIGRATIONS, ("ALTER TABLE runs ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'",))
    monkeypatch.setattr(schema, "MIGRATIONS", later)
    monkeypatch.setattr(schema, "VERSION", len(later))
    assert ledger.get(run_id).measurement == a_measurement()  # reading is enough
    with closing(sqlite3.connect(ledger.path)) as db:
        assert db.execute("SELECT colour FROM runs").fetchall() == [("red",)]
        assert db.execute("PRAGMA user_version").fetchone()[0] == len(later)
    assert record(ledger) == run_id + 1


def test_a_migration_that_fails_changes_nothing(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    record(ledger)
    before = ledger.path.read_bytes()
    wrong = (*schema.MIGRATIONS, ("CREATE TABLE more (x)", "CREATE TABLE more (x)"))
    monkeypatch.setattr(schema, "MIGRATIONS", wrong)
    monkeypatch.setattr(schema, "VERSION", len(wrong))
    refusal(lambda: record(ledger))
    monkeypatch.undo()
    assert ledger.path.read_bytes() == before


def test_another_database_is_not_touched(tmp_path):
    path = tmp_path / "cookies.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE cookies (name)")
    before = path.read_bytes()
    for call in (lambda: record(Ledger(path)), Ledger(path).find):
        assert "another program's database" in refusal(call)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_named(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("这不是数据库 " * 1000)
    for call in (lambda: record(Ledger(path)), Ledger(path).find):
        text = refusal(call)
        assert str(path) in text
        assert "broken" in text


def test_a_spoilt_ledger_is_named(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    record(ledger)
    data = bytearray(ledger.path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    ledger.path.write_bytes(data)
    assert "broken" in refusal(lambda: ledger.find())


def test_an_empty_file_becomes_a_ledger(tmp_path):
    path = tmp_path / "ledger.sqlite"
    path.touch()
    assert Ledger(path).find() == []
    assert record(Ledger(path)) == 1


def test_a_read_only_ledger_is_read_and_not_written(open_folder):
    ledger = Ledger(open_folder / "ledger.sqlite")
    record(ledger)
    ledger.path.chmod(0o444)
    open_folder.chmod(0o555)
    with without_root():
        assert len(ledger.find()) == 1
        assert "read-only" in refusal(lambda: record(ledger))
    open_folder.chmod(0o755)
    assert len(ledger.find()) == 1


def test_a_folder_that_cannot_be_written_is_named(open_folder):
    open_folder.chmod(0o555)
    with without_root():
        text = refusal(lambda: record(Ledger(open_folder / "ledger.sqlite")))
        assert "Permission denied" in text
        assert "--no-ledger" in text
        assert "Permission denied" in refusal(lambda: record(Ledger(open_folder / "new" / "ledger.sqlite")))
    open_folder.chmod(0o755)


def test_a_folder_in_place_of_the_file_is_named(tmp_path):
    assert "directory" in refusal(lambda: record(Ledger(tmp_path)))


def fill(path):
    """Take all the room that there is."""
    with path.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(1024))


def test_a_full_disk_is_named_and_loses_no_earlier_run(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    size = "size=256k"
    if not mount or subprocess.run([mount, "-t", "tmpfs", "-o", size, "tmpfs", place], capture_output=True).returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        ledger = Ledger(place / "ledger.sqlite")
        first = record(ledger)
        fill(place / "filler")
        big = a_measurement(samples={"s": tuple(map(float, range(20_000)))})
        assert "disk is full" in refusal(lambda: ledger.record(big, environment=ENVIRONMENT))
        (place / "filler").unlink()
        assert [run.id for run in ledger.find()] == [first]
        assert record(ledger) == first + 1
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_ledger_that_stays_locked_is_named(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite", busy_seconds=0.0)
    record(ledger)
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "busy" in refusal(lambda: record(ledger))
    assert record(ledger) == 2
