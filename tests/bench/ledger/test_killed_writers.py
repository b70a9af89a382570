"""Several processes write at once, and some are killed: every run that was reported is there, whole."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys

from lpx.bench.ledger import Ledger

# Records for ever, and says each number once the ledger gave it.
_WRITER = """
import sys
from lpx.bench.ledger import Ledger
from tests.bench.ledger.example_runs import ENVIRONMENT, a_measurement
ledger = Ledger(sys.argv[1])
for number in range(int(sys.argv[3])):
    print(ledger.record(a_measurement(sys.argv[2], minutes=number), environment=ENVIRONMENT, tags=["t"]), flush=True)
"""

# Stops in the middle of a run, with its pages already in the file.
_HALF = """
import sys
from lpx.bench.ledger import rows
from lpx.bench.ledger.connection import writing
from pathlib import Path
from tests.bench.ledger.example_runs import ENVIRONMENT, a_measurement
with writing(Path(sys.argv[1]), 30) as db:
    db.execute("PRAGMA cache_size = 1")  # pages go to the file before the end
    for number in range(200):
        rows.insert_run(db, a_measurement(f"half {number}"), rows.insert_environment(db, ENVIRONMENT), "")
    print("half", flush=True)
    sys.stdin.read()
"""


def start(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def kill(process):
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    return rest


def test_writers_at_once_and_killed_lose_nothing(tmp_path):
    path = tmp_path / "new" / "ledger.sqlite"  # the first to come makes it
    draw = random.Random(7)
    told: list[int] = []
    writers = [start(_WRITER, path, f"writer {number}", 20 if number == 0 else 10**6) for number in range(4)]
    for writer in writers[1:]:
        for _ in range(draw.randint(1, 12)):
            told.append(int(writer.stdout.readline()))
        told += map(int, kill(writer).split())
    told += map(int, writers[0].communicate()[0].split())

    runs = Ledger(path).find(with_samples=True)
    assert len(told) == len(set(told))
    assert {run.id for run in runs} >= set(told)
    # A run may be kept and its writer killed before it could say so, but at most one each.
    assert len(runs) <= len(told) + 3
    assert sum(run.measurement.subject.model == "writer 0" for run in runs) == 20
    for run in runs:
        assert (len(run.measurement.figures), run.measurement.samples, run.tags) == (
            3,
            {"ttft_ms": (12.5, 20.25, 0.1)},
            ("t",),
        )
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert db.execute("SELECT count(*) FROM environments").fetchone()[0] == 1
    db.close()


def test_half_a_run_is_undone(tmp_path):
    path = tmp_path / "ledger.sqlite"
    writer = start(_WRITER, path, "whole", 1)
    assert writer.communicate()[0].split() == ["1"]
    before = path.stat().st_size
    half = start(_HALF, path)
    assert half.stdout.readline() == "half\n"
    assert path.stat().st_size > before  # what is undone was really in the file
    kill(half)
    assert path.with_name("ledger.sqlite-journal").exists()
    assert [run.measurement.subject.model for run in Ledger(path).find()] == ["whole"]
    assert start(_WRITER, path, "next", 1).communicate()[0].split() == ["2"]
