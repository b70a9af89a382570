"""The process: it takes the port first, says when it is ready, and ends cleanly."""

from __future__ import annotations

import os
import signal
import socket
import subprocess

import httpx
import psutil
import pytest

from lpx.errors import ConfigError
from lpx.server.listen import PortInUseError, bind_socket, is_loopback
from tests.server.live_server import eventually
from tests.server.server_process import Process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_an_idle_server_with_code_0(start: type[Process], number: signal.Signals) -> None:
    process = start(0, "ok")
    url = process.wait_ready()
    assert httpx.post(url + "/generate", json={"prompt": "a"}, trust_env=False).status_code == 200
    process.process.send_signal(number)
    assert process.wait() == 0
    assert "ready on http://127.0.0.1:" in process.log
    assert "Traceback" not in process.log


def test_signal_lets_running_requests_finish(start: type[Process]) -> None:
    process = start(0, "ok")
    url = process.wait_ready()
    body = {"prompt": "a", "max_tokens": 400, "stream": True}
    with httpx.stream("POST", url + "/generate", json=body, trust_env=False, timeout=60) as response:
        pieces = response.iter_bytes()
        data = next(pieces)
        process.process.send_signal(signal.SIGTERM)
        data += b"".join(pieces)
    assert data.endswith(b"data: [DONE]\n\n")
    assert process.wait() == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(url + "/health", trust_env=False)


def test_requests_beyond_the_grace_period_are_told_and_the_code_is_0(start: type[Process]) -> None:
    process = start(0, "slow")
    url = process.wait_ready()
    body = {"prompt": "a", "max_tokens": None, "stream": True}
    with httpx.stream("POST", url + "/generate", json=body, trust_env=False, timeout=60) as response:
        pieces = response.iter_bytes()
        data = next(pieces)
        process.process.send_signal(signal.SIGTERM)
        data += b"".join(pieces)
    assert b'data: {"error"' in data
    assert b"[DONE]" not in data
    assert process.wait() == 0


def test_second_signal_ends_at_once(start: type[Process]) -> None:
    process = start(0, "ok")
    url = process.wait_ready()
    with httpx.stream(
        "POST", url + "/generate", json={"prompt": "a", "max_tokens": None, "stream": True}, trust_env=False
    ) as response:
        next(response.iter_bytes())
        process.process.send_signal(signal.SIGTERM)
        eventually(lambda: "no new requests" in process.log, "the notice")
        process.process.send_signal(signal.SIGINT)
        assert process.wait() == 0


def test_signal_while_loading_ends_at_once_with_code_0(start: type[Process]) -> None:
    process = start(0, "hang")
    response = httpx.get(process.url + "/health", trust_env=False)
    assert response.status_code == 503
    assert response.json()["status"] == "loading"
    process.process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


def test_load_failure_ends_with_its_message_and_code(start: type[Process]) -> None:
    process = start(0, "fail")
    assert process.wait() == 1
    assert "error[LPX-E030]: the model needs 900 GB and this machine has 2 GB" in process.log
    assert "Traceback" not in process.log
    crashed = start(0, "crash")
    assert crashed.wait() == 1
    assert "error[LPX-E001]: the model could not be loaded: KeyError" in crashed.log


def test_busy_port_ends_at_once_and_names_the_holder(start: type[Process]) -> None:
    with bind_socket("127.0.0.1", 0) as holder:
        port = holder.getsockname()[1]
        process = start(port, "hang")  # would take a minute to load
        assert process.wait() == 1
    assert f"port {port} on 127.0.0.1 is in use by process {os.getpid()} ({psutil.Process().name()})" in process.log
    assert "ready" not in process.log


def test_second_server_cannot_take_a_port_that_is_only_bound() -> None:
    with bind_socket("127.0.0.1", 0) as first, pytest.raises(PortInUseError):
        bind_socket("127.0.0.1", first.getsockname()[1])


def test_port_is_free_again_right_after_a_server_with_connections() -> None:
    first = bind_socket("127.0.0.1", 0)
    port = first.getsockname()[1]
    client = socket.create_connection(("127.0.0.1", port))
    first.setblocking(True)
    served, _ = first.accept()
    served.close()  # the server's side closes first, and keeps the port in TIME_WAIT
    client.close()
    first.close()
    bind_socket("127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_host_that_others_reach_is_refused_without_keys(start: type[Process], host: str) -> None:
    process = start(0, "ok", host)
    assert process.wait() == 2
    assert "--insecure-no-auth" in process.log


def test_host_that_others_reach_is_allowed_on_demand(start: type[Process]) -> None:
    process = start(0, "ok", "0.0.0.0", "insecure")
    process.wait_ready()
    assert "no API keys" in process.log
    process.process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


def test_hosts_and_ports_that_cannot_be_used() -> None:
    for host, port in (("no-such-host.invalid", 0), ("127.0.0.1", 70_000), ("203.0.113.1", 0), ("a" * 300, 0)):
        with pytest.raises(ConfigError):
            bind_socket(host, port)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_loopback_hosts(host: str) -> None:
    with bind_socket(host, 0) as listener:
        assert is_loopback(listener)


def test_idle_server_uses_no_cpu(start: type[Process]) -> None:
    process = start(0, "ok")
    process.wait_ready()
    watched = psutil.Process(process.process.pid)
    before = watched.cpu_times()
    with pytest.raises(subprocess.TimeoutExpired):
        process.process.wait(2)
    after = watched.cpu_times()
    assert after.user + after.system - before.user - before.system < 0.1
