"""The board in deploy/grafana asks for series that the server has, with labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.live_server import LiveServer

BOARD = json.loads((Path(__file__).parents[2] / "deploy" / "grafana" / "lpx.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    for panel in PANELS:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


@pytest.fixture(scope="module")
def labels_of(shared_server: LiveServer) -> dict[str, set[str]]:
    """Labels by series; those of speculation have no samples on the fake model."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(shared_server.get("/metrics").text):
        if not family.samples:
            assert family.name.startswith("lpx:spec_decode")
            name = family.name + ("_total" if family.type == "counter" else "")
            found[name] = {"model_name", "position", "reason", "rows"}
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def stem(name: str) -> str:
    return re.sub(r"_(total|info)$", "", re.sub(r"_(bucket|sum|count|created)$", "", name))


def test_every_series_exists_with_its_labels(labels_of: dict[str, set[str]]) -> None:
    asked = [found for text in expressions() for found in re.finditer(r"(lpx:[a-z0-9_]+)(?:\{([^}]*)\})?", text)]
    assert len({found[1] for found in asked}) > 30
    for found in asked:
        assert found[1] in labels_of, found[1]
        for label in re.findall(r"(\w+)\s*(?:=~|=)", found[2] or ""):
            assert label in labels_of[found[1]], (found[1], label)
    for text in expressions():
        [name, *_] = re.findall(r"lpx:[a-z0-9_]+", text)
        for group in re.findall(r"by \(([^)]*)\)", text):
            for label in group.split(","):
                assert label.strip() in labels_of[name], (name, label)


def test_every_figure_of_the_server_is_on_the_board(labels_of: dict[str, set[str]]) -> None:
    shown = {stem(name) for text in expressions() for name in re.findall(r"lpx:[a-z0-9_]+", text)}
    assert {stem(name) for name in labels_of} == shown


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells


def test_expressions_have_matching_brackets() -> None:
    for text in expressions():
        for opening, closing in ("()", "{}", "[]"):
            assert text.count(opening) == text.count(closing), text
