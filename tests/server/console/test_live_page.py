"""The live view of the console: charts that move, what is in use, the limit, and no question without an onlooker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lpx.engine.async_engine import AsyncEngine
from lpx.engine.engine import Engine
from lpx.options import EngineOptions
from tests.server.conftest import StartServer
from tests.server.console.conftest import OpenPage, ask, says
from tests.server.live_server import LiveServer, eventually
from tests.server.test_speculation import with_drafts

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHARTS = 9


def inked(page: Page) -> list[int]:
    """Of each chart, how many pixels have the colour of a line: strong colours that text and grid do not have."""
    found: list[int] = page.evaluate("""() => [...document.querySelectorAll('.chart canvas')].map((canvas) => {
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        let count = 0;
        for (let i = 0; i < data.length; i += 4) {
            const strong = Math.max(data[i], data[i + 1], data[i + 2]) - Math.min(data[i], data[i + 1], data[i + 2]);
            if (data[i + 3] > 200 && strong > 60) count++;
        }
        return count;
    })""")
    return found


def value(page: Page, title: str) -> str:
    return page.locator(".chart", has_text=title).locator(".value").inner_text()


def test_charts_move_with_the_requests(start_server: StartServer, open_page: OpenPage) -> None:
    server = with_drafts(start_server)
    page = open_page(server, "/#live", ready=".chart canvas")
    page.wait_for_function("() => document.querySelectorAll('.chart canvas').length === 9")
    assert len(inked(page)) == CHARTS
    assert inked(page)[0] <= inked(page)[1] + 20  # no peak yet
    before = inked(page)
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            server.events("/generate", {"prompt": "abcabcabc", "max_tokens": 60})

    worker = threading.Thread(target=load)
    worker.start()
    try:
        page.wait_for_function("""() => [0, 1, 2, 5].every((at) =>
            /[1-9]/.test(document.querySelectorAll('.chart .value')[at].textContent))""")
        assert value(page, "Accepted drafts").endswith("%")
        assert "ms" in value(page, "Time to first token")
    finally:
        stop.set()
        worker.join()
    after = inked(page)
    for chart in (0, 1, 2, 5):  # speed, time to first token, inter-token time, acceptance
        assert after[chart] > before[chart]
    assert page.get_by_role("img", name="Memory of the process").get_attribute("aria-label").count("iB now")


def test_nothing_is_asked_for_while_nobody_looks(start_server: StartServer, open_page: OpenPage) -> None:
    page = open_page(start_server(says("ok"), max_model_len=4096))
    page.clock.install()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("response", lambda response: response.finished())

    def pass_seconds(count: int) -> int:
        """How often the figures are asked for in that time."""
        before = len(asked)
        for _ in range(count):
            page.clock.run_for(1000)
            page.evaluate("() => fetch('health')")  # what was asked for before this has been answered
        return sum("console/live" in url for url in asked[before:])

    assert pass_seconds(5) == 0  # the chat is open
    page.get_by_role("link", name="Live").click()
    page.locator(".chart canvas").first.wait_for()
    assert pass_seconds(5) >= 3
    page.evaluate("""() => {
        Object.defineProperty(document, 'visibilityState', { value: 'hidden', configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));
    }""")
    assert pass_seconds(5) == 0
    page.evaluate("""() => {
        delete document.visibilityState;
        document.dispatchEvent(new Event('visibilitychange'));
    }""")
    assert pass_seconds(5) >= 3
    page.get_by_role("link", name="Chat").click()
    page.locator("#message").wait_for()
    assert pass_seconds(5) == 0


def test_a_server_that_is_away_is_said_and_found_again(start_server: StartServer, open_page: OpenPage) -> None:
    page = open_page(start_server(), "/#live", ready=".chart canvas")
    page.route("**/console/live", lambda route: route.abort())
    page.get_by_text("No answer from the server").wait_for()
    page.unroute("**/console/live")
    page.get_by_text("No answer from the server").wait_for(state="detached")


@pytest.fixture(scope="module")
def real_server(smollm2_path: Path) -> Iterator[LiveServer]:
    options = EngineOptions(
        model=str(smollm2_path), kv_cache_memory=64 * 2**20, max_model_len=2048, served_model_name="smol", threads=1
    )
    server = LiveServer(AsyncEngine.start(Engine.load(options)))
    yield server
    eventually(lambda: server.idle, "an idle engine")
    server.close()


@pytest.mark.model
def test_what_is_in_use_and_how_near_the_limit(real_server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(real_server)
    page.get_by_role("spinbutton", name="Most tokens").fill("40")
    page.get_by_role("spinbutton", name="Most tokens").blur()
    ask(page, "Count to twenty.")
    page.get_by_role("link", name="Live").click()
    [card] = real_server.get("/v1/models").json()["data"]
    shown = page.locator(".card", has_text="In use").inner_text()
    for fact in ("smol", card["quantization"], card["isa"], card["speculation"], "2,048 tokens", "1 (cpu)", "f16"):
        assert fact in shown
    limit = page.locator(".roofline")
    limit.get_by_text("GB/s").first.wait_for()  # what the answer read
    assert "not measured" in limit.inner_text()
    limit.get_by_role("button", name="Measure the limit").click()
    limit.get_by_role("button", name="Measure again").wait_for()
    share = limit.locator("strong").inner_text()
    assert share.endswith("%")
    assert 1 < float(share.removesuffix("%")) < 300
    assert limit.get_by_role("meter").get_attribute("aria-valuenow") != "0"
    measured = real_server.get("/console/live").json()["limit"]
    assert measured["bytes_per_second"] > 1e8
    assert f"{measured['bytes_per_second'] / 1e9:.1f} GB/s" in limit.inner_text()
