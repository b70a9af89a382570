"""Themes, languages, small screens, keyboard and screen readers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.server.conftest import StartServer
from tests.server.console.conftest import OpenPage, ask, says, send
from tests.server.live_server import LiveServer

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture
def server(start_server: StartServer) -> LiveServer:
    code = "```python\n" + "x = 1  # a line that is much wider than a telephone, and some more\n" * 3 + "```"
    table = "| " + " | ".join(["column"] * 12) + " |\n" + "|---" * 12 + "|\n" + "| value " * 12 + "|"
    return start_server(says(f"An **answer**.\n\n{code}\n\n{table}\n"), max_model_len=4096)


def lightness(page: Page) -> float:
    """Of the page's background, 0 (black) to 255."""
    colour = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def test_theme_follows_the_system_until_it_is_chosen(server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(server, color_scheme="dark")
    assert lightness(page) < 60
    page.emulate_media(color_scheme="light")
    assert lightness(page) > 200
    page.get_by_role("button", name="Theme: system").click()
    page.get_by_role("button", name="Theme: light").click()
    page.get_by_role("button", name="Theme: dark").wait_for()
    assert lightness(page) < 60
    page.reload()
    page.get_by_role("button", name="Theme: dark").wait_for()
    assert lightness(page) < 60


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(server: LiveServer, open_page: OpenPage, scheme: str) -> None:
    page = open_page(server, color_scheme=scheme)
    ask(page, "go")
    # WCAG 2.2: 4.5 to 1. What is disabled is exempt.
    poor = page.evaluate("""() => {
        const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
        const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
            .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const behind = (node) => {
            for (; node; node = node.parentElement) {
                const colour = parse(getComputedStyle(node).backgroundColor);
                if ((colour[3] ?? 1) === 1) return colour;
            }
        };
        const found = [];
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            const node = walker.currentNode.parentElement;
            if (!walker.currentNode.data.trim() || node.closest(':disabled, .sr-only, .skip')) continue;
            if (!node.checkVisibility({ opacityProperty: true })) continue;
            const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
            const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (contrast < 4.5) found.push(`${walker.currentNode.data.trim()} ${contrast.toFixed(2)}`);
        }
        return found;
    }""")
    assert poor == []


def test_language_follows_the_browser_until_it_is_chosen(server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(server, locale="zh-CN")
    assert page.evaluate("() => document.documentElement.lang") == "zh-CN"
    page.get_by_role("link", name="对话").wait_for()
    assert page.get_by_label("消息", exact=True).get_attribute("placeholder") == "输入消息"
    answer = ask(page, "你好")
    assert "token/秒" in answer or "首 token" in answer
    page.get_by_role("button", name="Switch to English").click()
    page.get_by_role("link", name="Chat", exact=True).wait_for()
    page.reload()
    page.get_by_role("link", name="Chat", exact=True).wait_for()
    assert page.evaluate("() => document.documentElement.lang") == "en"


def test_every_text_is_in_both_languages(server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(server)
    texts = page.evaluate("""async () => {
        const folder = document.querySelector('script[type=module]').src.replace(/[^/]*$/, '');
        return (await import(folder + 'texts.js')).TEXTS;
    }""")
    for name, pair in texts.items():
        assert len(pair) == 2, name
        english, chinese = pair
        assert sorted(re.findall(r"\{\d\}", english)) == sorted(re.findall(r"\{\d\}", chinese)), name
        assert english.strip(), name
        assert chinese.strip(), name


def test_a_small_screen_is_enough(server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(server, viewport={"width": 360, "height": 640}, has_touch=True)

    def fits() -> bool:
        width, shown = page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
        return bool(width <= shown == 360)

    assert fits()
    ask(page, "go")
    assert fits()
    for wide in (".code pre", ".table"):  # they scroll by themselves
        assert page.locator(wide).evaluate("(box) => (box.scrollLeft = 40, box.scrollLeft)") == 40
    box = page.get_by_role("button", name="Send").bounding_box()
    assert box is not None
    assert 0 <= box["x"] <= 360 - box["width"]
    assert 0 <= box["y"] <= 640 - box["height"]
    page.get_by_role("button", name="Settings").click()
    dialog = page.get_by_role("dialog", name="Settings")
    dialog.get_by_label("System prompt").fill("Be kind.")
    assert fits()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    page.get_by_role("button", name="Chats").click()
    page.get_by_role("dialog", name="Chats").get_by_role("button", name="New chat").first.click()
    page.get_by_role("heading", name="Ask fake").wait_for()
    page.get_by_role("link", name="Live").click()
    page.locator(".chart canvas").first.wait_for()
    assert fits()


def focused(page: Page) -> str:
    return str(
        page.evaluate("""() => {
            const now = document.activeElement;
            return now.getAttribute('aria-label') || now.id || now.textContent.trim();
        }""")
    )


def test_keyboard_alone_is_enough(server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(server, "/#live", ready=".live", viewport={"width": 800, "height": 700})
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the message box"
    page.keyboard.press("Enter")
    page.locator("#message:focus").wait_for()
    page.keyboard.type("first line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second line")
    page.keyboard.press("Enter")
    page.locator(".answer footer").wait_for()
    assert page.locator(".message.user").inner_text() == "first line\nsecond line"
    seen = []
    while not seen or (len(seen) < 40 and seen[-1] != "Regenerate"):
        page.keyboard.press("Shift+Tab")
        seen.append(focused(page))
        outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", f"nobody sees that {seen[-1]} has the focus"
    page.keyboard.press("Enter")
    page.wait_for_selector(".answer.growing", state="detached")
    page.locator(".answer footer").wait_for()
    page.get_by_role("button", name="Settings").focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    for _ in range(30):  # the focus stays in the dialog
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.closest('[role=dialog]') !== null")
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    assert focused(page) == "Settings"
    page.get_by_role("link", name="Live").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="In use").wait_for()


def test_enter_ends_a_word_that_is_being_composed(server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(server, locale="zh-CN")
    page.fill("#message", "ni hao")
    page.evaluate("""() => document.getElementById('message').dispatchEvent(
        new KeyboardEvent('keydown', { key: 'Enter', isComposing: true, bubbles: true, cancelable: true }))""")
    assert page.input_value("#message") == "ni hao"
    assert page.locator(".message").count() == 0
    page.press("#message", "Enter")
    page.locator(".message.user").wait_for()
    page.locator(".answer footer").wait_for()


def test_everything_that_can_be_used_has_a_name(server: LiveServer, open_page: OpenPage) -> None:
    for path, ready in (("/", "#message"), ("/#live", ".live")):
        page = open_page(server, path, ready=ready)
        if path == "/":
            ask(page, "go")
            log = page.get_by_role("log", name="Conversation")
            assert log.get_attribute("aria-live") == "polite"
            assert log.get_attribute("aria-busy") == "false"
            assert page.get_by_role("status").first.inner_text() == "The answer is complete."
            assert page.get_by_role("article").count() == 2
        else:
            page.locator(".chart canvas").first.wait_for()
        unnamed = page.evaluate("""() => [...document.querySelectorAll('button, a, input, textarea, [role=img], aside')]
            .filter((each) => each.checkVisibility())
            .filter((each) => !(each.getAttribute('aria-label') || each.textContent.trim() || each.labels?.length))
            .map((each) => each.outerHTML)""")
        assert unnamed == []
        assert page.locator("[aria-describedby]").evaluate_all(
            "(all) => all.every((each) => document.getElementById(each.getAttribute('aria-describedby')))"
        )
        assert page.get_by_role("main").count() == 1


def test_motion_is_optional(server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(server, reduced_motion="reduce")
    send(page, "go")
    page.locator(".answer").wait_for()
    moving = page.evaluate("() => document.getAnimations().length")
    assert moving == 0
    page.locator(".answer footer").wait_for()
