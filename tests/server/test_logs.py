"""What the logs say about requests, and what they never say."""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path

import httpx
import pytest

import lpx
from lpx.errors import ConfigError
from lpx.server.log_format import JsonFormatter, ReadableFormatter
from lpx.server.settings import ServerSettings
from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer, eventually, reset
from tests.server.server_process import Process

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


def test_json_logs_have_one_object_a_line_and_no_secret(start: type[Process]) -> None:
    process = start(0, "ok", settings={"log_format": "json", "api_keys": [KEY + "-0123456789"]})
    url = process.wait_ready()
    bearer = {"authorization": f"Bearer {KEY}-0123456789"}
    body = {"prompt": PROMPT, "max_tokens": 5}
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        answer = client.post("/v1/completions", json=body, headers={**bearer, "x-request-id": "mine-2"}).json()
        client.post("/v1/completions", json={"prompt": PROMPT, "n": 0}, headers=bearer)
        client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {KEY}"})
        client.post("/login", data={"key": KEY})
        client.get(f"/v1/models/{PROMPT}?key={KEY}", headers=bearer)
    process.process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    records = [json.loads(line) for line in process.log.splitlines()]
    assert all({"time", "level", "logger"} <= set(record) for record in records)
    [request] = [record for record in records if record.get("event") == "request"]
    assert request["id"] == answer["id"]
    assert request["request_id"] == "mine-2"
    assert request["key"].startswith("key-")
    assert (request["model"], request["endpoint"], request["status"]) == ("fake", "/v1/completions", 200)
    assert (request["prompt_tokens"], request["completion_tokens"], request["finish"]) == (len(PROMPT), 5, "length:1")
    assert request["ttft_ms"] >= 0
    assert request["stream"] is False
    refused = [
        (record["endpoint"], record["status"], record["key"])
        for record in records
        if record.get("event") == "refused" and record["endpoint"] != "none"
    ]
    assert refused == [
        ("/v1/completions", 400, request["key"]),
        ("/v1/completions", 401, None),
        ("/login", 401, None),
    ]
    assert PROMPT not in process.log
    assert KEY not in process.log


def test_access_lines_leave_out_what_was_put_into_the_url(start: type[Process]) -> None:
    process = start(0, "ok", "127.0.0.1", "access")
    url = process.wait_ready()
    httpx.get(f"{url}/health?key={KEY}&prompt={PROMPT}", trust_env=False)
    eventually(lambda: "GET /health" in process.log, "the access line")
    process.process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert KEY not in process.log
    assert PROMPT not in process.log


@pytest.mark.parametrize("formatter", [ReadableFormatter(), JsonFormatter()])
def test_errors_are_logged_without_the_folders_of_this_machine(formatter: logging.Formatter) -> None:
    try:
        ServerSettings(log_format="xml")
    except ConfigError:
        error = sys.exc_info()
    line = formatter.format(logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), error))
    assert "lpx/server/settings.py:" in line
    assert "ConfigError: log_format 'xml' is not known" in line
    assert str(Path(__file__).parents[2]) not in line
    assert str(Path(lpx.__file__).parent) not in line


def test_json_lines_survive_whatever_stands_in_a_message() -> None:
    formatter = JsonFormatter()
    try:
        raise ValueError("a\nb\u2028 \ud800")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "two\nlines %s", ("\ud800\u2028",), error)
    line = formatter.format(record)
    assert "\n" not in line
    assert line.isascii()
    assert json.loads(line)["message"] == "two\nlines \ud800\u2028"
