"""What /metrics tells, that it adds up, and what it never holds."""

from __future__ import annotations

import subprocess
import sys

from prometheus_client.parser import text_string_to_metric_families

from lpx.engine.histogram import Histogram
from lpx.engine.step_times import SECONDS
from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer, eventually, reset

PROMPT = "PROMPT-MARKER"
_LABELS = {
    "finished_reason", "kind", "le", "phase", "position", "reason", "rows",
    "block_size", "cache_dtype", "enable_prefix_caching", "num_blocks", "quantization", "version",
}  # fmt: skip


def scrape(server: LiveServer) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by series name and labels other than the model's name."""
    response = server.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(response.text):
        assert family.documentation
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "fake"
            assert set(labels) <= _LABELS
            found.setdefault(sample.name, {})[tuple(labels.values())] = sample.value
    return found


def test_counters_follow_the_requests(start_server: StartServer) -> None:
    server = start_server()
    before = scrape(server)  # the warm-up has been
    server.post("/v1/completions", {"prompt": "x" * 21, "max_tokens": 5, "n": 2})
    server.post("/generate", {"prompt": "x" * 21, "max_tokens": 3})
    server.events("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4})
    after = scrape(server)

    def gained(name: str, *labels: str) -> float:
        return after[name][labels] - before[name][labels]

    assert gained("lpx:prompt_tokens_total") == 42 + len("user: hi\nassistant: ")
    assert gained("lpx:generation_tokens_total") == 2 * 5 + 3 + 4
    assert gained("lpx:prefix_cache_queries_total") == gained("lpx:prompt_tokens_total")
    assert gained("lpx:prefix_cache_hits_total") == 20
    assert gained("lpx:request_success_total", "length") == 4
    assert gained("lpx:request_success_total", "abort") == gained("lpx:request_success_total", "error") == 0
    assert gained("lpx:num_preemptions_total") == 0
    assert gained("lpx:time_to_first_token_seconds_count") == gained("lpx:e2e_request_latency_seconds_count") == 4
    assert 0 <= gained("lpx:inter_token_latency_seconds_count") <= 17 - 4
    assert gained("lpx:e2e_request_latency_seconds_sum") >= gained("lpx:time_to_first_token_seconds_sum") > 0
    for name in ("lpx:num_requests_running", "lpx:num_requests_waiting", "lpx:kv_cache_usage_perc"):
        assert after[name] == {(): 0.0}


def test_gauges_show_what_runs_and_waits(start_server: StartServer) -> None:
    server = start_server(max_num_seqs=1)
    body = {"prompt": PROMPT, "max_tokens": 240, "stream": True}
    connections = [server.send_json("/generate", body) for _ in range(3)]
    eventually(lambda: scrape(server)["lpx:num_requests_waiting"][()] > 0, "a request that waits")
    for connection in connections:
        reset(connection)
    eventually(lambda: server.idle, "an idle engine")
    after = scrape(server)
    assert after["lpx:num_requests_running"] == after["lpx:num_requests_waiting"] == {(): 0.0}
    assert sum(after["lpx:request_success_total"].values()) == 1 + 3


def test_nothing_of_a_request_is_told(start_server: StartServer) -> None:
    server = start_server()
    server.post("/generate", {"prompt": PROMPT, "max_tokens": 5, "stop": PROMPT, "cache_salt": PROMPT})
    server.post("/v1/completions", {"prompt": PROMPT, "model": PROMPT}, headers={"x-request-id": PROMPT})
    assert PROMPT not in server.get("/metrics").text


def test_histogram_counts_into_the_bucket_that_holds_the_value() -> None:
    assert SECONDS[:4] == (0.0001, 0.0002, 0.0005, 0.001)
    assert list(SECONDS) == sorted(SECONDS)
    histogram = Histogram(SECONDS)
    histogram.observe(0.0001)
    histogram.observe(0.00015, 3)
    histogram.observe(1e6)
    shown = histogram.cumulative()
    assert shown[:3] == [("0.0001", 1.0), ("0.0002", 4.0), ("0.0005", 4.0)]
    assert shown[-2:] == [("500.0", 4.0), ("+Inf", 5.0)]
    assert histogram.count == 5
    assert histogram.total == 0.0001 + 3 * 0.00015 + 1e6


def test_the_library_is_loaded_by_the_first_look_only() -> None:
    code = "import sys, lpx.server.app, lpx.cli.app; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
