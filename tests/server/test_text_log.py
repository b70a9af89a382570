"""Texts on request: what is written where, who may read it, and that nothing that goes wrong there is felt."""

from __future__ import annotations

import json
import logging
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from lpx.errors import ConfigError
from lpx.server.settings import ServerSettings
from lpx.server.text_log import KEPT_FILES, TextLog
from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import eventually, reset

ALICE, BOB = "sk-alice-0123456789", "sk-bob-0123456789ab"


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_each_key_has_its_own_private_file(start_server: StartServer, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"alice:{ALICE}\nbob:{BOB}\n")
    folder = tmp_path / "texts"
    server = start_server(settings=ServerSettings(api_key_file=keys, log_requests_to=folder))
    for key, prompt in ((ALICE, "from alice é"), (BOB, "from bob")):
        body = {"prompt": prompt, "max_tokens": 4, "n": 2}
        answer = server.post("/v1/completions", body, headers={"authorization": f"Bearer {key}"}).json()
        name = "alice" if key == ALICE else "bob"
        eventually(lambda name=name: entries(folder / f"{name}.jsonl"), "the entry")
        [entry] = entries(folder / f"{name}.jsonl")
        assert (entry["id"], entry["key"], entry["model"]) == (answer["id"], name, "fake")
        assert entry["prompts"] == [prompt]
        assert [each["text"] for each in entry["answers"]] == [each["text"] for each in answer["choices"]]
        assert [each["finish_reason"] for each in entry["answers"]] == ["length", "length"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert ALICE not in file.read_text()


def test_streams_and_clients_that_leave_are_written_too(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(
        FakeExecutor(num_blocks=5000, block_size=64),
        max_model_len=200_000,
        settings=ServerSettings(log_requests_to=tmp_path / "texts"),
    )
    file = tmp_path / "texts" / "anonymous.jsonl"
    server.events("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3})
    eventually(lambda: len(entries(file)) == 1, "the stream's entry")
    gone = server.send_json("/generate", {"prompt": "a", "stream": True, "max_tokens": None})
    assert gone.recv(12) == b"HTTP/1.1 200"
    reset(gone)
    eventually(lambda: len(entries(file)) == 2, "the entry of the one who left")
    first, second = entries(file)
    assert first["prompts"] == ["user: hello\nassistant: "]
    assert second["answers"][0]["finish_reason"] == "abort"


def test_without_the_option_no_text_is_kept_anywhere(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start_server().post("/generate", {"prompt": "a", "max_tokens": 3})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["others may read", "a file", "below a file"])
def test_folders_that_are_not_private_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "texts"
    if kind == "others may read":
        path.mkdir(mode=0o755)
    else:
        path.write_text("")
    if kind == "below a file":
        path = path / "texts"
    with pytest.raises(ConfigError):
        TextLog(path)


def test_files_are_bounded_and_the_oldest_goes(tmp_path: Path) -> None:
    log = TextLog(tmp_path / "texts", max_file_bytes=200)
    for number in range(40):
        log.put("alice", lambda number=number: {"number": number, "text": "x" * 50})
    log.close()
    files = sorted(path.name for path in (tmp_path / "texts").iterdir())
    assert files == ["alice.jsonl", *(f"alice.jsonl.{number}" for number in range(1, KEPT_FILES))]
    for name in files:
        path = tmp_path / "texts" / name
        assert path.stat().st_size <= 200
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert entries(path)
    assert entries(tmp_path / "texts" / "alice.jsonl")[-1]["number"] == 39


def test_no_link_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = TextLog(tmp_path / "texts")
    target = tmp_path / "target"
    (tmp_path / "texts" / "alice.jsonl").symlink_to(target)
    log.put("alice", dict)
    log.close()
    assert not target.exists()
    assert log.dropped == 1


def test_a_disk_that_is_full_is_warned_of_once_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import os

    full = True
    write = os.write

    def writing(file: int, data: bytes) -> int:
        if full and data.startswith(b"{"):
            return write(file, data[:5])  # a part fits still
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    monkeypatch.setattr("lpx.server.text_log.os.write", writing)
    caplog.set_level(logging.WARNING)
    log = TextLog(tmp_path / "texts")
    for number in range(3):
        log.put("alice", lambda number=number: {"number": number})
    eventually(lambda: log.dropped == 3, "three drops")
    full = False
    log.put("alice", lambda: {"number": 3})
    log.close()
    assert entries(tmp_path / "texts" / "alice.jsonl") == [{"number": 3}]  # and no halves of the others
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "No space left" in said[0]
    assert "3 were not" in said[1]
    assert str(tmp_path) not in said[0]


def test_a_disk_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    go_on = threading.Event()
    log = TextLog(tmp_path / "texts", max_queued=5)

    def record() -> dict[str, Any]:
        assert go_on.wait(60)
        return {}

    for _ in range(50):
        log.put("alice", record)
    assert log.dropped >= 44
    go_on.set()
    log.close()
    assert len(entries(tmp_path / "texts" / "alice.jsonl")) == 50 - log.dropped
