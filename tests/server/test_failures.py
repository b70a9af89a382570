"""Errors after a request was accepted: streams get one error event and no happy end, the others a 5xx."""

from __future__ import annotations

import threading
from typing import Any

import openai
import pytest

from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer, eventually, parse_events

POISON = ord("~")
PATHS = ["/generate", "/v1/completions", "/v1/chat/completions"]


def body_for(path: str, text: str, **more: Any) -> dict[str, Any]:
    if path == "/v1/chat/completions":
        return {"messages": [{"role": "user", "content": text}], **more}
    return {"prompt": text, **more}


def failing_server(start_server: StartServer) -> LiveServer:
    """A model that fails on a sequence once it holds a tilde; the sixth token it makes is one."""
    executor = FakeExecutor(
        num_blocks=256,
        block_size=4,
        poisoned=POISON,
        choose=lambda tokens: "~" if 33 in tokens and len(tokens) - tokens.index(33) > 20 else "a",
    )
    return start_server(executor)


@pytest.mark.parametrize("path", PATHS)
def test_error_inside_a_stream_is_its_last_event(start_server: StartServer, path: str) -> None:
    server = failing_server(start_server)
    with server.client.stream("POST", path, json=body_for(path, "!", max_tokens=100, stream=True)) as response:
        response.read()
    assert response.status_code == 200
    *events, last = parse_events(response.content)
    assert events
    assert last["error"]["type"] == "server_error"
    assert set(last) == {"error"}
    assert 'finish_reason":"' not in response.text
    assert "[DONE]" not in response.text
    # The next request is not harmed.
    assert server.post(path, body_for(path, "fine", max_tokens=30)).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_error_of_a_whole_answer_is_a_500(start_server: StartServer, path: str) -> None:
    server = failing_server(start_server)
    response = server.post(path, body_for(path, "!", max_tokens=100))
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert server.post(path, body_for(path, "fine", max_tokens=30)).status_code == 200


def test_one_failing_prompt_ends_the_whole_request(start_server: StartServer) -> None:
    server = failing_server(start_server)
    response = server.post("/v1/completions", {"prompt": ["fine", "!"], "n": 2, "max_tokens": 200})
    assert response.status_code == 500
    *events, last = server.events("/v1/completions", {"prompt": ["fine", "!"], "max_tokens": 200})
    assert set(last) == {"error"}
    assert events


def test_openai_client_raises_on_an_error_event(start_server: StartServer) -> None:
    server = failing_server(start_server)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.APIError):
        for _ in client.completions.create(model="fake", prompt="!", max_tokens=100, stream=True):
            pass


def test_broken_device_ends_streams_with_an_error(start_server: StartServer) -> None:
    server = start_server(FakeExecutor(num_blocks=64, fail_at_step=10), ends_idle=False)
    *events, last = server.events("/v1/completions", {"prompt": "a", "max_tokens": 100})
    assert events
    assert set(last) == {"error"}
    assert "injected" not in last["error"]["message"]
    assert server.get("/health").status_code == 503


def test_parameter_errors_of_streams_come_as_400_before_any_event(shared_server: LiveServer) -> None:
    for path in PATHS:
        response = shared_server.post(path, body_for(path, "a", stream=True, temperature=-1))
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "temperature"


def test_running_requests_may_finish_at_shutdown(start_server: StartServer) -> None:
    started = threading.Event()
    go_on = threading.Event()

    def hold(step: int) -> None:
        if step == 5:
            started.set()
            assert go_on.wait(120)

    server = start_server(FakeExecutor(num_blocks=64, before_step=hold), ends_idle=False)
    connection = server.send_json("/generate", {"prompt": "a", "max_tokens": 20, "stream": True})
    assert started.wait(120)
    server.on_loop(server.app.state.service.stop_accepting)
    server.on_loop(server.server.exit_soon)
    go_on.set()
    answer = b""
    while piece := connection.recv(65536):
        answer += piece
    assert b"[DONE]" in answer
    eventually(lambda: not server.running, "the end of the server")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_runs_after_the_grace_period_is_told_so(start_server: StartServer, stream: bool) -> None:
    server = start_server(FakeExecutor(num_blocks=5000, block_size=64), max_model_len=200_000, ends_idle=False)
    connection = server.send_json("/generate", {"prompt": "a", "max_tokens": None, "stream": stream})
    eventually(lambda: server.engine.stats().generation_tokens_total > 10, "generation")
    server.on_loop(server.server.exit_soon)
    server.on_loop(server.app.state.service.abort_running)
    answer = b""
    while piece := connection.recv(65536):
        answer += piece
    if stream:
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'data: {"error"' in answer
        assert b"[DONE]" not in answer
    else:
        assert answer.startswith(b"HTTP/1.1 503")
    eventually(lambda: not server.running, "the end of the server")


def test_unexpected_errors_tell_nothing(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()

    async def broken(text: str) -> list[int]:
        raise ValueError(f"cannot encode {text}")

    monkeypatch.setattr(server.engine, "encode_prompt", broken)
    response = server.post("/generate", {"prompt": "SECRET-PROMPT"})
    assert response.status_code == 500
    assert "SECRET-PROMPT" not in response.text
    assert "ValueError" not in response.text
    assert "unexpected ValueError" in caplog.text
    assert "SECRET-PROMPT" not in caplog.text
    assert server.get("/health").status_code == 200
