"""Browsers: the login page and its cookie, pages of other origins, and the headers that every answer carries."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from lpx.errors import ConfigError
from lpx.server.settings import Cors, ServerSettings
from tests.server.conftest import StartServer, fake_engine
from tests.server.live_server import LiveServer

KEY = "sk-test-key-0123456789"
PAGE = {"accept": "text/html,application/xhtml+xml"}


@pytest.fixture
def guarded(start_server: StartServer) -> LiveServer:
    return start_server(settings=ServerSettings(api_keys=(KEY,)))


@pytest.fixture
def browser(guarded: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.url, trust_env=False, timeout=60) as client:
        yield client


def sign_in(browser: httpx.Client, key: str = KEY, **headers: str) -> httpx.Response:
    return browser.post("/login", data={"key": key}, headers={**PAGE, **headers})


# --- signing in ---------------------------------------------------------------------------------------------------


def test_a_browser_without_a_key_is_shown_where_to_type_it(browser: httpx.Client) -> None:
    for path in ("/", "/v1/models", "/anything"):
        response = browser.get(path, headers=PAGE)
        assert response.status_code == 401
        assert response.headers["content-type"].startswith("text/html")
        assert 'name="key" type="password"' in response.text
        assert "<script" not in response.text
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    assert "API 密钥" in browser.get("/", headers={**PAGE, "accept-language": "zh-CN,zh;q=0.9"}).text


def test_signing_in_gives_a_cookie_that_lets_in_and_holds_no_key(guarded: LiveServer, browser: httpx.Client) -> None:
    response = sign_in(browser)
    assert (response.status_code, response.headers["location"]) == (303, "/")
    cookie = response.headers["set-cookie"]
    assert KEY not in cookie
    assert cookie.startswith(f"lpx_session_{guarded.port}=")
    for part in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"):
        assert part.lower() in cookie.lower()
    assert browser.get("/v1/models").status_code == 200
    assert browser.post("/generate", json={"prompt": "a", "max_tokens": 1}).status_code == 200
    assert browser.get("/login", headers=PAGE).status_code == 303


def test_scripts_can_sign_in_and_ask_who_they_are(browser: httpx.Client) -> None:
    asked = browser.get("/login", headers={"accept": "application/json"}).json()
    assert asked == {"key_required": True, "signed_in": False, "name": None}
    assert browser.post("/login", json={"key": KEY}).status_code == 204
    asked = browser.get("/login").json()
    assert asked["signed_in"]
    assert re.fullmatch(r"key-[0-9a-f]{8}", asked["name"])


def test_signing_out_ends_the_session(browser: httpx.Client) -> None:
    sign_in(browser)
    token = dict(browser.cookies)
    assert browser.post("/logout").status_code == 204
    assert not browser.cookies
    browser.cookies.update(token)
    assert browser.get("/v1/models").status_code == 401


@pytest.mark.parametrize("key", ["", "wrong", KEY + "x"])
def test_a_wrong_key_signs_nobody_in(browser: httpx.Client, key: str) -> None:
    response = sign_in(browser, key)
    assert response.status_code == 401
    assert "This key is not accepted." in response.text
    assert "set-cookie" not in response.headers
    assert browser.post("/login", json={"key": key}).json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"key": 1}', b"{}", b'{"key": "' + b"x" * 10_000 + b'"}'])
def test_login_takes_no_odd_bodies(browser: httpx.Client, body: bytes) -> None:
    response = browser.post("/login", content=body, headers={"content-type": "application/json"})
    assert 400 <= response.status_code < 500
    assert browser.post("/login", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415


def test_without_keys_there_is_nothing_to_sign_in_to(shared_server: LiveServer) -> None:
    asked = shared_server.get("/login").json()
    assert asked == {"key_required": False, "signed_in": True, "name": None}
    assert shared_server.get("/login", headers=PAGE).status_code == 303
    assert "set-cookie" not in shared_server.post("/login", {"key": "anything"}).headers


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://localhost:3000"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_session_is_of_no_use_to_other_pages(browser: httpx.Client, headers: dict[str, str]) -> None:
    """Browsers send cookies to every port of a host, and take a page of another port for the same site."""
    sign_in(browser)
    assert browser.get("/v1/models", headers=headers).status_code == 401
    assert browser.post("/generate", json={"prompt": "a"}, headers=headers).status_code == 401
    assert sign_in(browser, **headers).status_code == 403


def test_a_session_is_good_for_its_own_page(guarded: LiveServer, browser: httpx.Client) -> None:
    own = {"origin": guarded.url}
    assert sign_in(browser, **own).status_code == 303
    for headers in (own, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}):
        assert browser.get("/v1/models", headers=headers).status_code == 200


# --- other origins ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def open_to_app() -> Iterator[LiveServer]:
    cors = Cors(origins=("https://app.example",), methods=("GET", "POST"), headers=("authorization", "content-type"))
    server = LiveServer(fake_engine(), ServerSettings(api_keys=(KEY,), cors=cors))
    yield server
    server.close()


def preflight(server: LiveServer, origin: str) -> httpx.Response:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, content-type"}
    return server.client.options("/v1/completions", headers={"origin": origin, **asked})


def test_pages_of_an_allowed_origin_may_ask_and_read(open_to_app: LiveServer) -> None:
    response = preflight(open_to_app, "https://app.example")
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "https://app.example"
    headers = {"origin": "https://app.example", "authorization": f"Bearer {KEY}"}
    response = open_to_app.post("/generate", {"prompt": "a"}, headers=headers)
    assert response.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-credentials" not in response.headers
    refused = open_to_app.post("/generate", {"prompt": "a"}, headers={"origin": "https://app.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example"


@pytest.mark.parametrize("origin", ["https://evil.example", "https://app.example.evil.example", "null", ""])
def test_pages_of_other_origins_may_not(open_to_app: LiveServer, origin: str) -> None:
    assert "access-control-allow-origin" not in preflight(open_to_app, origin).headers
    answer = open_to_app.get("/health", headers={"origin": origin})
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "options",
    [
        {"origins": ("*",), "credentials": True},
        {"origins": ("app.example",)},
        {"origins": ("https://app.example/path",)},
        {"origins": ("null",)},
        {"origins": ("",)},
    ],
)
def test_origins_that_would_open_the_door_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Cors(**options)  # type: ignore[arg-type]


# --- headers ------------------------------------------------------------------------------------------------------


def test_every_answer_carries_the_security_headers(guarded: LiveServer) -> None:
    bearer = {"authorization": f"Bearer {KEY}"}
    answers = [
        guarded.get("/health"),
        guarded.get("/metrics", headers=bearer),
        guarded.get("/nothing", headers=bearer),
        guarded.get("/v1/models"),
        guarded.get("/", headers=PAGE),
        guarded.get("/health", headers={"host": "evil.example"}),
        guarded.post("/generate", {"prompt": 1}, headers=bearer),
        guarded.post("/generate", {"prompt": "a", "stream": True, "max_tokens": 2}, headers=bearer),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 404, 401, 401, 403, 400, 200]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] in ("no-store", "no-cache")
        assert "server" not in answer.headers or answer.headers["server"] == "uvicorn"


def test_health_answers_probes_that_name_no_host(shared_server: LiveServer) -> None:
    for version in (b"1.0", b"1.1"):
        with shared_server.raw(b"GET /health HTTP/" + version + b"\r\nConnection: close\r\n\r\n") as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_metrics_answers_head(shared_server: LiveServer) -> None:
    response = shared_server.client.head("/metrics")
    assert response.status_code == 200
    assert response.content == b""
