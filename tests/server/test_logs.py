"""What the logs say about requests, and what they never say."""

from __future__ import annotations

import logging

import pytest

from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer, eventually, reset

PROMPT = "PROMPT-MARKER"
KEY = "sk-KEY-MARKER"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "lpx.server.requests"]


def test_one_line_a_request_with_ids_counts_and_times(
    shared_server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for stream in (False, True):
        caplog.clear()
        body = {"prompt": PROMPT, "max_tokens": 5, "stream": stream}
        response = shared_server.post("/v1/completions", body, headers={"x-request-id": "mine-1"})
        assert response.headers["x-request-id"] == "mine-1"
        eventually(lambda: lines(caplog), "a log line")
        [line] = lines(caplog)
        for part in (
            "id=cmpl-",
            "request_id=mine-1",
            "endpoint=/v1/completions",
            "model=fake",
            "status=200",
            "finish=length:1",
            f"prompt_tokens={len(PROMPT)}",
            "cached_tokens=",
            "completion_tokens=5",
            "ttft_ms=",
        ):
            assert part in line


@pytest.mark.parametrize("request_id", ["a b", "x" * 65, "a\tb", "x;y", "", "é"])
def test_unsafe_request_ids_are_not_taken(shared_server: LiveServer, request_id: str) -> None:
    headers = {"x-request-id": request_id.encode()}
    response = shared_server.client.post("/generate", json={"prompt": "a", "max_tokens": 1}, headers=headers)
    assert response.headers["x-request-id"] == response.json()["id"]


def test_neither_prompts_nor_keys_reach_the_logs(start_server: StartServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    server = start_server()
    headers = {"authorization": f"Bearer {KEY}"}
    chat = {"messages": [{"role": "user", "content": PROMPT}]}
    bodies: list[tuple[str, object]] = [
        ("/generate", {"prompt": PROMPT}),
        ("/v1/completions", {"prompt": [PROMPT], "stream": True}),
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", {**chat, "stop": PROMPT, "user": PROMPT}),
        ("/v1/completions", {"prompt": {"x": PROMPT}}),
        ("/v1/completions", {"prompt": PROMPT, "model": PROMPT}),
        ("/v1/completions", {"prompt": PROMPT * 100}),
        (f"/v1/{PROMPT}", {}),
    ]
    for path, body in bodies:
        server.client.post(path, json=body, headers=headers)
    server.client.post("/generate", content=b'{"prompt": "' + PROMPT.encode(), headers=headers)
    answer = server.raw(f"GET /{PROMPT} HTTP/9.9\r\n{KEY}\r\n\r\n".encode())
    assert answer.recv(12).startswith(b"HTTP/1.1 400")
    answer.close()
    reset(server.send_json("/generate", {"prompt": PROMPT, "max_tokens": None, "stream": True}))
    eventually(lambda: server.idle and len(lines(caplog)) >= 5, "the end of the requests")
    records = [
        record.getMessage() + str(record.exc_text or "")
        for record in caplog.records
        if not record.name.startswith(("httpx", "httpcore"))
    ]
    assert not [text for text in records if PROMPT in text or KEY in text]
