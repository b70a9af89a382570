"""`max_latency_ms` and `priority` over HTTP."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lpx.runtime.step import StepBatch, StepResult
from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import PATIENCE_S, LiveServer, eventually

TOO_SHORT = 0.001  # ms: has passed when the engine takes its first look
ASKS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abc"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}]},
    "/generate": {"prompt": "abc"},
}


@pytest.mark.parametrize("path", ASKS)
def test_answer_ends_with_what_there_is(shared_server: LiveServer, path: str) -> None:
    body = {**ASKS[path], "max_latency_ms": TOO_SHORT}
    answer = shared_server.post(path, body)
    assert answer.status_code == 200
    shaped = answer.json()
    choice = shaped if path == "/generate" else shaped["choices"][0]
    assert choice["finish_reason"] == "timeout"
    assert (choice["message"]["content"] if "message" in choice else choice["text"]) == ""
    assert shaped["usage"]["completion_tokens"] == 0
    *events, done = shared_server.events(path, body)
    assert done == "[DONE]"
    ends = [each for event in events for each in ([event] if path == "/generate" else event["choices"])]
    assert [end["finish_reason"] for end in ends if end.get("finish_reason")] == ["timeout"]


@pytest.mark.parametrize("n", [1, 2])
def test_prompt_that_was_not_scored_in_time_has_no_scores(shared_server: LiveServer, n: int) -> None:
    body = {"prompt": "abc", "echo": True, "logprobs": 1, "n": n, "max_latency_ms": TOO_SHORT}
    for choice in shared_server.post("/v1/completions", body).json()["choices"]:
        assert (choice["text"], choice["finish_reason"]) == ("abc", "timeout")
        assert choice["logprobs"]["token_logprobs"] == [None] * 3
    *events, done = shared_server.events("/v1/completions", body)
    assert done == "[DONE]"
    for index in range(n):
        choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        assert "".join(choice["text"] for choice in choices) == "abc"
        assert [choice["finish_reason"] for choice in choices] == [None, "timeout"]


def test_queue_that_takes_longer_is_429_with_retry_after(start_server: StartServer) -> None:
    gate = threading.Event()
    shut = threading.Event()

    def before_step(_: int) -> None:
        if shut.is_set():
            gate.wait(PATIENCE_S)

    server = start_server(FakeExecutor(num_blocks=256, block_size=4, before_step=before_step))
    engine: Any = server.engine
    scheduler = engine._engine.scheduler
    shut.set()
    held = server.send_json("/generate", {"prompt": "x" * 200, "max_tokens": 1})
    eventually(lambda: scheduler.running, "a prompt that is being computed")
    behind = server.send_json("/generate", {"prompt": "z" * 100, "max_tokens": 1})
    eventually(lambda: engine.stats().waiting, "a prompt that the engine thread has no time for yet")
    for _ in range(20):
        scheduler.pace.observe(0, 100, 1000.0)
    refused = server.post("/v1/completions", {"prompt": "y", "max_latency_ms": 100})
    gate.set()
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "3"  # 300 rows take 3 s, 100 ms are allowed
    error = refused.json()["error"]
    assert error["type"] == "rate_limit_error"
    assert "max_latency_ms is 100" in error["message"]
    for connection in (held, behind):
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.close()
    assert not engine._on_the_way


@pytest.mark.parametrize(
    ("name", "value"), [("priority", 1.5), ("priority", 2**40), ("max_latency_ms", 0), ("max_latency_ms", "9")]
)
def test_wrong_value_is_refused_by_name(shared_server: LiveServer, name: str, value: Any) -> None:
    for path, body in ASKS.items():
        response = shared_server.post(path, {**body, name: value})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == name


def test_lower_priority_value_is_served_first(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    executor = FakeExecutor(num_blocks=256, block_size=4, before_step=lambda step: step == 1 and gate.wait(PATIENCE_S))
    server = start_server(executor, max_num_seqs=1)
    order: list[str] = []
    step = executor.step

    def noting(batch: StepBatch) -> StepResult:
        order.extend(bytes(row.token_ids).decode() for row in batch.sequences)
        return step(batch)

    monkeypatch.setattr(executor, "step", noting)
    engine: Any = server.engine
    held = []
    for number, (text, priority) in enumerate([("runs", 0), ("late", 5), ("usual", 0), ("early", -5)], start=1):
        held.append(server.send_json("/generate", {"prompt": text, "max_tokens": 1, "priority": priority}))
        eventually(lambda number=number: engine.stats().waiting + engine.stats().running == number, "a queued request")
        eventually(lambda: order, "a request that runs")
    gate.set()
    for connection in held:
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.close()
    assert order == ["runs", "early", "usual", "late"]
