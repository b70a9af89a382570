"""The console of a server with keys: asked for once, never kept in the page, asked for again when the session ends."""

from __future__ import annotations

from lpx.server.settings import ServerSettings
from tests.server.conftest import StartServer
from tests.server.console.conftest import OpenPage, ask, says
from tests.server.live_server import LiveServer

KEY = "sk-test-key-0123456789"


def with_key(start_server: StartServer) -> LiveServer:
    return start_server(says("ok"), settings=ServerSettings(api_keys=(KEY,)), max_model_len=4096)


def test_the_key_is_asked_for_and_the_chat_works(start_server: StartServer, open_page: OpenPage) -> None:
    server = with_key(start_server)
    page = open_page(server, ready="input[name=key]")
    page.fill("input[name=key]", "sk-wrong-key-0123456789")
    page.press("input[name=key]", "Enter")
    page.wait_for_selector("input[name=key]")
    assert page.locator("#message").count() == 0
    page.fill("input[name=key]", KEY)
    page.press("input[name=key]", "Enter")
    page.wait_for_selector("#message")
    assert "ok" in ask(page, "hi")
    page.get_by_role("link", name="Live").click()
    page.locator(".chart canvas").first.wait_for()
    kept = page.evaluate("() => JSON.stringify([{...localStorage}, {...sessionStorage}]) + document.cookie")
    assert KEY not in kept
    assert KEY not in page.content()


def test_signing_out_asks_again(start_server: StartServer, open_page: OpenPage) -> None:
    page = open_page(with_key(start_server), ready="input[name=key]")
    page.fill("input[name=key]", KEY)
    page.press("input[name=key]", "Enter")
    page.wait_for_selector("#message")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_selector("input[name=key]")
    assert page.url.endswith("/login")


def test_a_session_that_is_over_asks_again_and_keeps_the_chat(start_server: StartServer, open_page: OpenPage) -> None:
    page = open_page(with_key(start_server), ready="input[name=key]")
    page.fill("input[name=key]", KEY)
    page.press("input[name=key]", "Enter")
    page.wait_for_selector("#message")
    assert "ok" in ask(page, "first")
    page.context.clear_cookies()
    page.fill("#message", "second")
    page.press("#message", "Enter")
    page.wait_for_selector("input[name=key]")
    page.fill("input[name=key]", KEY)
    page.press("input[name=key]", "Enter")
    page.wait_for_selector("#message")
    assert page.locator(".message.user").first.inner_text() == "first"


def test_without_keys_nobody_can_sign_out(start_server: StartServer, open_page: OpenPage) -> None:
    page = open_page(start_server(says("ok")))
    page.get_by_role("button", name="Theme: system").wait_for()
    assert page.get_by_role("button", name="Sign out").count() == 0
