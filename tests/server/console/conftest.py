from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests import browser as chromium
from tests.engine.fake_executor import END_OF_TURN, FakeExecutor
from tests.server.live_server import PATIENCE_S, LiveServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OpenPage = Callable[..., "Page"]
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def says(text: str, *, num_blocks: int = 1024) -> FakeExecutor:
    """A model that answers every prompt of the tests' chat template with `text`."""
    data, mark = text.encode(), b"assistant: "

    def choose(tokens: list[int]) -> int:
        history = bytes(token for token in tokens if token < 256)
        if mark not in history:  # the warm-up
            return END_OF_TURN
        at = len(history) - history.rindex(mark) - len(mark)
        return data[at] if at < len(data) else END_OF_TURN

    return FakeExecutor(num_blocks=num_blocks, block_size=4, choose=choose)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One Chromium for all pages, with a profile of its own. It ends with this package: the event loop of its driver
    lives in the tests' thread, where others want to run theirs."""
    path = chromium.find()
    if path is None:
        if chromium.expected():
            pytest.fail(f"there is no browser: {chromium.HOW}")
        pytest.skip(f"there is no browser: {chromium.HOW}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Pages in a fresh profile each. At the end, none may have met a script error or a breach of its policy, or have
    asked another server for anything."""
    contexts, faults = [], []

    def open_one(
        server: LiveServer, path: str = "/", *, ready: str | None = "#message", breaches: bool = False, **options: Any
    ) -> Page:
        """`breaches`: the test does on purpose what the policy stops."""
        context = browser.new_context(**{"locale": "en-GB", "viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(PATIENCE_S * 1000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if not breaches and is_fault(message) else None)
        page.on("request", lambda request: None if is_own(request.url) else faults.append(f"asked for {request.url}"))

        def is_own(url: str) -> bool:
            return url.startswith((server.url + "/", "data:"))

        page.goto(server.url + path)
        if ready:
            page.wait_for_selector(ready)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert not faults


def is_fault(message: Any) -> bool:
    """Errors in the browser's log, but not those that tell of an HTTP status: tests look at these themselves."""
    return message.type == "error" and "Failed to load resource" not in message.text


def send(page: Page, text: str) -> None:
    """Type a message and send it; does not wait for the answer."""
    page.fill("#message", text)
    page.press("#message", "Enter")


def ask(page: Page, text: str) -> str:
    """Send a message and wait for the whole answer; its text as it is shown."""
    before = page.locator(".answer footer").count()
    send(page, text)
    page.locator(".answer footer").nth(before).wait_for()
    page.locator("button[type=submit].main").wait_for()
    return page.locator(".answer").nth(before).inner_text()
