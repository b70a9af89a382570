"""`lpx batch` as people use it: real processes, the real model, kills."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lpx.batch.errors import BatchFileError
from lpx.batch.file_run import FilePlan, FileRun
from lpx.batch.input_file import InputFile
from lpx.batch.job import read_config
from lpx.batch.standing import read_standing
from lpx.errors import ConfigError
from tests.batch.answer_server import batch_kills
from tests.cli.conftest import COMMAND, Lpx
from tests.server.live_server import eventually


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def write(path: Path, *lines: Any) -> Path:
    path.write_bytes(b"".join(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in lines))
    return path


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_the_engine_answers_every_form_of_line(lpx: Lpx, folder: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 6, "temperature": 0}
    source = write(
        folder / "in.jsonl",
        b"\xef\xbb\xbf",
        {"custom_id": "行", "method": "POST", "url": "/v1/chat/completions", "body": chat},
        b"\n",
        {"prompt": "The capital of France is\u2028", "max_tokens": 4, "temperature": 0},
        {"custom_id": "e", "method": "POST", "url": "/v1/embeddings", "body": {"input": "你好"}},
        b"nonsense\r\n",
        {"prompt": 123},
        {"prompt": "word " * 3000},
        {"prompt": "x", "model": "another"},
        b'{"prompt": "' + b"y" * 20_000_000 + b'"}\n',
        {**chat, "custom_id": "行"},
    )
    done = lpx("batch", "run", "-i", str(source), "-o", str(folder / "out.jsonl"), "--log-file", str(folder / "log"))
    assert done.returncode == 1, done.stderr
    assert "4 succeeded, 5 failed, 1 blank lines skipped" in done.stderr
    got = results(folder / "out.jsonl")
    assert [each["lpx"]["index"] for each in got] == list(range(9))
    assert [each["lpx"]["line"] for each in got] == [1, 3, 4, 5, 6, 7, 8, 9, 10]
    assert [each["response"]["status_code"] for each in got] == [200, 200, 200, 400, 400, 400, 404, 400, 200]
    assert [each["error"] is None for each in got] == [each["response"]["status_code"] == 200 for each in got]
    assert got[0]["custom_id"] == got[8]["custom_id"] == "行"
    assert got[0]["response"]["body"]["choices"] == got[8]["response"]["body"]["choices"]
    assert len(got[2]["response"]["body"]["data"][0]["embedding"]) > 100
    assert got[5]["error"]["code"] == "context_length_exceeded"
    assert got[0]["lpx"]["attempts"] == 1
    assert got[0]["lpx"]["total_ms"] >= got[0]["lpx"]["request_ms"] > 0
    log = (folder / "log").read_text()
    assert log.count(" index=") == 9
    assert "nonsense" not in log
    assert "9 of 9 lines, 5 failed" in log
    again = lpx("batch", "run", "-i", str(source), "-o", str(folder / "out.jsonl"))
    assert again.returncode == 2
    assert "--resume" in again.stderr
    status = lpx("batch", "status", "-i", str(source), "-o", str(folder / "out.jsonl"), "--json")
    assert json.loads(status.stdout) == {
        "total": 9, "blank": 1, "done": 9, "failed": 5, "missing": 0, "running": False
    }  # fmt: skip


def test_a_full_disk_ends_the_engine_cleanly_too(folder: Path, environment: dict[str, str]) -> None:
    source = write(folder / "in.jsonl", *({"prompt": "x", "max_tokens": 2} for _ in range(8)))
    done = subprocess.run(
        [
            "bash",
            "-c",
            'ulimit -f 2; exec "$@"',
            "-",
            *COMMAND,
            "batch",
            "run",
            "-i",
            source,
            "-o",
            folder / "out.jsonl",
        ],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 1, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error[LPX-E004]: ")
    assert "make room, and go on with --resume" in line
    assert 1 <= len(results(folder / "out.jsonl")) < 8


def test_a_run_that_never_began_leaves_no_output(folder: Path) -> None:
    plan = FilePlan(write(folder / "in.jsonl", {"prompt": "x"}), folder / "out.jsonl")
    with pytest.raises(ConfigError), FileRun(plan):
        raise ConfigError("there is no such model")
    assert not (folder / "out.jsonl").exists()


def test_the_config_form_works_as_it_is(lpx: Lpx, folder: Path) -> None:
    write(folder / "in.jsonl", {"prompt": "x"}, {"prompt": "不行"})
    server = batch_kills.AnswerServer()
    config = {
        "input_file": str(folder / "in.jsonl"),
        "output_file": str(folder / "out.jsonl"),
        "batch_size": 4,
        "retry_count": 2,
    }
    (folder / "batch.json").write_text(json.dumps(config))
    done = lpx("batch", "run", "--config", str(folder / "batch.json"), "--url", server.url, "--json", LPX_MODEL="here")
    assert done.returncode == 1, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["succeeded"], summary["failed"], summary["remaining"]) == (1, 1, 0)
    retried = lpx(
        "batch", "run", "--config", str(folder / "batch.json"), "--url", server.url, "--resume", "--retry-failed"
    )
    assert "0 succeeded, 1 failed, 1 done before" in retried.stderr
    server.shutdown()
    server.server_close()
    first, second = results(folder / "out.jsonl")
    assert (first["lpx"]["index"], second["lpx"]["index"]) == (0, 1)
    assert first["response"]["body"]["model"] == "answers"  # the server's only one, and not that of this machine


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("nonsense", "not valid JSON"),
        ("[]", "JSON object"),
        ('{"batchsize": 4}', "'batchsize'"),
        ('{"batch_size": 0}', "batch_size"),
        ('{"retry_count": "3"}', "retry_count"),
        ('{"order": "random"}', "order"),
    ],
)
def test_a_wrong_config_is_told(folder: Path, config: str, told: str) -> None:
    (folder / "batch.json").write_text(config)
    with pytest.raises(BatchFileError, match=told):
        read_config(folder / "batch.json")


def test_check_lists_what_is_wrong(lpx: Lpx, folder: Path) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    good = lpx("batch", "check", "-i", str(write(folder / "good.jsonl", line, {"prompt": "y"})))
    assert good.returncode == 0, good.stderr
    assert "2 lines, 0 blank, 0 faulty" in good.stdout
    bad = lpx("batch", "check", "-i", str(write(folder / "bad.jsonl", line, line, b"x\n")), "--json")
    assert bad.returncode == 1
    report = json.loads(bad.stdout)
    assert (report["duplicates"], report["faulty"]) == (1, 1)
    assert [fault["line"] for fault in report["faults"]] == [2, 3]


def test_kills_at_random_lose_and_double_nothing(folder: Path, environment: dict[str, str]) -> None:
    """The short version of benchmarks/batch_kills.py."""
    seen = batch_kills.measure(folder, 120, 2, 5, "input", inflight=2, pause_s=0.1)
    assert seen["killed"] == 2


def test_an_interrupt_finishes_what_runs(folder: Path, environment: dict[str, str]) -> None:
    source = write(folder / "in.jsonl", *({"prompt": f"{index}"} for index in range(3000)))
    server = batch_kills.AnswerServer()
    output = folder / "out.jsonl"
    arguments = ["batch", "run", "-i", str(source), "-o", str(output), "--url", server.url, "--max-inflight", "3"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lpx", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    eventually(lambda: output.exists() and output.stat().st_size > 0, "a result")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    server.shutdown()
    server.server_close()
    assert process.returncode == 130
    assert "SIGINT: finishing the" in told
    got = [each["lpx"]["index"] for each in results(output)]
    assert got == list(range(len(got)))
    assert len(got) == server.answered
    assert f"{3000 - len(got)} missing" in told


def special_files(folder: Path) -> list[Path]:
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    listener.close()
    return [folder / "pipe", folder / "folder", folder / "socket", Path("/dev/zero"), Path("/dev/tty"), Path("a\0b")]


def test_what_is_no_file_is_refused_and_waited_for_by_nobody(folder: Path) -> None:
    source = write(folder / "in.jsonl", {"prompt": "x"})
    for odd in special_files(folder):
        for use in (
            lambda path: FileRun(FilePlan(path, folder / "out")),
            lambda path: FileRun(FilePlan(source, folder / "out", log_file=path)),
            lambda path: FileRun(FilePlan(source, path)),
            lambda path: FileRun(FilePlan(source, path, resume=True)),
            InputFile,
            lambda path: read_standing(source, path),
            read_config,
        ):
            with pytest.raises(BatchFileError):
                use(odd)
    assert not (folder / "out").exists()


@pytest.mark.parametrize("text", ["a\\u0000b", "a\\ud800b"])
@pytest.mark.parametrize("name", ["input_file", "output_file", "log_file", "url", "model"])
def test_names_that_no_file_can_have_are_refused(folder: Path, name: str, text: str) -> None:
    (folder / "batch.json").write_text(f'{{"{name}": "{text}"}}')
    with pytest.raises(BatchFileError, match=f"{name} holds"):
        read_config(folder / "batch.json")


def test_the_summary_says_why_lines_failed(lpx: Lpx, folder: Path) -> None:
    write(folder / "in.jsonl", {"prompt": "x"}, b"nonsense\n", {"prompt": "不行"}, {"prompt": "不行 2"})
    server = batch_kills.AnswerServer()
    where = ("-i", str(folder / "in.jsonl"), "--url", server.url)
    told = lpx("batch", "run", *where, "-o", str(folder / "out"))
    as_json = lpx("batch", "run", *where, "-o", str(folder / "out.2"), "--json")
    wrong_key = lpx("batch", "run", *where, "-o", str(folder / "out.3"), LPX_BATCH_API_KEY="schlüssel")
    server.shutdown()
    server.server_close()
    assert "  2 failed: never (status 400), such as line 3\n" in told.stderr
    assert "  1 failed: invalid_json_line (status 400), such as line 2\n" in told.stderr
    assert json.loads(as_json.stdout)["failures"] == [
        {"code": "never", "status": 400, "count": 2, "line": 3},
        {"code": "invalid_json_line", "status": 400, "count": 1, "line": 2},
    ]
    assert wrong_key.returncode == 2
    assert "characters that no key has" in wrong_key.stderr.splitlines()[-1]


@pytest.mark.parametrize("log", ["in.jsonl", "out.jsonl", "./out.jsonl"])
@pytest.mark.parametrize("is_there", [False, True])
def test_the_log_is_no_file_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, is_there: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    source, output = Path("in.jsonl"), Path("out.jsonl")
    source.write_text('{"prompt": "x"}\n')
    if is_there:
        output.touch()
    with pytest.raises(BatchFileError, match="is the input or the output"):
        FileRun(FilePlan(source, output, resume=True, log_file=Path(log)))
    assert source.read_text() == '{"prompt": "x"}\n'
    assert output.exists() is is_there
