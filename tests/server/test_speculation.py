"""Drafts over HTTP: the same texts, what became of the drafts in timings, log and metrics, and refusals."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from lpx.engine.drafting.speculation import Speculation
from lpx.engine.drafting.step_costs import StepCosts
from lpx.engine.drafting.suffix import SuffixDrafter
from lpx.engine.kv_cache import KVCache
from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer
from tests.server.test_metrics import scrape


def with_drafts(start_server: StartServer) -> LiveServer:
    def make_speculation(kv_cache: KVCache) -> Speculation:
        costs = StepCosts()
        costs._take_in({1: 1.0, 2: 1.1, 4: 1.2, 16: 2.0})
        return Speculation([SuffixDrafter(0)], most=6, judging=False, costs=costs, kv_cache=kv_cache, max_rows=64)

    executor = FakeExecutor(num_blocks=256, block_size=4, choose=lambda tokens: tokens[-3] if len(tokens) > 3 else 97)
    return start_server(executor, make_speculation=make_speculation)


BODY: dict[str, Any] = {"prompt": "abcabcabc", "max_tokens": 15}


def test_timings_tell_what_became_of_drafts(start_server: StartServer, caplog: pytest.LogCaptureFixture) -> None:
    server = with_drafts(start_server)
    with caplog.at_level(logging.INFO, logger="lpx.server.requests"):
        drafted = server.post("/generate", BODY).json()
        plain = server.post("/generate", {**BODY, "speculative": "off"}).json()
    assert drafted["text"] == plain["text"] == "abc" * 5
    assert {key: drafted["timings"][key] for key in ("speculation", "drafted_tokens", "accepted_tokens")} == {
        "speculation": "drafted",
        "drafted_tokens": 12,
        "accepted_tokens": 12,
    }
    assert drafted["timings"]["mean_accepted_length"] == 7.0
    assert plain["timings"]["speculation"] == "off"
    assert plain["timings"]["drafted_tokens"] == 0
    first, second = (record.getMessage() for record in caplog.records if "endpoint=/generate" in record.getMessage())
    assert "speculation=drafted drafted=12 accepted=12 mean_accepted_length=7.0" in first
    assert "speculation=off drafted=0" in second


def test_metrics_count_drafts(start_server: StartServer) -> None:
    server = with_drafts(start_server)
    before = scrape(server)
    server.post("/v1/completions", BODY)
    server.post("/v1/completions", {"prompt": "xyz", "max_tokens": 2, "speculative": "off"})
    server.post("/v1/completions", {"prompt": "xyz", "max_tokens": 2})
    after = scrape(server)

    def gained(name: str, *labels: str) -> float:
        return after[name][labels] - before.get(name, {}).get(labels, 0)

    assert gained("lpx:spec_decode_num_drafts_total") == 2
    assert gained("lpx:spec_decode_num_draft_tokens_total") == 12
    assert gained("lpx:spec_decode_num_accepted_tokens_total") == 12
    assert [gained("lpx:spec_decode_num_draft_tokens_per_pos_total", str(i)) for i in range(6)] == [2] * 6
    assert [gained("lpx:spec_decode_num_accepted_tokens_per_pos_total", str(i)) for i in range(6)] == [2] * 6
    assert gained("lpx:spec_decode_num_declined_total", "no_draft") == 1
    costs = [after["lpx:spec_decode_step_cost_seconds"][(str(rows),)] for rows in (1, 2, 4, 8, 16)]
    assert 0 < costs[0] <= costs[-1]


@pytest.mark.parametrize("value", ["on", "", 1, True, {"method": "suffix"}])
def test_other_values_are_refused(start_server: StartServer, value: object) -> None:
    server = with_drafts(start_server)
    response = server.post("/v1/completions", {**BODY, "speculative": value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "speculative"


def test_models_say_how_tokens_are_drafted(start_server: StartServer) -> None:
    assert with_drafts(start_server).get("/v1/models").json()["data"][0]["speculation"] == "suffix"
