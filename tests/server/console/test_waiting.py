"""The console while the model loads, and when it cannot."""

from __future__ import annotations

import threading
from typing import Any

from lpx.engine.async_engine import AsyncEngine
from lpx.errors import ConfigError
from tests.server.conftest import fake_engine
from tests.server.console.conftest import OpenPage
from tests.server.live_server import PATIENCE_S, LiveServer


def test_loading_is_shown_until_the_model_answers(open_page: OpenPage) -> None:
    go_on = threading.Event()

    def load(progress: Any) -> AsyncEngine:
        progress(3, 10)
        assert go_on.wait(PATIENCE_S)
        return fake_engine()

    server = LiveServer(load, wait_ready=False)
    try:
        page = open_page(server, ready="progress")
        assert "30" in page.get_by_role("status").inner_text()
        go_on.set()
        page.get_by_role("heading", name="Ask fake").wait_for()
    finally:
        go_on.set()
        server.close()


def test_a_failed_load_is_said(open_page: OpenPage) -> None:
    def load(progress: Any) -> AsyncEngine:
        raise ConfigError("the model cannot be loaded")

    server = LiveServer(load, wait_ready=False)
    try:
        page = open_page(server, ready="[role=status]")
        page.get_by_text("The server is not ready").wait_for()
    finally:
        server.close()
