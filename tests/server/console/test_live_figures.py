"""The counters behind the live view, and the measured limit."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lpx.server import read_limit
from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import PATIENCE_S, LiveServer, eventually, reset
from tests.server.test_speculation import with_drafts


def live(server: LiveServer) -> dict[str, Any]:
    response = server.get("/console/live")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    body: dict[str, Any] = response.json()
    return body


def wait_for(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S)


def test_counters_follow_the_requests(start_server: StartServer) -> None:
    server = with_drafts(start_server)
    before = live(server)
    answer = server.post("/generate", {"prompt": "abcabcabc", "max_tokens": 15}).json()
    server.post("/generate", {"prompt": "abcabcabc", "max_tokens": 15, "speculative": "off"})
    after = live(server)

    def gained(name: str) -> float:
        return float(after[name] - before[name])

    assert gained("generation_tokens_total") == 30
    assert gained("prompt_tokens_total") == 18
    assert gained("prefix_cache_hits_total") == 8
    assert gained("drafted_tokens_total") == answer["timings"]["drafted_tokens"]
    assert gained("accepted_tokens_total") == answer["timings"]["accepted_tokens"] > 0
    assert after["decode_step"]["count_total"] > before["decode_step"]["count_total"] + 15
    assert after["decode_step"]["seconds_total"] > before["decode_step"]["seconds_total"]
    assert gained("time_s") > 0
    assert after["first_token"]["count_total"] == before["first_token"]["count_total"] + 2
    assert after["first_token"]["seconds_total"] > before["first_token"]["seconds_total"]
    assert set(after["between_tokens"]) == {"count_total", "seconds_total"}
    assert after["memory_bytes"] > 10 << 20
    assert after["limit"] is None
    assert (after["running"], after["waiting"], after["kv_usage"]) == (0, 0, 0.0)


def test_gauges_show_what_runs_and_waits(start_server: StartServer) -> None:
    server = start_server(max_num_seqs=1)
    body = {"prompt": "x", "max_tokens": 240, "stream": True}
    connections = [server.send_json("/generate", body) for _ in range(3)]
    eventually(lambda: live(server)["waiting"] > 0, "a request that waits")
    for connection in connections:
        reset(connection)
    eventually(lambda: live(server)["running"] == live(server)["kv_usage"] == 0, "an idle engine")


def test_looking_wakes_nothing(start_server: StartServer) -> None:
    executor = FakeExecutor(num_blocks=256, block_size=4)
    server = start_server(executor)
    steps = len(executor.steps)
    commands = server.engine._commands  # type: ignore[union-attr]  # what the engine thread sleeps on
    for _ in range(20):
        live(server)
        assert commands.empty()
    assert len(executor.steps) == steps


def test_nothing_is_measured_beside_requests(start_server: StartServer) -> None:
    go_on = threading.Event()
    executor = FakeExecutor(
        num_blocks=256, block_size=4, before_step=lambda step: None if step < 2 else wait_for(go_on)
    )
    server = start_server(executor)
    connection = server.send_json("/generate", {"prompt": "x", "max_tokens": 9, "stream": True})
    eventually(lambda: live(server)["running"] == 1, "a request that runs")
    refused = server.post("/console/limit", {})
    go_on.set()
    connection.close()
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "busy"


def test_measured_limit_is_the_best_so_far(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = iter([20e9, 30e9, 25e9])
    monkeypatch.setattr(read_limit, "_bandwidth", lambda info: next(measured))
    server = start_server()
    answers = [server.post("/console/limit", {}).json()["bytes_per_second"] for _ in range(3)]
    assert answers == [20e9, 30e9, 30e9]
    limit = live(server)["limit"]
    assert limit["tokens_per_second"] == 30e9 / live(server)["bytes_per_token"]


def test_a_limit_that_cannot_be_measured_says_why(start_server: StartServer) -> None:
    server = start_server()
    error = server.post("/console/limit", {}).json()["error"]
    assert error["code"] == "not_available"
    assert "'fake'" in error["message"]
    assert live(server)["limit"] is None
    assert server.post("/console/limit", {}).status_code == 503  # and may be tried again


def test_only_an_empty_json_object_measures(start_server: StartServer) -> None:
    server = start_server()
    assert (
        server.client.post("/console/limit", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    )
    assert server.post("/console/limit", {"seconds": 9}).json()["error"]["param"] == "seconds"
    assert server.get("/console/limit").status_code == 405
