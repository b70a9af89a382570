"""`/v1/stream`: generations side by side over one WebSocket, ended one by one or with the connection."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from lpx.server import websocket as module
from lpx.server.settings import ServerSettings
from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import PATIENCE_S, LiveServer, eventually


@contextmanager
def connected(server: LiveServer, **options: Any) -> Iterator[ClientConnection]:
    url = server.url.replace("http", "ws") + "/v1/stream"
    with connect(url, proxy=None, open_timeout=PATIENCE_S, **options) as socket:
        yield socket


def send(socket: ClientConnection, kind: str, name: Any, **fields: Any) -> None:
    socket.send(json.dumps({"type": kind, "id": name, **fields}))


def receive(socket: ClientConnection) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(socket.recv(PATIENCE_S))
    return message


def until_done(socket: ClientConnection, *names: str) -> dict[str, list[dict[str, Any]]]:
    """All messages by generation, until each has ended."""
    messages: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    while any(not got or got[-1]["type"] == "delta" for got in messages.values()):
        message = receive(socket)
        messages[message["id"]].append(message)
    return messages


def text_of(messages: list[dict[str, Any]]) -> str:
    return "".join(message.get("text", "") for message in messages)


SAMPLING: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


def test_generation_and_chat_give_the_texts_of_http(shared_server: LiveServer) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    with connected(shared_server) as socket:
        send(socket, "start", "a", prompt="Hello", **SAMPLING)
        send(socket, "start", "b", messages=messages, **SAMPLING)
        got = until_done(socket, "a", "b")
    plain = shared_server.post("/generate", {"prompt": "Hello", **SAMPLING}).json()
    chat = shared_server.post("/v1/chat/completions", {"messages": messages, **SAMPLING}).json()
    assert text_of(got["a"]) == plain["text"]
    assert [token_id for message in got["a"][:-1] for token_id in message["token_ids"]] == plain["token_ids"]
    assert text_of(got["b"]) == chat["choices"][0]["message"]["content"]
    end = got["a"][-1]
    assert (end["type"], end["finish_reason"], end["stop_reason"]) == ("done", "length", None)
    assert end["usage"]["completion_tokens"] == 12
    assert end["timings"]["completion_tokens"] == 12


def test_many_generations_run_side_by_side(shared_server: LiveServer) -> None:
    with connected(shared_server) as socket:
        names = [f"g{number}" for number in range(20)]
        for number, name in enumerate(names):
            send(socket, "start", name, prompt=f"prompt {number}", **SAMPLING)
        got = until_done(socket, *names)
    for number, name in enumerate(names):
        alone = shared_server.post("/generate", {"prompt": f"prompt {number}", **SAMPLING}).json()
        assert text_of(got[name]) == alone["text"]


def test_a_cancel_right_behind_its_start_ends_it(start_server: StartServer) -> None:
    server = start_server()
    with connected(server) as socket:
        for _ in range(30):  # the same id each time: it is free again
            send(socket, "start", "a", prompt="x", max_tokens=200)
            send(socket, "cancel", "a")
            assert until_done(socket, "a")["a"][-1]["type"] == "done"


def test_cancel_ends_one_generation_only(start_server: StartServer) -> None:
    server = start_server(FakeExecutor(num_blocks=2000), max_model_len=4000)
    with connected(server) as socket:
        send(socket, "start", "long", prompt="a", max_tokens=3000)
        assert receive(socket)["type"] == "delta"
        send(socket, "start", "short", prompt="b", **SAMPLING)
        send(socket, "cancel", "long")
        got = until_done(socket, "long", "short")
        assert got["long"][-1]["finish_reason"] == "cancelled"
        assert got["long"][-1]["usage"]["completion_tokens"] < 3000
        assert got["short"][-1]["finish_reason"] == "length"
        send(socket, "cancel", "long")  # ended: no error
        send(socket, "start", "long", prompt="c", **SAMPLING)  # and its name is free
        assert until_done(socket, "long")["long"][-1]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("{", None),
        ("[]", None),
        ("", None),
        ('{"a":1,"a":2}', "a"),
        ("[" * 1000, None),
        ('{"type":"start"}', "id"),
        ('{"type":"start","id":5}', "id"),
        ('{"type":"start","id":""}', "id"),
        (json.dumps({"type": "start", "id": "x" * 65}), "id"),
        ('{"type":"stop","id":"a"}', "type"),
        ('{"type":"start","id":"a"}', "prompt"),
        ('{"type":"start","id":"a","prompt":"x","temperature":-1}', "temperature"),
        ('{"type":"start","id":"a","prompt":"x","model":"other"}', "model"),
        ('{"type":"start","id":"a","messages":[]}', "messages"),
        ('{"type":"start","id":"a","messages":[{"role":"user","content":"x"}],"n":2}', "n"),
        (json.dumps({"type": "start", "id": "a", "prompt": "x" * 300}), "prompt"),
        (b"\x00\xff", None),
    ],
)
def test_a_bad_message_is_an_error_and_not_the_end(
    shared_server: LiveServer, message: str | bytes, param: str | None
) -> None:
    with connected(shared_server) as socket:
        socket.send(message)
        error = receive(socket)
        assert (error["type"], error["error"]["param"]) == ("error", param)
        assert error["status"] in (400, 404)
        send(socket, "start", "a", prompt="Hello", **SAMPLING)
        assert until_done(socket, "a")["a"][-1]["type"] == "done"


def test_an_id_is_one_generation_at_a_time(start_server: StartServer) -> None:
    server = start_server(FakeExecutor(num_blocks=2000), max_model_len=4000)
    with connected(server) as socket:
        send(socket, "start", "a", prompt="a", max_tokens=3000)
        send(socket, "start", "a", prompt="b")
        while (message := receive(socket))["type"] != "error":
            assert message["type"] == "delta"
        assert message["error"]["param"] == "id"


def test_the_number_of_generations_is_bounded(start_server: StartServer) -> None:
    go_on = threading.Event()
    executor = FakeExecutor(num_blocks=400, before_step=lambda step: step == 0 or go_on.wait(PATIENCE_S))
    server = start_server(executor)
    with connected(server) as socket:
        for number in range(module.MAX_GENERATIONS + 1):
            send(socket, "start", str(number), prompt="a", max_tokens=1)
        error = receive(socket)
        assert (error["id"], error["status"]) == (str(module.MAX_GENERATIONS), 429)
        go_on.set()
        until_done(socket, *map(str, range(module.MAX_GENERATIONS)))


def test_disconnect_ends_everything(start_server: StartServer) -> None:
    server = start_server(FakeExecutor(num_blocks=4000), max_model_len=8000)
    with connected(server) as socket:
        for number in range(5):
            send(socket, "start", str(number), prompt="a", max_tokens=7000)
        begun: set[str] = set()
        while len(begun) < 5:
            begun.add(receive(socket)["id"])
    eventually(lambda: server.idle, "an idle engine")
    assert server.engine is not None
    assert server.engine.stats().finished_total["abort"] == 5  # type: ignore[union-attr]


def test_a_message_beyond_the_limit_closes_the_connection(start_server: StartServer) -> None:
    server = start_server(settings=ServerSettings(max_body_bytes=1000))
    with connected(server) as socket:
        send(socket, "start", "a", prompt="x" * 2000)
        with pytest.raises(ConnectionClosed) as caught:
            receive(socket)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1009


def test_a_client_that_reads_nothing_is_cut_off(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lpx.server")
    monkeypatch.setattr(module, "SEND_TIMEOUT_S", 0.5)
    server = start_server(FakeExecutor(num_blocks=40_000, choose=lambda tokens: "x"), max_model_len=150_000)
    logprobs = {"logprobs": 20, "max_tokens": 140_000, "prompt": "a"}
    with connected(server, max_queue=1) as socket:
        for number in range(4):
            send(socket, "start", str(number), **logprobs)
        eventually(lambda: server.engine.stats().running > 0, "generations")  # type: ignore[union-attr]
        eventually(lambda: server.idle, "the end of what nobody reads")
    assert "was cut off" in caplog.text


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_pages_of_other_origins_may_not_connect(shared_server: LiveServer, origin: str) -> None:
    with pytest.raises(InvalidStatus) as caught, connected(shared_server, origin=origin):
        pass
    assert caught.value.response.status_code == 403


def test_the_page_of_the_server_itself_may_connect(shared_server: LiveServer) -> None:
    with connected(shared_server, origin=shared_server.url) as socket:
        send(socket, "start", "a", prompt="Hello", **SAMPLING)
        until_done(socket, "a")


def test_foreign_host_names_are_refused(shared_server: LiveServer) -> None:
    with (
        pytest.raises(InvalidStatus) as caught,
        connected(shared_server, additional_headers={"Host": "evil.example"}),
    ):
        pass
    assert caught.value.response.status_code == 403


def test_an_engine_that_fails_is_an_error_of_each_generation(start_server: StartServer) -> None:
    server = start_server(FakeExecutor(num_blocks=64, fail_at_step=4), ends_idle=False)
    with connected(server) as socket:
        send(socket, "start", "a", prompt="a", max_tokens=50)
        got = until_done(socket, "a")["a"]
        assert (got[-1]["type"], got[-1]["status"]) == ("error", 503)
        assert "injected" not in json.dumps(got)
        send(socket, "start", "b", prompt="a")
        assert until_done(socket, "b")["b"][-1]["status"] == 503
