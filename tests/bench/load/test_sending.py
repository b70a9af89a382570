"""What is sent, to whom, and in which order; what stays out of the figures."""

from __future__ import annotations

import asyncio
import json
import random
from itertools import pairwise

import pytest

from lpx.bench.load import LoadProgress, LoadSettings, measure_load
from lpx.bench.load.pace import due_times
from tests.bench.load.fake_server import (
    FakeServer,
    Script,
    ScriptedClock,
    chat,
    run_load,
    run_with_server,
    usage,
    words,
)


def test_requests_ask_for_a_stream_with_usage_and_carry_the_key():
    report, server = run_with_server(
        [words(0.1)], api_key="sk-secret", output_len=9, ignore_eos=True, extra_body={"top_k": 4, "temperature": 0.5}
    )
    [body] = server.bodies
    assert body.pop("prompt")
    assert body == {
        "model": "fake-model",
        "max_tokens": 9,
        "temperature": 0.5,
        "top_k": 4,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert "Authorization: Bearer sk-secret\r\n" in server.heads[0]
    assert "sk-secret" not in json.dumps(report.as_json(detailed=True))


def test_the_environments_key_is_lpx_s_then_openais(monkeypatch):
    monkeypatch.delenv("LPX_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "of-openai")
    assert "Bearer of-openai\r\n" in run_with_server([words(0.1)])[1].heads[0]
    monkeypatch.setenv("LPX_API_KEY", "of-lpx")
    assert "Bearer of-lpx\r\n" in run_with_server([words(0.1)])[1].heads[0]


def test_warm_up_is_in_no_figure_and_shares_no_prompt():
    slow = [words(5.0, 9.0, tokens=99)] * 3
    report, server = run_with_server([*slow, words(0.1, 0.2, tokens=2)], num_prompts=1, num_warmups=3)
    assert report.warmups == 3
    assert report.figures["ttft_ms_mean"] == pytest.approx(100)
    assert report.figures["output_tokens"] == 2
    prompts = [body["prompt"] for body in server.bodies]
    assert len({prompt[:20] for prompt in prompts}) == 4


@pytest.mark.parametrize("dataset", ["fixed", "random", "long"])
def test_no_prompt_begins_like_another_one_of_this_or_an_earlier_run(dataset):
    beginnings = set()
    for _ in range(2):
        _, server = run_with_server([words(0.1)] * 20, dataset_name=dataset)
        beginnings |= {body["prompt"][:24] for body in server.bodies}
    assert len(beginnings) == 40 if dataset != "long" else len(beginnings) > 30


def test_the_same_nonce_gives_the_same_prompts():
    sent = [
        [body["prompt"] for body in run_with_server([words(0.1)] * 3, dataset_name="random", nonce="x")[1].bodies]
        for _ in range(2)
    ]
    assert sent[0] == sent[1]
    other = run_with_server([words(0.1)] * 3, dataset_name="random", nonce="y")[1]
    assert sent[0][0] != other.bodies[0]["prompt"]


def test_a_shared_prefix_is_shared_and_what_follows_is_not():
    _, server = run_with_server([words(0.1)] * 4, dataset_name="prefix_repetition", prefix_len=20, num_prefixes=2)
    prompts = [body["prompt"].split() for body in server.bodies]
    assert prompts[0][:20] == prompts[2][:20] != prompts[1][:20] == prompts[3][:20]
    assert len({tuple(prompt[20:24]) for prompt in prompts}) == 4
    assert {len(prompt) for prompt in prompts} == {84}


def test_a_conversation_carries_the_answers_that_the_server_gave():
    answers = [
        Script([(0.1, chat(f"answer {n}")), (0.1, chat(finish="stop") + usage(2) + b"data: [DONE]\n\n")])
        for n in range(4)
    ]
    report, server = run_with_server(answers, endpoint_type="openai-chat", dataset_name="chat")
    assert len(report.results) == 4
    for turn, body in enumerate(server.bodies):
        roles = [message["role"] for message in body["messages"]]
        assert roles == ["user", "assistant"] * turn + ["user"]
        given = [message["content"] for message in body["messages"] if message["role"] == "assistant"]
        assert given == [f"answer {n}" for n in range(turn)]


def test_a_failed_turn_ends_its_conversation():
    broken = Script([(0.1, b"")], 500, "text/plain", "length")
    turn = Script([(0.1, chat("a", finish="stop")), (0.1, usage(1) + b"data: [DONE]\n\n")])
    report, server = run_with_server([turn, broken], endpoint_type="openai-chat", dataset_name="chat", num_prompts=4)
    assert (len(report.results), report.errors, len(server.bodies)) == (1, {"http_500": 1}, 2)


def test_connections_are_kept():
    _, server = run_with_server([words(0.1)] * 5)
    assert server.connections == 1


def test_no_more_than_max_concurrency_are_under_way():
    async def main():
        most = under_way = 0

        async def answer(reader, writer):
            nonlocal most, under_way
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("Content-Length:")), 0)
                await reader.readexactly(length)
                if not head.startswith("POST /v1/completions"):
                    writer.write(b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n")
                    continue
                under_way += 1
                most = max(most, under_way)
                while under_way < 3 and len(done) < 7:
                    await asyncio.sleep(0)
                done.append(1)
                under_way -= 1
                body = json.dumps({"choices": [{"text": "x"}], "usage": {"completion_tokens": 1}}).encode()
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)

        done: list[int] = []
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        settings = LoadSettings(
            base_url=f"127.0.0.1:{port}", model="m", max_concurrency=3, num_prompts=9, num_warmups=0, stream=False
        )
        report = await measure_load(settings)
        server.close()
        return report, most

    report, most = asyncio.run(main())
    assert len(report.results) == 9
    assert most == report.peak_concurrency == 3


def test_a_stopped_load_reports_what_was_measured():
    async def main():
        clock, stopping = ScriptedClock(), asyncio.Event()
        scripts = [words(0.1, 0.2), words(0.1, 0.2), Script([(0.1, b": wait\n\n")], end="silent")]
        async with FakeServer(clock, scripts) as server:
            settings = LoadSettings(
                base_url=f"http://127.0.0.1:{server.port}", max_concurrency=1, num_warmups=0, num_prompts=10
            )
            load = asyncio.ensure_future(measure_load(settings, clock=clock, stopping=stopping))
            while len(server.bodies) < 3:
                await asyncio.wait({load}, timeout=0.01)
            stopping.set()
            return await load

    report = asyncio.run(main())
    assert report.interrupted
    assert (len(report.results), report.left_out, report.errors) == (2, 1, {})
    assert report.figures["ttft_ms_mean"] == pytest.approx(100)


def test_progress_tells_the_phases():
    async def main():
        clock, seen = ScriptedClock(), []
        async with FakeServer(clock, [words(0.1)] * 3) as server:
            settings = LoadSettings(
                base_url=f"http://127.0.0.1:{server.port}", dataset_name="random", num_prompts=2, num_warmups=1
            )
            await measure_load(settings, seen.append, clock=clock)
        return seen

    seen = asyncio.run(main())
    assert [state.phase for state in seen][:3] == ["prompts", "prompts", "warm-up"]
    assert seen[:2] == [LoadProgress("prompts", 1, 2), LoadProgress("prompts", 2, 2)]


def test_lengths_are_exact_where_tokens_can_be_counted():
    report, server = run_with_server(
        [words(0.1, 0.2, tokens=3, prompt=50)] * 3,
        tokenize=lambda text: 1 + len(text.split()),
        dataset_name="random",
        input_len=50,
    )
    assert {len(body["prompt"].split()) for body in server.bodies} == {49}
    assert report.lengths == "exact, by the server's /tokenize"
    assert report.warnings == ()
    unknown = run_load([words(0.1, prompt=57)], dataset_name="random", input_len=50)
    assert unknown.lengths.startswith("approximate: ")
    assert any("not as long as wanted: the server counts 57 tokens" in warning for warning in unknown.warnings)


def test_both_counts_are_shown_when_they_differ():
    same = run_load([words(0.1, 0.2, tokens=2)], tokenize=lambda text: len(text.split()))
    assert same.recounted is not None
    assert (same.recounted.counted, same.recounted.recounted, same.warnings) == (2, 2, ())
    other = run_load([words(0.1, 0.2, tokens=5)], tokenize=lambda text: len(text.split()))
    assert other.warnings == (
        "the server counts 5 tokens in 1 answers, encoding their texts again gives 2; the figures use the server's",
    )
    assert other.figures["output_tokens"] == 5


def settings_of(**options):
    return LoadSettings(base_url="http://x", **options)


def test_requests_are_due_at_the_rate_that_was_asked_for():
    due = list(due_times(settings_of(request_rate=20.0), 4001, random.Random(1)))
    assert due[0] == 0
    gaps = [after - before for before, after in pairwise(due)]
    assert due[-1] == pytest.approx(200, rel=0.05)
    square = sum(gap**2 for gap in gaps) / len(gaps)
    assert square == pytest.approx(2 * 0.05**2, rel=0.1)  # of an exponential distribution
    even = list(due_times(settings_of(request_rate=20.0, burstiness=1e6), 11, random.Random(1)))
    assert even == pytest.approx([0.05 * n for n in range(11)], rel=0.02)


def test_a_ramp_raises_the_rate_from_request_to_request():
    ramp = {"ramp_up_start_rps": 1.0, "ramp_up_end_rps": 16.0, "burstiness": 1e7}
    for kind, middle in (("linear", 8.5), ("exponential", 4.0)):
        due = list(due_times(settings_of(ramp_up_strategy=kind, **ramp), 101, random.Random(1)))
        assert due[1] - due[0] == pytest.approx(1.0, rel=0.01)
        assert due[51] - due[50] == pytest.approx(1 / middle, rel=0.01)
        assert due[100] - due[99] == pytest.approx(1 / 16, rel=0.06)


def test_a_rate_is_bounded_by_max_concurrency():
    report = run_load([words(0.1, 0.2)] * 5, request_rate=1000.0, max_concurrency=1)
    assert len(report.results) == 5
    assert report.peak_concurrency == 1
    assert all(result.late_s >= 0 for result in report.results)


def test_a_duration_ends_a_load(monkeypatch):
    async def main():
        clock = ScriptedClock()
        async with FakeServer(clock, [words(0.1)] * 400) as server:
            settings = LoadSettings(
                base_url=f"http://127.0.0.1:{server.port}", max_concurrency=1, num_warmups=0, duration_s=0.05
            )
            return await measure_load(settings, clock=clock)

    report = asyncio.run(main())
    assert 0 < len(report.results) <= 400
    few = run_load([words(0.1)] * 3, duration_s=600.0)
    assert any("all 3 prompts were sent before --duration was over" in warning for warning in few.warnings)
