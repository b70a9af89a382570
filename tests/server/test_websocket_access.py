"""Keys and limits over a real WebSocket, which outlives many generations."""

from __future__ import annotations

import base64
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from lpx.server.settings import ServerSettings
from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import PATIENCE_S, LiveServer, eventually
from tests.server.test_websocket import connected, receive, send, until_done

ALICE = "sk-alice-0123456789"
BEARER = {"additional_headers": {"authorization": f"Bearer {ALICE}"}}


def keyed(start_server: StartServer, tmp_path: Path, limits: str, **options: Any) -> LiveServer:
    path = tmp_path / "keys"
    path.write_text(f"alice:{ALICE} {limits}\n")
    return start_server(settings=ServerSettings(api_key_file=path), **options)


def test_a_key_opens_it_and_nothing_else_does(start_server: StartServer, tmp_path: Path) -> None:
    server = keyed(start_server, tmp_path, "")
    for options in ({}, {"additional_headers": {"authorization": "Bearer wrong"}}, {"subprotocols": ["lpx.v1"]}):
        with pytest.raises(InvalidStatus) as caught, connected(server, **options):
            pass
        assert caught.value.response.status_code == 401
    encoded = base64.urlsafe_b64encode(ALICE.encode()).decode().rstrip("=")
    protocols = [Subprotocol("lpx.v1"), Subprotocol(f"lpx.key.{encoded}")]
    for options in (BEARER, {"additional_headers": {"x-api-key": ALICE}}, {"subprotocols": protocols}):
        with connected(server, **options) as socket:
            send(socket, "start", "a", prompt="Hello", max_tokens=3)
            assert until_done(socket, "a")["a"][-1]["finish_reason"] == "length"
    assert socket.subprotocol == "lpx.v1"


def test_a_browser_session_opens_it_from_its_own_page_only(start_server: StartServer, tmp_path: Path) -> None:
    server = keyed(start_server, tmp_path, "")
    cookie = server.post("/login", {"key": ALICE}).headers["set-cookie"].partition(";")[0]
    with connected(server, additional_headers={"cookie": cookie, "origin": server.url}) as socket:
        send(socket, "start", "a", prompt="Hello", max_tokens=3)
        until_done(socket, "a")
    foreign = {"cookie": cookie, "origin": "http://localhost:3000"}
    with pytest.raises(InvalidStatus) as caught, connected(server, additional_headers=foreign):
        pass
    assert caught.value.response.status_code == 403


def test_each_generation_counts_as_a_request_and_is_given_back(start_server: StartServer, tmp_path: Path) -> None:
    hold = threading.Event()
    executor = FakeExecutor(num_blocks=256, block_size=4, before_step=lambda step: step == 0 or hold.wait(PATIENCE_S))
    server = keyed(start_server, tmp_path, "max_concurrent_requests=1", executor=executor)
    with connected(server, **BEARER) as socket:
        send(socket, "start", "a", prompt="Hello", max_tokens=3)
        eventually(lambda: server.engine.stats().running == 1, "the first generation")
        send(socket, "start", "b", prompt="Hello", max_tokens=3)
        refused = receive(socket)
        assert (refused["id"], refused["status"], refused["error"]["code"]) == ("b", 429, "rate_limit_exceeded")
        hold.set()
        until_done(socket, "a")
        for name in ("c", "d"):
            send(socket, "start", name, prompt="Hello", max_tokens=3)
            assert until_done(socket, name)[name][-1]["type"] == "done"


@pytest.mark.parametrize(
    ("limit", "fields", "status"),
    [
        ("max_body_bytes=100", {"prompt": "x" * 200}, 413),
        ("max_prompt_tokens=5", {"prompt": "x" * 6}, 400),
        ("max_output_tokens=5", {"prompt": "x", "max_tokens": 6}, 400),
    ],
)
def test_sizes_are_those_of_the_key(
    start_server: StartServer, tmp_path: Path, limit: str, fields: dict[str, Any], status: int
) -> None:
    server = keyed(start_server, tmp_path, limit)
    with connected(server, **BEARER) as socket:
        send(socket, "start", "a", **fields)
        assert receive(socket)["status"] == status
        send(socket, "start", "b", prompt="x", max_tokens=2)
        assert until_done(socket, "b")["b"][-1]["type"] == "done"


def test_a_refusal_is_no_error_in_the_log(
    start_server: StartServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = keyed(start_server, tmp_path, "")
    for headers in ({}, {"authorization": "Bearer wrong"}, {"origin": "https://evil.example"}, {"host": "evil"}):
        with pytest.raises(InvalidStatus), connected(server, additional_headers=headers):
            pass
    eventually(lambda: not server.server.server_state.tasks, "the end of all of them")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
