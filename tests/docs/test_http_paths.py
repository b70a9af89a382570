"""The page of the HTTP API names every route of the real application, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from lpx.server.app import create_app
from lpx.server.settings import ServerSettings
from tests.docs.pages import DOCS
from tests.server.app_routes import all_routes
from tests.server.conftest import fake_engine


def test_the_page_has_every_route_with_its_methods(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    engine = fake_engine()
    real: set[tuple[str, str]] = set()
    for route in all_routes(create_app(engine, ServerSettings(data_dir=tmp_path))):
        methods = route.methods - {"HEAD", "OPTIONS"} if route.kind == "http" else {"WebSocket"}
        real |= {(method, re.sub(r":path\}", "}", route.path)) for method in methods}
    engine.close()
    assert _named() == real


def _named() -> set[tuple[str, str]]:
    """(method, path) of the first column under "Paths"; a path without a method has those of the path before it."""
    section = (DOCS / "http-api.md").read_text(encoding="utf-8").split("\n## Paths\n")[1].split("\n## ")[0]
    found: set[tuple[str, str]] = set()
    for row in re.findall(r"^\| (.*?) \| ", section, re.MULTILINE):
        methods: list[str] = []
        has_path = False
        for method, path in re.findall(r"\b(GET|POST|DELETE|WebSocket)\b|(/[^`\s]*)`", row):
            if method:
                methods, has_path = [method] if has_path else [*methods, method], False
            else:
                found |= {(each, path) for each in methods}
                has_path = True
    return found
