"""Who is let in: every route needs a key once keys are set, whatever kind it is and however it is asked for.

docs/safety.md lists which public failure cases are covered, and where.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute

from lpx.server.access import ADMIN_PREFIX, PUBLIC_PATHS
from lpx.server.app import ROUTES, create_app
from lpx.server.settings import Cors, ServerSettings
from tests.server.app_routes import Found, all_routes
from tests.server.conftest import StartServer, fake_engine
from tests.server.live_server import LiveServer

KEY = "sk-test-key-0123456789"
WRONG = "sk-test-key-0123456788"
BEARER = {"authorization": f"Bearer {KEY}"}
# Written out here too: whoever opens a route to everybody has to say so twice.
OPEN_TO_ALL = {"/health", "/health/live", "/health/ready", "/login"}


@pytest.fixture(scope="module")
def guarded() -> Any:
    server = LiveServer(fake_engine(), ServerSettings(api_keys=(KEY, "sk-another-key-000000000")))
    yield server
    server.close()


def unauthorized(response: httpx.Response) -> None:
    assert response.status_code == 401, (response.request.url, response.status_code, response.text)
    if response.request.method != "HEAD":
        error = response.json()["error"]
        assert error["type"] == "authentication_error"
    assert response.headers["www-authenticate"] == "Bearer"
    for key in (KEY, WRONG, "0123456789"):
        assert key not in response.text


def websocket_answer(app: FastAPI, path: str, *, subprotocols: tuple[str, ...] = (), **headers: str) -> list[Any]:
    """What an application sends for a WebSocket handshake; the client leaves as soon as it is accepted."""
    sent: list[Any] = []
    arriving = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]
    scope = {
        "type": "websocket",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "ws",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "headers": [(b"host", b"localhost")] + [(name.encode(), value.encode()) for name, value in headers.items()],
        "subprotocols": list(subprotocols),
        "extensions": {"websocket.http.response": {}},
        "state": {},
    }

    async def receive() -> Any:
        return arriving.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent


def is_401(sent: list[Any]) -> bool:
    return sent[0]["type"] == "websocket.http.response.start" and sent[0]["status"] == 401


# --- the rule over all routes -------------------------------------------------------------------------------------


def test_every_route_is_classified(guarded: LiveServer) -> None:
    assert {route.path for route in all_routes(guarded.app)} == set(ROUTES)


def test_the_public_list_is_the_one_that_was_agreed_on() -> None:
    assert PUBLIC_PATHS == OPEN_TO_ALL
    assert {path for path, kind in ROUTES.items() if kind == "public"} <= OPEN_TO_ALL


def assert_guarded(server: LiveServer, route: Found) -> None:
    """Without a key, 401; with a wrong one, 401; with the right one, whatever the route says."""
    if route.kind == "websocket":
        assert is_401(websocket_answer(server.app, route.example))
        assert is_401(websocket_answer(server.app, route.example, authorization=f"Bearer {WRONG}"))
        assert not is_401(websocket_answer(server.app, route.example, **BEARER))
        return
    for method in sorted({*route.methods, "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"}):
        unauthorized(server.client.request(method, route.example))
        unauthorized(server.client.request(method, route.example, headers={"authorization": f"Bearer {WRONG}"}))
        assert server.client.request(method, route.example, headers=BEARER).status_code != 401


def test_every_route_needs_a_key(guarded: LiveServer) -> None:
    routes = all_routes(guarded.app)
    assert len(routes) >= 8
    for route in routes:
        if route.path not in OPEN_TO_ALL:
            assert_guarded(guarded, route)


def test_what_admins_may_is_refused_to_others(guarded: LiveServer) -> None:
    """By path, too: what nobody has thought of yet under /admin/ needs an admin key from the start."""
    assert {path for path, kind in ROUTES.items() if kind == "admin"} == {
        path for path in ROUTES if path.startswith(ADMIN_PREFIX)
    }
    paths = [route.example for route in all_routes(guarded.app) if ROUTES[route.path] == "admin"]
    for path in (*paths, "/admin/later"):
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
            assert guarded.client.request(method, path, headers=BEARER).status_code == 403
    assert len(paths) >= 1


def test_routes_that_come_later_need_a_key_too(start_server: StartServer) -> None:
    """WebSockets, sub-applications and files among them: the guard stands before routing."""
    server = start_server(settings=ServerSettings(api_keys=(KEY,)))
    inner = Starlette(routes=[Route("/page", PlainTextResponse("secret"))])

    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    server.app.router.routes.append(Route("/new", PlainTextResponse("secret")))
    server.app.router.routes.append(WebSocketRoute("/v1/new-stream", echo))
    server.app.router.routes.append(Mount("/console", inner))
    added = [route for route in all_routes(server.app) if route.path not in ROUTES]
    assert {route.path for route in added} == {"/new", "/v1/new-stream", "/console/{path:path}", "/console/page"}
    for route in added:
        assert_guarded(server, route)
    assert server.get("/console/page", headers=BEARER).text == "secret"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/nothing",
        "//health",
        "/health/",
        "/health/other",
        "/health%2f",
        "/HEALTH",
        "/./health",
        "/x/../health",
        "/health;x",
        "/v1/models/",
        "//v1/models",
        "/v1%2fmodels",
        "/v1/models/%2e%2e/health",
        "/docs",
        "/openapi.json",
        "/metrics",
        "/logout",
        "/login/",
    ],
)
def test_odd_paths_are_no_way_around(guarded: LiveServer, path: str) -> None:
    for method in ("GET", "POST"):  # by hand: clients tidy paths up
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        with guarded.raw(head.encode()) as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 401")


def test_health_needs_no_key(guarded: LiveServer) -> None:
    assert guarded.get("/health").status_code == 200
    assert guarded.client.head("/health").status_code == 200


# --- how a key is shown -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        BEARER,
        {"authorization": f"bearer {KEY}"},
        {"authorization": f"BEARER   {KEY}"},
        {"x-api-key": KEY},
        {"authorization": "Bearer sk-another-key-000000000"},
        {"authorization": "Bearer wrong", "x-api-key": KEY},
    ],
)
def test_a_key_in_a_header_is_taken(guarded: LiveServer, headers: dict[str, str]) -> None:
    assert guarded.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/models", {}),
        ("/v1/models", {"authorization": KEY}),
        ("/v1/models", {"authorization": f"Basic {base64.b64encode(f'user:{KEY}'.encode()).decode()}"}),
        ("/v1/models", {"authorization": f"Bearer {KEY}x"}),
        ("/v1/models", {"authorization": f"Bearer {KEY[:-1]}"}),
        ("/v1/models", {"authorization": f"Bearer {KEY.upper()}"}),
        ("/v1/models", {"authorization": "Bearer"}),
        ("/v1/models", {"authorization": f"Bearer {'x' * 20_000}"}),
        ("/v1/models", {"x-api-key": ""}),
        ("/v1/models", {"api-key": KEY}),
        (f"/v1/models?api_key={KEY}", {}),
        (f"/v1/models?key={KEY}", {}),
        ("/v1/models", {"cookie": f"lpx_session_80={KEY}"}),
    ],
)
def test_anything_else_is_not(guarded: LiveServer, path: str, headers: dict[str, str]) -> None:
    unauthorized(guarded.get(path, headers=headers))


def test_a_wrong_key_is_told_from_none_and_both_are_logged(
    guarded: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="lpx.server"):
        missing = guarded.post("/generate", {"prompt": "x"})
        wrong = guarded.post("/generate", {"prompt": "x"}, headers={"authorization": "Bearer sk-wrong-0123456789"})
    assert (missing.status_code, wrong.status_code) == (401, 401)
    assert "is needed" in missing.json()["error"]["message"]
    assert "is not accepted" in wrong.json()["error"]["message"]
    refused = [record.getMessage() for record in caplog.records if record.getMessage().startswith("refused")]
    assert len(refused) == 2
    assert all("endpoint=/generate status=401 code=invalid_api_key" in line for line in refused)
    assert "wrong" not in caplog.text


def test_two_authorization_headers_are_no_key(guarded: LiveServer) -> None:
    headers = [("authorization", f"Bearer {KEY}"), ("authorization", f"Bearer {KEY}")]
    unauthorized(guarded.client.get("/v1/models", headers=headers))


def test_bytes_that_are_no_ascii_are_no_key(guarded: LiveServer) -> None:
    unauthorized(guarded.client.get("/v1/models", headers={b"authorization": b"Bearer \xff\xfe\xed\xa0\x80"}))


def test_the_openai_client_gets_in_with_a_key_and_its_own_error_without(guarded: LiveServer) -> None:
    def client(key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=guarded.url + "/v1", api_key=key, max_retries=0)

    assert client(KEY).models.list().data[0].id == "fake"
    with pytest.raises(openai.AuthenticationError):
        client(WRONG).completions.create(model="fake", prompt="a")


def test_without_keys_everybody_is_let_in(shared_server: LiveServer) -> None:
    assert shared_server.get("/v1/models").status_code == 200
    assert shared_server.get("/v1/models", headers={"authorization": "Bearer whatever"}).status_code == 200


def test_a_refused_body_is_not_waited_for(guarded: LiveServer) -> None:
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n\r\n"
    with guarded.raw(head) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 401")


# --- WebSockets ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def socket_app() -> FastAPI:
    return app_with_socket(ServerSettings(api_keys=(KEY,)))


def app_with_socket(settings: ServerSettings) -> FastAPI:
    app = create_app(lambda progress: fake_engine(), settings)

    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    app.router.routes.append(WebSocketRoute("/echo", echo))
    return app


def accepted(sent: list[Any]) -> bool:
    return sent[0]["type"] == "websocket.accept"


def test_a_websocket_takes_a_key_as_header_or_subprotocol(socket_app: FastAPI) -> None:
    assert accepted(websocket_answer(socket_app, "/echo", **BEARER))
    assert accepted(websocket_answer(socket_app, "/echo", **{"x-api-key": KEY}))
    encoded = base64.urlsafe_b64encode(KEY.encode()).decode().rstrip("=")
    sent = websocket_answer(socket_app, "/echo", subprotocols=("lpx.v1", f"lpx.key.{encoded}"))
    assert accepted(sent)
    assert sent[0]["subprotocol"] == "lpx.v1"
    for wrong in ("lpx.key.", "lpx.key.!!", f"lpx.key.{KEY}", KEY):
        assert is_401(websocket_answer(socket_app, "/echo", subprotocols=("lpx.v1", wrong)))


def test_a_refused_websocket_ends_before_it_opens() -> None:
    app = app_with_socket(ServerSettings(api_keys=(KEY,)))
    [start, body] = websocket_answer(app, "/echo")
    assert start["status"] == 401
    assert b'"invalid_api_key"' in body["body"]


@pytest.mark.parametrize(
    ("origin", "ok"),
    [
        (None, True),
        ("http://localhost", True),
        ("https://app.example", True),
        ("http://localhost:3000", False),
        ("https://evil.example", False),
        ("null", False),
    ],
)
def test_a_foreign_page_opens_no_websocket(origin: str | None, ok: bool) -> None:
    """Not even without keys: browsers ask nobody before they connect."""
    app = app_with_socket(ServerSettings(cors=Cors(origins=("https://app.example",))))
    sent = websocket_answer(app, "/echo", **({} if origin is None else {"origin": origin}))
    assert accepted(sent) if ok else sent[0]["status"] == 403


def test_a_foreign_host_name_opens_no_websocket() -> None:
    app = app_with_socket(ServerSettings())
    sent = websocket_answer(app, "/echo", host="evil.example")  # beside the good one
    assert sent[0]["status"] == 403
