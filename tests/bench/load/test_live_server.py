"""The load generator on a real server with a tiny model: every way in, and counts that agree with the server's own."""

from __future__ import annotations

import asyncio

import pytest

from lpx.bench.load import DecodeSettings, LoadSettings, measure_decode, measure_load
from lpx.bench.workloads import measure_again
from lpx.errors import ConfigError
from tests.bench.load.tiny_server import tiny_server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with tiny_server(tmp_path_factory.mktemp("model")) as server:
        yield server


def generated(server):
    return server.engine.stats().generation_tokens_total


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("endpoint_type", ["openai-completions", "openai-chat", "lpx"])
def test_tokens_are_those_that_the_engine_generated(server, endpoint_type, stream):
    before = generated(server)
    settings = LoadSettings(
        base_url=server.url,
        endpoint_type=endpoint_type,
        dataset_name="random",
        input_len=40,
        output_len=12,
        num_prompts=10,
        max_concurrency=4,
        num_warmups=0,
        ignore_eos=True,
        stream=stream,
    )
    report = asyncio.run(measure_load(settings))
    assert report.errors == {}
    assert report.figures["completed"] == 10
    assert report.figures["output_tokens"] == 120 == generated(server) - before
    assert ("ttft_ms_mean" in report.figures) == stream
    assert (report.subject.engine, report.subject.model) == ("lpx", "tiny")
    assert report.lengths.startswith("exact, by the server's /tokenize")
    if endpoint_type != "openai-chat":
        assert report.figures["input_tokens"] == 400
    assert not any("not as long as wanted" in warning for warning in report.warnings)


def test_a_shared_prefix_is_found_in_the_cache_and_unique_prompts_are_not(server):
    load = {"base_url": server.url, "num_prompts": 6, "max_concurrency": 1, "output_len": 2, "input_len": 8}
    shared = asyncio.run(measure_load(LoadSettings(dataset_name="prefix_repetition", prefix_len=96, **load)))
    assert shared.figures["cached_tokens"] >= 5 * 64
    for _ in range(2):  # a second run with the same seed finds nothing of the first one
        unique = asyncio.run(measure_load(LoadSettings(dataset_name="random", **{**load, "input_len": 96})))
        assert unique.figures["cached_tokens"] == 0


def test_the_same_load_can_be_measured_again(server):
    settings = LoadSettings(base_url=server.url, num_prompts=3, output_len=4, max_concurrency=1, ignore_eos=True)
    first = asyncio.run(measure_load(settings)).measurement()
    second = measure_again(first.kind, first.settings)
    assert second.settings == first.settings
    assert second.figures["completed"] == first.figures["completed"] == 3
    assert second.figures["output_tokens"] == first.figures["output_tokens"] == 12


def test_prompts_that_do_not_fit_the_context_are_refused_before_they_are_made(server):
    settings = LoadSettings(base_url=server.url, dataset_name="random", input_len=500, output_len=20)
    with pytest.raises(ConfigError, match="prompt and answer are 520 tokens, but the server's context is 512"):
        asyncio.run(measure_load(settings))


@pytest.mark.parametrize("endpoint_type", ["openai-completions", "openai-chat", "lpx"])
def test_decode_asks_for_each_length_as_often_as_it_should(server, endpoint_type):
    settings = DecodeSettings(
        base_url=server.url, endpoint_type=endpoint_type, output_lens=(4, 8, 16), repeats=2, concurrency=2, input_len=20
    )
    before = generated(server)
    report = asyncio.run(measure_decode(settings))
    assert generated(server) - before == 2 * (4 + 2 * (4 + 8 + 16))  # with the warm-up
    assert sorted(point.tokens for point in report.points) == [4, 4, 8, 8, 16, 16]
    assert report.measurement().kind == "decode"
    assert not any("ended before" in problem for problem in report.problems)


def test_decode_can_be_measured_again(server):
    settings = DecodeSettings(base_url=server.url, output_lens=(2, 4), repeats=1, input_len=8)
    again = measure_again("decode", settings.as_json())
    assert again.settings == settings.as_json()
    assert len(again.samples["answer_seconds"]) == 2
    assert again.figures["bad_fit"] == 1  # two lengths always lie on a line
