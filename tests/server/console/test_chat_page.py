"""The chat of the console, driven in a browser, with a real model and with one that says what a test wants."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lpx.engine.async_engine import AsyncEngine
from lpx.engine.engine import Engine
from lpx.options import EngineOptions
from tests.engine.fake_executor import END_OF_TURN, FakeExecutor
from tests.server.conftest import StartServer
from tests.server.console.conftest import OpenPage, ask, says, send
from tests.server.live_server import PATIENCE_S, LiveServer, eventually
from tests.server.test_speculation import with_drafts

if TYPE_CHECKING:
    from playwright.sync_api import Page

CONTEXT = {"max_model_len": 4096}


@pytest.fixture(scope="module")
def real_server(smollm2_path: Path) -> Iterator[LiveServer]:
    options = EngineOptions(
        model=str(smollm2_path), kv_cache_memory=64 * 2**20, max_model_len=2048, served_model_name="smol"
    )
    server = LiveServer(AsyncEngine.start(Engine.load(options)))
    yield server
    eventually(lambda: server.idle, "an idle engine")
    server.close()


def figures(page: Page) -> str:
    return page.locator(".answer .figures").last.inner_text().replace("\n", " ")


@pytest.mark.model
def test_a_real_model_answers(real_server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(real_server)
    assert page.title() == "smol · LPX"
    page.get_by_role("spinbutton", name="Temperature").fill("0")
    page.get_by_role("spinbutton", name="Most tokens").fill("8")
    page.get_by_role("spinbutton", name="Most tokens").blur()
    answer = ask(page, "What is the capital of France? Answer with one word.")
    assert "Paris" in answer
    assert re.search(r"[\d.,]+ tokens/s TTFT [\d.,]+ m?s \d+ tokens", figures(page))
    assert "Paris" in ask(page, "Say that again.")
    assert "prompt tokens cached" in figures(page)  # the conversation was sent along


@pytest.mark.model
def test_stop_ends_the_request_and_keeps_the_text(real_server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(real_server)
    send(page, "Write a very long story about a journey around the world.")
    page.locator(".answer .markdown").filter(has_text=re.compile(".{20}")).wait_for()
    page.get_by_role("button", name="Stop").click()
    page.locator(".answer footer").wait_for()
    eventually(lambda: real_server.idle, "an idle engine")
    assert "stopped" in figures(page)
    assert "TTFT" in figures(page)
    assert len(page.locator(".answer .markdown").inner_text()) > 20
    page.get_by_role("button", name="Send").wait_for()


@pytest.mark.model
def test_regenerate_replaces_the_answer(real_server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(real_server)
    page.get_by_role("spinbutton", name="Temperature").fill("2")
    page.get_by_role("spinbutton", name="Most tokens").fill("12")
    page.get_by_role("spinbutton", name="Seed").fill("5")
    page.get_by_role("spinbutton", name="Seed").blur()
    first = ask(page, "Invent a word.")
    for seed, same in (("5", True), ("6", False)):
        page.get_by_role("spinbutton", name="Seed").fill(seed)
        page.get_by_role("spinbutton", name="Seed").blur()
        page.get_by_role("button", name="Regenerate").click()
        page.wait_for_selector(".answer.growing", state="detached")
        page.locator(".answer footer").wait_for()
        assert page.locator(".answer").count() == page.locator(".message.user").count() == 1
        shown = page.locator(".answer .markdown").inner_text()
        assert (shown == first.split("\n\n")[0] or first.startswith(shown)) == same


def test_markdown_is_formatted_and_code_can_be_copied(start_server: StartServer, open_page: OpenPage) -> None:
    table, code = "| a | b |\n|---|---|\n| 1 | 2 |", "```python\nprint('<b>')\n```"
    text = f"# Head\n\nA **bold** word.\n\n{table}\n\n{code}\n\n1. one\n2. two"
    page = open_page(start_server(says(text), **CONTEXT))
    ask(page, "go")
    answer = page.locator(".answer .markdown")
    assert answer.locator("h1").inner_text() == "Head"
    assert answer.locator("strong").inner_text() == "bold"
    assert answer.locator("td").all_inner_texts() == ["1", "2"]
    assert answer.locator("ol li").all_inner_texts() == ["one", "two"]
    assert answer.locator(".code-head span").inner_text() == "python"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer.get_by_role("button", name="Copy code").click()
    answer.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "print('<b>')"


HOSTILE = """<script>window.hacked = 1</script>

<img src=x onerror="window.hacked = 2"> <svg onload="window.hacked = 3"></svg>

[click](javascript:window.hacked=4) [data](data:text/html,<script>window.hacked=5</script>) [here](/console/live)

![picture](http://127.0.0.1:9/pixel.png) <iframe src="http://127.0.0.1:9/"></iframe>

<a href="http://evil.example" onclick="window.hacked=6">link</a> <style>body { display: none }</style>

<form action="http://127.0.0.1:9/"><input name=key><button>Send</button></form>

```html"><img src=x onerror=window.hacked=7>
<script>window.hacked = 8</script>
```

[good](https://example.com/a?b=1&c=2)
"""


def test_hostile_markdown_stays_text(start_server: StartServer, open_page: OpenPage) -> None:
    page = open_page(start_server(says(HOSTILE), **CONTEXT))
    ask(page, HOSTILE)  # as the user's text, too
    thread = page.locator(".thread")
    assert page.evaluate("window.hacked") is None
    assert thread.locator("script, img, iframe, style, form, input, object, embed, .answer svg:not(.icon)").count() == 0
    assert thread.locator("[onerror], [onload], [onclick], [style], [id], [src]").count() == 0
    links = thread.locator("a")
    assert [link.get_attribute("href") for link in links.all() if link.get_attribute("href")] == [
        "https://example.com/a?b=1&c=2"
    ]
    assert links.last.get_attribute("rel") == "noopener noreferrer nofollow"
    answer = page.locator(".answer .markdown").inner_text()
    assert "<script>window.hacked = 1</script>" in answer
    assert "image, not loaded: picture" in answer
    assert page.locator(".message.user").inner_text().strip() == HOSTILE.strip()


def test_the_sanitizer_alone_would_do(start_server: StartServer, open_page: OpenPage) -> None:
    page = open_page(start_server(says("ok"), **CONTEXT), breaches=True)
    left = page.evaluate(
        """async (dirty) => {
            const folder = document.querySelector('script[type=module]').src.replace(/[^/]*$/, '');
            const { sanitized } = await import(folder + 'markdown.js');
            const found = [...sanitized(dirty).querySelectorAll('*')];
            return found.map((each) => [each.localName, ...each.getAttributeNames()].join(' '));
        }""",
        HOSTILE
        + "<a href='javascript:x' id=message class=top>a</a><a href=/logout>b</a><code class='language-c'>c</code>",
    )
    assert left == ["a href target rel", "a target rel", "a target rel", "code class"]


def test_policy_stops_what_gets_past_everything(start_server: StartServer, open_page: OpenPage) -> None:
    page = open_page(start_server(says("ok"), **CONTEXT), breaches=True)
    blocked = page.evaluate("""() => {
        try { document.body.innerHTML = '<img src=x onerror="window.hacked = 1">'; }
        catch (error) { return error.name; }
    }""")
    assert blocked == "TypeError"


def test_accepted_drafts_are_tinted_on_request(start_server: StartServer, open_page: OpenPage) -> None:
    page = open_page(with_drafts(start_server))
    ask(page, "abcabcabc")
    tinted = """() => [...CSS.highlights.get('drafted')].map((range) =>
        range.startContainer.data.slice(range.startOffset, range.endOffset)).join('')"""
    assert page.evaluate(tinted) == ""
    page.get_by_role("button", name="Show drafted tokens").click()
    shown = page.evaluate(tinted)
    accepted = int(re.search(r"(\d+) of \d+ drafted accepted", figures(page))[1])  # type: ignore[index]
    assert len(shown) == accepted > 10  # tokens of this model are characters
    page.get_by_role("button", name="Show drafted tokens").click()
    assert page.evaluate(tinted) == ""
    page.get_by_role("checkbox", name="Tint accepted drafts").check()
    assert page.evaluate(tinted) == shown


def test_tint_follows_the_text_through_its_formatting(start_server: StartServer, open_page: OpenPage) -> None:
    page = open_page(start_server(says("ok"), **CONTEXT))
    source = "A **bold** move:\n\n- one `x` two\n- [three](https://example.com/three) four\n\n"
    source += "```py\nfor x in y:\n    pass\n```\n"
    parts = [[source.index(word), source.index(word) + len(word)] for word in ("bold", "two", "four", "in y", "pass")]
    found = page.evaluate(
        """async ([source, parts]) => {
            const folder = document.querySelector('script[type=module]').src.replace(/[^/]*$/, '');
            const [{ show }, { tint }] = [await import(folder + 'markdown.js'), await import(folder + 'tint.js')];
            const place = document.createElement('div');
            document.body.append(place);
            show(place, source);
            tint(place, parts);
            return place.tinted.map((range) => range.startContainer.data.slice(range.startOffset, range.endOffset));
        }""",
        [source, parts],
    )
    assert found == ["bold", "two", "four", "in y", "pass"]


def test_a_base_model_continues_text(start_server: StartServer, open_page: OpenPage) -> None:
    texts = {"Count: one two, then": " three **four**", "Count:": " one two"}

    def choose(tokens: list[int]) -> int:
        text = bytes(tokens).decode()
        prompt = next((prompt for prompt in texts if text.startswith(prompt)), None)
        at = 0 if prompt is None else len(text) - len(prompt)
        return END_OF_TURN if prompt is None or at >= len(texts[prompt]) else ord(texts[prompt][at])

    server = start_server(FakeExecutor(num_blocks=1024, block_size=4, choose=choose), template=False, **CONTEXT)
    page = open_page(server)
    assert "no chat template" in page.locator(".note").inner_text()
    assert page.get_by_label("System prompt").count() == 0
    page.get_by_label("Text to continue").wait_for()
    ask(page, "Count:")
    assert page.locator(".answer .plain").inner_text() == " one two"
    ask(page, ", then")
    assert page.locator(".answer .plain").last.inner_text() == " three **four**"


def test_errors_are_told_and_can_be_tried_again(start_server: StartServer, open_page: OpenPage) -> None:
    server = start_server(says("fine"), max_model_len=128)
    page = open_page(server)
    send(page, "x" * 300)
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert "context" in alert.inner_text()
    page.get_by_role("button", name="Try again").wait_for()
    page.get_by_role("button", name="New chat").first.click()
    assert "fine" in ask(page, "x")


def test_a_server_that_goes_away_is_told(open_page: OpenPage, start_server: StartServer) -> None:
    go_on = threading.Event()

    def hold(step: int) -> None:
        assert step < 4 or go_on.wait(PATIENCE_S)

    executor = says("y" * 2000)
    executor.before_step = hold
    server = start_server(executor, ends_idle=False, **CONTEXT)
    page = open_page(server)
    send(page, "go")
    eventually(lambda: len(executor.steps) >= 4, "steps")
    server.on_loop(server.server.exit_soon)
    server.on_loop(server.app.state.service.abort_running)
    go_on.set()
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert alert.inner_text()


def test_system_prompt_and_sampling_are_sent(start_server: StartServer, open_page: OpenPage) -> None:
    page = open_page(start_server(says("ok"), **CONTEXT))
    page.get_by_label("System prompt").fill("Be brief.")
    for name, value in (("Temperature", "0.3"), ("Top-p", "0.8"), ("Min-p", "0.1"), ("Top-k", "7"), ("Seed", "11")):
        page.get_by_role("spinbutton", name=name).fill(value)
    page.get_by_role("spinbutton", name="Most tokens").fill("50")
    page.get_by_role("checkbox", name="Draft tokens ahead").count()
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "hi")
    body = sent.value.post_data_json
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    wanted = {"temperature": 0.3, "top_p": 0.8, "min_p": 0.1, "top_k": 7, "seed": 11, "max_tokens": 50}
    assert {name: body[name] for name in wanted} == wanted


def test_chats_stay_in_the_browser_as_long_as_wanted(start_server: StartServer, open_page: OpenPage) -> None:
    page = open_page(start_server(says("ok"), **CONTEXT))
    kept = "Object.keys(localStorage).filter((key) => key.startsWith('lpx.chat.')).length"
    ask(page, "SECRET-MARKER")
    assert page.evaluate(kept) == 0
    page.reload()  # the tab keeps it
    assert page.locator(".message.user").inner_text() == "SECRET-MARKER"
    assert page.locator(".answer").count() == 1
    page.get_by_role("checkbox", name="Keep chats in this browser").check()
    assert page.evaluate(kept) == 1
    page.get_by_role("checkbox", name="Keep chats in this browser").uncheck()
    assert page.evaluate(kept) == 0
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete all").click()
    page.get_by_role("heading", name="Ask fake").wait_for()
    assert page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])").count("SECRET-MARKER") == 0
