"""Clients that go away: whatever they waited for ends, and its blocks return."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer, eventually, reset

ENDLESS: dict[str, Any] = {"max_tokens": None, "ignore_eos": True}
BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"prompt": "x" * 40, **ENDLESS},
    "/v1/completions": {"prompt": ["x" * 40, "y"], "n": 2, **ENDLESS},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x" * 40}], "n": 4, **ENDLESS},
}


class Brake:
    """Holds the engine before each step until `tokens` are given out; `off` lets it run."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(1)  # the warm-up token's step
        self._off = False

    def __call__(self, step: int) -> None:
        if not self._off:
            assert self._permits.acquire(timeout=30)

    def give(self, steps: int) -> None:
        self._permits.release(steps)

    def off(self) -> None:
        self._off = True
        self._permits.release(1)


@pytest.mark.parametrize("leave", [reset, lambda connection: connection.close()], ids=["RST", "FIN"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", BODIES)
def test_request_ends_when_its_client_leaves_while_it_runs(
    start_server: StartServer, path: str, stream: bool, leave: Any
) -> None:
    # The context is so long that the request cannot end by itself in the time of the test.
    server = start_server(FakeExecutor(num_blocks=5000, block_size=64), max_model_len=200_000)
    connection = server.send_json(path, {**BODIES[path], "stream": stream})
    eventually(lambda: server.engine.stats().generation_tokens_total > 10, "generation")
    leave(connection)
    eventually(lambda: server.idle, "an idle engine")
    assert server.engine.stats().finished_total["abort"] > 0
    assert server.engine.stats().finished_total["length"] == 1  # the warm-up token, and nothing else


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_request_ends_when_its_client_leaves_during_prefill(start_server: StartServer, stream: bool) -> None:
    brake = Brake()
    server = start_server(
        FakeExecutor(num_blocks=200, block_size=4, before_step=brake), max_model_len=500, max_num_batched_tokens=8
    )
    connection = server.send_json("/generate", {"prompt": "x" * 400, "stream": stream, **ENDLESS})
    brake.give(3)
    eventually(lambda: server.engine.stats().steps_total == 4, "three chunks of the prompt")
    assert server.engine.stats().running == 1
    reset(connection)
    eventually(lambda: len(server.app.state.service.active) == 0, "the server's notice")
    brake.off()
    eventually(lambda: server.idle, "an idle engine")
    assert server.engine.stats().generation_tokens_total == 1  # of the warm-up


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_request_ends_when_its_client_leaves_in_the_queue(start_server: StartServer, stream: bool) -> None:
    brake = Brake()
    server = start_server(FakeExecutor(num_blocks=64, before_step=brake), max_num_seqs=1)
    first = server.send_json("/generate", {"prompt": "first", "max_tokens": 5})
    eventually(lambda: server.engine.stats().running == 1, "the first request to run")
    waiting = server.send_json("/generate", {"prompt": "second", "stream": stream, **ENDLESS})
    eventually(lambda: server.engine.stats().waiting == 1, "the second request to wait")
    reset(waiting)
    eventually(lambda: len(server.app.state.service.active) == 1, "the server's notice")
    brake.off()
    eventually(lambda: server.idle, "an idle engine")
    assert first.recv(65536).startswith(b"HTTP/1.1 200")
    first.close()
    stats = server.engine.stats()
    assert stats.generation_tokens_total == 1 + 5
    assert stats.finished_total["abort"] == 1


def test_three_hundred_resets_leave_nothing_behind(start_server: StartServer) -> None:
    server = start_server(FakeExecutor(num_blocks=2000, block_size=16), max_model_len=4000, max_num_seqs=16)
    for _ in range(10):
        connections = [
            server.send_json("/v1/completions", {"prompt": "x" * 20, "stream": True, "n": 2, **ENDLESS})
            for _ in range(30)
        ]
        for connection in connections[:16]:
            assert connection.recv(12) == b"HTTP/1.1 200"
        for connection in connections:
            reset(connection)
    eventually(lambda: server.idle, "an idle engine")
    assert server.post("/generate", {"prompt": "a", "max_tokens": 3}).json()["usage"]["completion_tokens"] == 3


def test_client_that_leaves_inside_its_body_harms_nobody(start_server: StartServer) -> None:
    server = start_server()
    head = (
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
    )
    for data in (head, head[:30], b""):
        reset(server.raw(data))
    assert server.post("/generate", {"prompt": "a"}).status_code == 200


def test_slow_reader_does_not_hold_up_others(start_server: StartServer) -> None:
    server = start_server(FakeExecutor(num_blocks=3000, block_size=16), max_model_len=20_000)
    body = {"prompt": "a", "stream": True, "logprobs": 20, "max_tokens": 300}
    slow = server.send_json("/v1/completions", body)  # reads nothing
    assert server.post("/generate", {"prompt": "b", "max_tokens": 50}).status_code == 200
    eventually(lambda: server.engine.stats().running == 0, "the end of the slow reader's request")
    reset(slow)


def test_pipelined_requests_are_answered_in_order(shared_server: LiveServer) -> None:
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with shared_server.raw(one + one + last) as connection:
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.count(b"HTTP/1.1 200") == 3
    assert answer.index(b'"status"') < answer.index(b'"object"')
