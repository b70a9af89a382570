"""Clients that are slow, on purpose or not: each has its time, and together they keep nobody else out."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading

import httpx
import pytest

from lpx.server import http_protocol
from lpx.server.settings import ServerSettings
from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import PATIENCE_S, eventually

POST = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has ended it; what it sent before is dropped."""
    try:
        while select.select([connection], [], [], 0)[0]:
            if not connection.recv(65536):
                return True
    except ConnectionError:
        return True
    return False


def test_a_body_that_drips_is_given_up(start_server: StartServer) -> None:
    """Each piece comes in time, but all of it would take forever."""
    server = start_server(settings=ServerSettings(body_timeout_s=0.3, min_body_rate=1e6))
    with server.raw(POST + b"100000\r\n\r\n{") as connection:
        with contextlib.suppress(ConnectionError):
            while not select.select([connection], [], [], 0.01)[0]:
                connection.sendall(b" ")
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_a_body_that_comes_at_a_fair_pace_is_waited_for(start_server: StartServer) -> None:
    server = start_server(settings=ServerSettings(body_timeout_s=30, min_body_rate=1))
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    with server.raw(POST + b"%d\r\n\r\n" % len(body)) as connection:
        for byte in body:
            connection.sendall(bytes([byte]))
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_a_body_that_nobody_asked_for_is_not_received_forever(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "UNREAD_BODY_S", 0.1)
    server = start_server(settings=ServerSettings(api_keys=("sk-test-key-0123456789",)))
    with server.raw(POST + b"1000000\r\n\r\n{") as connection:
        assert connection.recv(12) == b"HTTP/1.1 401"

        def refused_more() -> bool:
            try:
                connection.sendall(b" ")  # it does not fall idle
            except ConnectionError:
                return True
            return is_closed(connection)

        eventually(refused_more, "the end of the connection")


def test_a_connection_goes_on_after_a_refusal_whose_body_came(start_server: StartServer) -> None:
    server = start_server(settings=ServerSettings(api_keys=("sk-test-key-0123456789",)))
    request = POST + b"2\r\n\r\n{}"
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with server.raw(request + request + last) as connection:
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.count(b"HTTP/1.1 401") == 2
    assert answer.count(b"HTTP/1.1 200") == 1


def test_a_request_behind_another_is_no_body_that_nobody_asked_for(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests at once: the first is answered while the body of the second is on its way."""
    monkeypatch.setattr(http_protocol, "UNREAD_BODY_S", 0.0)
    server = start_server()
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    first = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with server.raw(first + POST + b"%d\r\n\r\n" % len(body) + body[:5]) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert server.get("/health").status_code == 200  # time passes
        connection.sendall(body[5:])
        assert b'"finish_reason"' in connection.recv(65536)


def test_a_head_that_never_ends_is_given_up(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.1)
    server = start_server()
    with server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n") as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_a_reader_that_takes_nothing_is_dropped_and_its_request_ends(start_server: StartServer) -> None:
    executor = FakeExecutor(num_blocks=5000, block_size=64)
    server = start_server(executor, settings=ServerSettings(write_timeout_s=0.2), max_model_len=200_000)
    server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # the system's buffers hold megabytes
    server.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)  # the system would end it, too
    body = json.dumps({"prompt": "a", "n": 8, "stream": True, "max_tokens": None}).encode()
    lazy = socket.socket()
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lazy.connect(("127.0.0.1", server.port))
    lazy.sendall(POST.replace(b"/generate", b"/v1/completions") + b"%d\r\n\r\n" % len(body) + body)
    eventually(lambda: server.idle and server.engine.stats().finished_total["abort"] == 8, "the end of its request")
    assert server.engine.stats().finished_total["length"] == 1  # of the warm-up: it did not run to its end
    eventually(lambda: is_closed(lazy), "the end of the connection")
    lazy.close()


def test_a_newcomer_takes_the_place_of_who_has_waited_longest(start_server: StartServer) -> None:
    server = start_server(settings=ServerSettings(max_connections=5))
    server.client.close()  # its connection counts, too
    idle = [server.raw(b"GET /health HTTP/1.1\r\n" if number % 2 else b"") for number in range(5)]
    with server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as newcomer:
        assert newcomer.recv(100).startswith(b"HTTP/1.1 200")
        eventually(lambda: is_closed(idle[0]), "the end of the oldest")
        assert not any(is_closed(each) for each in idle[2:])
    for each in idle:
        each.close()


def test_a_crowd_of_slow_clients_keeps_nobody_out(start_server: StartServer) -> None:
    server = start_server(settings=ServerSettings(max_connections=20))
    crowd = [server.raw((POST + b"50\r\n\r\n{", POST, b"")[number % 3]) for number in range(200)]
    # On a connection of its own: one that was idle before may be closed for the crowd.
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S, trust_env=False) as newcomer:
        assert newcomer.post("/generate", json={"prompt": "a", "max_tokens": 3}).status_code == 200
    eventually(lambda: sum(map(is_closed, crowd)) >= 180, "the end of most of the crowd")
    for each in crowd:
        each.close()


def test_those_who_are_served_are_not_dropped_for_newcomers(start_server: StartServer) -> None:
    hold = threading.Event()
    executor = FakeExecutor(num_blocks=500, block_size=16, before_step=lambda step: step == 0 or hold.wait(PATIENCE_S))
    server = start_server(executor, settings=ServerSettings(max_connections=3))
    server.client.close()
    served = [server.send_json("/generate", {"prompt": "a", "max_tokens": 3}) for _ in range(3)]
    eventually(lambda: server.engine.stats().running + server.engine.stats().waiting == 3, "three requests")
    with server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as newcomer:
        assert newcomer.recv(100).startswith(b"HTTP/1.1 503")
    hold.set()
    for connection in served:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        connection.close()


def test_peers_that_are_gone_are_noticed_by_the_system() -> None:
    """Nobody answers for a machine without power: the kernel has to ask."""
    from lpx.server.listen import bind_socket

    with bind_socket("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()) as client:
        listener.setblocking(True)
        served, _ = listener.accept()
        with served:
            assert served.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
        client.close()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/stream HTTP/1.1\r\nContent-Length: 2",
        b"GET /v1/stream HTTP/1.1\r\nTransfer-Encoding: chunked",
        b"POST /v1/stream HTTP/1.1\r\nContent-Length: 2",
        b"POST /health HTTP/1.1",
    ],
    ids=["length", "chunked", "post", "elsewhere"],
)
def test_a_handshake_that_cannot_be_answered_is_refused(start_server: StartServer, head: bytes) -> None:
    """uvicorn would keep such a connection without a word, and nothing would time it out."""
    upgrade = (
        b"\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with start_server().raw(head + upgrade) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
        eventually(lambda: is_closed(connection), "the end of the connection")
