"""What breaks from outside: killed clients and servers, full disks, a clock that jumps. Each with real processes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from lpx.server.settings import ServerSettings
from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import PATIENCE_S, eventually
from tests.server.server_process import Process

ENDLESS: dict[str, Any] = {"prompt": "a", "max_tokens": None, "stream": True}

_CLIENT = """
import sys, httpx
with httpx.stream("POST", sys.argv[1] + "/generate", json={"prompt": "a", "max_tokens": None, "stream": True},
                  trust_env=False, timeout=120) as response:
    for piece in response.iter_bytes():
        print("streaming", flush=True)
"""


def stop(process: Process) -> None:
    process.process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


def post(url: str, **body: Any) -> httpx.Response:
    return httpx.post(url + "/generate", json={"prompt": "a", "max_tokens": 3, **body}, trust_env=False, timeout=120)


def test_a_client_killed_in_its_stream_leaves_nothing_behind(start_server: StartServer) -> None:
    server = start_server(FakeExecutor(num_blocks=5000, block_size=64), max_model_len=200_000)
    client = subprocess.Popen([sys.executable, "-c", _CLIENT, server.url], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert client.stdout.readline() == "streaming\n"
    client.kill()
    client.wait(60)
    client.stdout.close()
    eventually(lambda: server.idle, "an idle engine with all blocks free")
    assert server.engine.stats().finished_total["abort"] == 1
    assert not server.app.state.service.active
    assert server.post("/generate", {"prompt": "a", "max_tokens": 3}).status_code == 200


def test_a_server_killed_in_a_stream_breaks_it_and_can_start_again(start: type[Process], tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    process = start(0, "ok", settings={"log_requests_to": str(texts)})
    url = process.wait_ready()
    port = int(url.rpartition(":")[2])
    assert post(url).status_code == 200
    eventually(lambda: (texts / "anonymous.jsonl").exists(), "the text log")
    with httpx.stream("POST", url + "/generate", json=ENDLESS, trust_env=False, timeout=120) as response:
        pieces = response.iter_bytes()
        data = next(pieces)
        process.process.kill()
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):  # a client cannot take it for an end
            data += b"".join(pieces)
    assert b"[DONE]" not in data
    assert b'"finish_reason":"' not in data
    process.process.wait(60)
    assert not [child for child in psutil.process_iter(["ppid"]) if child.info["ppid"] == process.process.pid]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    again = start(port, "ok", settings={"log_requests_to": str(texts)})
    assert again.wait_ready() == url
    assert post(url).status_code == 200
    stop(again)
    lines = (texts / "anonymous.jsonl").read_text().splitlines()
    assert [json.loads(line)["answers"][0]["finish_reason"] for line in lines] == ["length", "length"]
    assert sorted(path.name for path in texts.iterdir()) == ["anonymous.jsonl"]


def test_a_full_disk_under_the_log_harms_no_request(start: type[Process]) -> None:
    with open("/dev/full", "wb") as full:
        process = start(port := free_port(), "ok", stderr=full)
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        try:
            return httpx.get(url + "/health", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    eventually(ready, "readiness")
    for _ in range(50):
        assert post(url).status_code == 200
    process.process.send_signal(signal.SIGTERM)
    # What is left in the interpreter's buffer cannot be written at exit: CPython says so with 120.
    assert process.process.wait(PATIENCE_S) in (0, 120)


def test_a_full_disk_under_the_text_log_harms_no_request(start: type[Process], tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    process = start(0, "ok", settings={"log_requests_to": str(texts)}, limit_file_bytes=1000)
    url = process.wait_ready()
    for _ in range(20):
        assert post(url).status_code == 200

    def dropped() -> float:
        text = httpx.get(url + "/metrics", trust_env=False).text
        [line] = [each for each in text.splitlines() if each.startswith("lpx:request_log_dropped_total{")]
        return float(line.split()[1])

    eventually(lambda: dropped() >= 10, "drops that are counted")
    stop(process)
    assert process.log.count("requests are not logged") == 1
    file = texts / "anonymous.jsonl"
    assert file.stat().st_size <= 1000
    for line in file.read_text().splitlines():
        json.loads(line)  # whole ones only


@pytest.mark.parametrize("step_s", [-1e9, -10.0, 10.0, 1e9])
def test_a_clock_that_jumps_changes_nothing(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    """Deadlines, sessions and timings run on the monotonic clock; the wall clock is shown and nothing more."""
    key = "sk-test-key-0123456789"
    settings = ServerSettings(api_keys=(key,))
    server = start_server(FakeExecutor(num_blocks=500, block_size=64), max_model_len=20_000, settings=settings)
    bearer = {"authorization": f"Bearer {key}"}
    signed_in = server.post("/login", {"key": key})
    server.client.cookies.clear()  # the client's own jar goes by the wall clock
    cookie = {"cookie": signed_in.headers["set-cookie"].partition(";")[0]}
    body = {"prompt": "a", "max_tokens": 500, "max_latency_ms": 600_000, "stream": True}
    with server.client.stream("POST", "/generate", json=body, headers=bearer) as response:
        pieces = response.iter_bytes()
        data = next(pieces)
        wall = time.time
        monkeypatch.setattr(time, "time", lambda: wall() + step_s)
        data += b"".join(pieces)
    *_, last, done = [line for line in data.split(b"\n\n") if line]
    assert done == b"data: [DONE]"
    end = json.loads(last.removeprefix(b"data: "))
    assert end["finish_reason"] == "length"
    assert 0 <= end["timings"]["decode_ms"] < 1e6
    assert 0 <= end["timings"]["queue_ms"] < 1e6
    assert server.get("/v1/models", headers=cookie).status_code == 200  # the session goes on
    text = server.get("/metrics", headers=bearer).text
    for line in text.splitlines():
        if line.startswith(("lpx:time_to_first", "lpx:e2e")) and "_sum" in line:
            assert 0 <= float(line.split()[1]) < 1e6


def test_nothing_in_the_service_measures_with_the_wall_clock() -> None:
    """`time.time` appears where a date is shown to people or clients, and nowhere else."""
    import lpx

    allowed = {"request_log.py": 1, "service.py": 1}  # `created` of answers, and of the model
    allowed |= {"batch_queue.py": 6, "openai_batches.py": 2}  # dates of batches, which outlive the process
    found = {}
    for path in (Path(lpx.__file__).parent).rglob("*.py"):
        if path.parent.name in ("server", "engine", "runtime", "drafting") and (
            count := path.read_text().count("time.time()")
        ):
            found[path.name] = count
    assert found == allowed


def test_keys_are_read_again_on_sighup(start: type[Process], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice:sk-alice-0123456789\n")
    process = start(0, "ok", settings={"api_key_file": str(keys)})
    url = process.wait_ready()

    def status(key: str) -> int:
        bearer = {"authorization": f"Bearer {key}"}
        return httpx.get(url + "/v1/models", headers=bearer, trust_env=False, timeout=120).status_code

    assert (status("sk-alice-0123456789"), status("sk-bob-0123456789ab")) == (200, 401)
    keys.write_text("bob:sk-bob-0123456789ab\n")
    process.process.send_signal(signal.SIGHUP)
    eventually(lambda: status("sk-bob-0123456789ab") == 200, "the new key")
    assert status("sk-alice-0123456789") == 401
    keys.write_text("bob\x00:\n")
    process.process.send_signal(signal.SIGHUP)
    eventually(lambda: "the API keys stay as they were" in process.log, "the complaint")
    assert status("sk-bob-0123456789ab") == 200
    stop(process)
    assert "sk-" not in process.log


def test_a_hangup_of_its_terminal_ends_a_server_without_a_key_file(start: type[Process]) -> None:
    terminal, other_end = os.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(other_end, termios.TIOCSCTTY, 0)

    process = start(0, "ok", settings={"api_keys": ["sk-alice-0123456789"]}, before_start=take_terminal)
    process.wait_ready()
    os.close(other_end)
    os.close(terminal)  # the kernel sends SIGHUP
    assert process.wait() == 0
    assert "SIGHUP: no new requests" in process.log


def test_a_hangup_without_a_terminal_is_a_wish_to_reload(start: type[Process]) -> None:
    process = start(0, "ok", before_start=os.setsid)
    url = process.wait_ready()
    process.process.send_signal(signal.SIGHUP)
    eventually(lambda: "the model is not reloaded" in process.log, "the complaint")  # the fake one is in no folder
    assert httpx.get(url + "/health", trust_env=False, timeout=120).status_code == 200
    stop(process)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_server_out_of_file_handles_serves_on(start: type[Process]) -> None:
    """More clients than open files: some wait or are refused, and it goes on when they leave."""
    process = start(0, "ok", settings={"max_connections": 30})
    url = process.wait_ready()
    pid = process.process.pid
    resource_limit = len(os.listdir(f"/proc/{pid}/fd")) + 20
    psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE, (resource_limit, resource_limit))
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    crowd = [socket.create_connection(address, timeout=60) for _ in range(60)]
    for each in crowd:
        each.close()

    def answers() -> bool:
        try:
            return post(url).status_code == 200
        except httpx.TransportError:
            return False

    eventually(answers, "an answer")
    stop(process)
