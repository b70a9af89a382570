"""`lpx bench history`, `show`, `note`, `rm`, `export` and `plot`: real processes on a ledger that holds some runs."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from lpx.bench.ledger import Ledger
from lpx.bench.measurement import KINDS
from lpx.cli.app import app
from tests.bench.ledger.example_runs import ENVIRONMENT, NEWER_DRIVER, a_measurement
from tests.cli.conftest import COMMAND
from tests.cli.test_errors import one_line


@pytest.fixture
def ledger(environment):
    """Three runs: two of a model with a Chinese name, the second with a newer driver, and one of a server."""
    ledger = Ledger(environment["LPX_LEDGER"])
    ledger.record(a_measurement(), environment=ENVIRONMENT, tags=["nightly"])
    ledger.record(a_measurement(minutes=1), environment=NEWER_DRIVER, note="新驱动")
    ledger.record(
        a_measurement("[bold]qwen\x1b[2J", minutes=2, kind="serve", subject={"engine": "vllm"}), environment=ENVIRONMENT
    )
    ledger.set_baseline("release", 1)
    return ledger


def test_history_lists_and_filters(lpx, ledger):
    done = lpx("bench", "history")
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["RUN", "BEGUN", "KIND", "ENGINE", "MODEL", "B×IN→OUT", "RESULT", "TTFT", "ms", "TAGS"]
    assert [line.split()[0] for line in lines] == ["1", "2", "3"]
    assert "千问-0.5b" in lines[0]
    assert lines[0].endswith("=release nightly")
    assert "[bold]qwen?[2J" in lines[2]  # shown, not obeyed
    done = lpx("bench", "history", "--model", "千问", "--last", "1", "--json")
    (run,) = json.loads(done.stdout)
    assert (run["id"], run["note"], run["environment"]["nvidia_driver"]) == (2, "新驱动", "570.86.10")
    assert "holds no such run" in lpx("bench", "history", "--model", "absent").stderr
    done = lpx("bench", "history", "--kind", "serve", "--figure", "ttft_ms_p99", "--figure", "absent")
    assert "20.25 ms" in done.stdout


def test_history_fits_a_terminal_of_80_columns(environment, ledger):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    variables = {**{name: value for name, value in environment.items() if name != "COLUMNS"}, "TERM": "dumb"}
    subprocess.run([*COMMAND, "bench", "history"], stdin=slave, stdout=slave, env=variables, check=True)
    os.close(slave)
    shown = os.read(master, 65536).decode()
    os.close(master)
    lines = shown.split("\r\n")
    assert all(cell_len(line) <= 80 for line in lines)
    assert [line.split()[0] for line in lines[1:-1]] == ["1", "tags:", "2", "3"]  # no room for the tags beside them
    assert "=release nightly" in lines[2]
    assert "12.5" in lines[1]  # only names are shortened


def test_show_holds_everything(lpx, ledger):
    done = lpx("bench", "show", "release")
    assert done.returncode == 0, done.stderr
    for said in ("run 1", "千问-0.5b", "100 tokens/s", "limits.seconds", "550.54.14", "timeout", "nightly", "of 3"):
        assert said in done.stdout
    run = json.loads(lpx("bench", "show", "2", "--json").stdout)
    assert run["samples"] == {"ttft_ms": [12.5, 20.25, 0.1]}
    assert "no run 9;" in one_line(lpx("bench", "show", "9"), 2)


def test_a_hash_is_shown_whole_where_it_fits_and_never_broken(ledger):
    digest = "0123456789abcdef" * 4
    run_id = ledger.record(a_measurement(subject={"model_sha256": digest}), environment=ENVIRONMENT)

    def show(*arguments, **environment):
        command = ["bench", "show", str(run_id), "--ledger", str(ledger.path), *arguments]
        return CliRunner().invoke(app, command, env=environment).stdout

    assert ["sha256", "0123456789abcdef…"] in [line.split() for line in show(COLUMNS="80").splitlines()]
    assert ["sha256", digest] in [line.split() for line in show(COLUMNS="120").splitlines()]
    assert ["sha256", digest] in [line.split() for line in show(COLUMNS="").splitlines()]  # a pipe has room
    assert json.loads(show("--json", COLUMNS="80"))["subject"]["model_sha256"] == digest


def test_notes_and_removal(lpx, ledger):
    assert lpx("bench", "note", "2", "第二次", "--tag", "慢").returncode == 0
    assert (ledger.get(2).note, ledger.get(2).tags) == ("第二次", ("慢",))
    assert "--yes" in one_line(lpx("bench", "rm", "2"), 2)
    assert "release" in one_line(lpx("bench", "rm", "2", "1", "--yes"), 3)
    assert lpx("bench", "rm", "2", "3", "3", "--yes").stdout == "removed 2 runs\n"
    assert [run.id for run in ledger.find()] == [1]


def test_export_writes_whole_files_and_overwrites_none(lpx, ledger, tmp_path):
    file = tmp_path / "运行.csv"
    assert lpx("bench", "export", str(file), "--bom").returncode == 0
    assert file.read_bytes().startswith(b"\xef\xbb\xbfid,started")
    assert "exists" in one_line(lpx("bench", "export", str(file)), 2)
    done = lpx("bench", "export", "--kind", "latency")
    assert [run["samples"]["ttft_ms"][0] for run in json.loads(done.stdout)] == [12.5, 12.5]
    assert "format" in one_line(lpx("bench", "export", str(tmp_path / "runs.xlsx")), 2)
    assert "there is no folder" in one_line(lpx("bench", "export", str(tmp_path / "no" / "runs.csv")), 2)
    assert [path.name for path in tmp_path.iterdir()] == ["运行.csv"]


def test_plot_writes_a_page(lpx, ledger, tmp_path):
    file = tmp_path / "runs.html"
    done = lpx("bench", "plot", str(file), "--model", "千问", "--figure", "decode_tokens_per_second")
    assert done.returncode == 0, done.stderr
    assert "千问-0.5b" in file.read_text("utf-8")
    assert done.stderr == f"2 runs drawn in {file}\n"
    done = lpx("bench", "plot", str(file), "--figure", "absent", "--force")
    assert "none of these 3 runs has the figure 'absent'" in one_line(done, 2)
    assert "exists" in one_line(lpx("bench", "plot", str(file)), 2)
    assert ".html, .png, .svg" in one_line(lpx("bench", "plot", str(tmp_path / "runs.gif")), 2)
    # A module of that name that is not there: as if matplotlib were not installed.
    hidden = "import sys; sys.modules['matplotlib'] = None; from lpx.cli import main; main()"
    done = subprocess.run(
        [COMMAND[0], "-c", hidden, "bench", "plot", str(tmp_path / "b.png")], capture_output=True, text=True
    )
    assert "pip install 'lpx[plot]'" in (line := one_line(done, 2))
    assert "LPX-E083" in line


def test_a_ledger_that_cannot_be_read_is_one_line(lpx, tmp_path):
    broken = tmp_path / "broken.sqlite"
    broken.write_text("no database")
    assert "broken" in one_line(lpx("bench", "history", "--ledger", str(broken)), 3)
    assert "holds no run yet" in lpx("bench", "history", "--ledger", str(tmp_path / "absent.sqlite")).stderr


def test_names_of_others_neither_move_the_cursor_nor_ruin_the_table(ledger):
    long = ledger.record(a_measurement("模" * 5000, minutes=3), environment=ENVIRONMENT)
    ledger.set_baseline("evil", 3)
    file = ("--ledger", str(ledger.path))
    _, *lines = CliRunner().invoke(app, ["bench", "history", *file]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2", "3", str(long)]
    assert max(map(cell_len, lines)) < 250
    assert all("tok/s" in line for line in lines)
    shown = CliRunner().invoke(app, ["bench", "baseline", "show", "evil", *file]).stdout
    assert "[bold]qwen?[2J" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("--last", "1" + "0" * 20),
        ("--batch-size", "1" + "0" * 20),
        ("--until", "0001-01-01T00:00+23:59"),
        ("--since", "9999-12-31T23:59-23:59"),
    ],
)
def test_bounds_beyond_all_runs_are_refused(ledger, arguments):
    done = CliRunner().invoke(app, ["bench", "history", *arguments, "--ledger", str(ledger.path)])
    assert done.exit_code == 2, done.output


@pytest.mark.parametrize("command", [("history",), ("history", "--json"), ("export",), ("plot", "runs.html")])
def test_a_kind_that_no_command_measures_is_not_taken_for_an_empty_archive(ledger, command):
    done = CliRunner().invoke(app, ["bench", *command, "--kind", "nope", "--ledger", str(ledger.path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--kind 'nope' is not known; use one of latency, roofline, serve, decode, compare" in done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_that_there_is_can_be_asked_for(ledger, kind):
    done = CliRunner().invoke(app, ["bench", "history", "--kind", kind, "--ledger", str(ledger.path)])
    assert done.exit_code == 0, done.output
