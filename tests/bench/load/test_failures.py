"""What fails is counted by kind, with the server's words, and is in no other figure."""

from __future__ import annotations

import asyncio

import pytest

from lpx.bench.load import LoadSettings, measure_load
from lpx.bench.load.server_facts import ServerUnreachableError
from lpx.errors import ConfigError
from tests.bench.load.fake_server import (
    DONE,
    FakeServer,
    Script,
    ScriptedClock,
    event,
    run_load,
    run_with_server,
    text,
    usage,
    words,
)

PLAIN = "text/plain"
BEGUN = [(0.1, text("a")), (0.2, text("b")), (0.3, text("c"))]

FAILURES = {
    "http_429": (Script([(0.1, b'{"error": {"message": "too many"}}')], 429, "application/json"), "too many"),
    "http_500": (Script([(0.1, b"<h1>oh no</h1>")], 500, PLAIN), "<h1>oh no</h1>"),
    "http_404": (Script([(0.1, b'{"detail": "Not Found"}')], 404, "application/json"), "Not Found"),
    "http_204": (Script([], 204, PLAIN, "length"), ""),
    "stream_error": (Script([*BEGUN, (0.4, event({"error": {"message": "no memory"}}) + DONE)]), "no memory"),
    "bad_stream": (Script([*BEGUN, (0.4, b"data: {broken\n\n" + DONE)]), "no JSON: {broken"),
    "cut_stream": (Script(BEGUN, end="cut"), "the connection ended in the middle of the answer"),
    "connection": (Script(end="reset"), "the server closed the connection without an answer"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_failures_are_told_apart_and_change_no_other_figure(kind):
    script, detail = FAILURES[kind]
    good = [words(0.1, 0.2, tokens=2), words(0.3, 0.4, tokens=2)]
    report = run_load([good[0], script, good[1]])
    assert report.errors == {kind: 1}
    assert report.failures[0].detail == detail
    assert report.failures[0].number == 1
    assert report.figures["completed"] == 2
    assert report.figures["ttft_ms_mean"] == pytest.approx(200)
    assert report.figures["tpot_ms_mean"] == pytest.approx(100)
    assert report.figures["output_tokens"] == 4


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (Script([*BEGUN, (0.4, usage(3))]), "cut_stream"),  # well-formed HTTP, but neither a reason nor [DONE]
        (Script([*BEGUN], framing="close"), "cut_stream"),
        (Script([(0.1, b"data: [1, 2]\n\n" + DONE)]), "bad_stream"),
        (Script([(0.1, event({"choices": [3]}) + DONE)]), "bad_stream"),
        (Script([(0.1, event({"choices": [{"text": 5}]}) + DONE)]), "bad_stream"),
        (Script([(0.1, event({"choices": None}) + DONE)]), "bad_stream"),
        (Script([(0.1, event({"choices": [], "usage": {"completion_tokens": "many"}}) + DONE)]), "bad_stream"),
        (Script([(0.1, event({"choices": [], "usage": {"completion_tokens": -1}}) + DONE)]), "bad_stream"),
        (Script([(0.1, event({"choices": [], "usage": {"completion_tokens": float("inf")}}) + DONE)]), "bad_stream"),
        (Script([(0.1, b"data: " + b"[" * 100_000 + b"\n\n" + DONE)]), "bad_stream"),
        (Script([(0.1, b"[" * 100_000)], status=400, content_type="application/json"), "http_400"),
        (Script([(0.1, b"\xff\xfe")], content_type=PLAIN), "bad_stream"),
        (Script([(0.1, b"{}")], content_type="application/json"), "bad_stream"),
        (Script([(0.1, text("a") + DONE)], headers="Content-Encoding: gzip\r\n"), "bad_stream"),
    ],
)
def test_broken_answers_are_failures(script, kind):
    assert run_load([script]).errors == {kind: 1}


def test_an_answer_that_never_ends_is_a_timeout():
    report = run_load([Script(BEGUN, end="silent"), words(0.1, 0.2)], request_timeout_s=0.2)
    assert report.errors == {"timeout": 1}
    assert report.failures[0].detail == "no whole answer within 0.2 s"
    assert len(report.results) == 1


def test_an_event_at_the_very_end_needs_no_blank_line():
    report = run_load([Script([(0.1, text("a", finish_reason="stop")), (0.2, usage(1) + DONE.strip())])])
    assert report.errors == {}
    cut = run_load([Script([(0.1, text("a")), (0.2, text("b")[:-9])])])
    assert cut.errors == {"bad_stream": 1}


def test_an_idle_connection_that_the_server_gave_up_is_no_failure():
    report, server = run_with_server([words(0.1), Script(words(0.1).steps, end="leave"), words(0.1)])
    assert report.errors == {}
    assert len(report.results) == 3
    assert server.connections == 2


def test_a_server_that_refuses_every_request_of_the_warm_up_is_not_measured():
    refused = Script([(0.1, b'{"error": {"message": "no such path"}}')], 404, "application/json")
    with pytest.raises(ServerUnreachableError, match=r"/v1/completions answers no request.*http_404: no such path"):
        run_load([refused, refused], num_warmups=2)


def test_a_wrong_key_is_said_at_once():
    async def main():
        async def refuse(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await measure_load(LoadSettings(base_url=f"127.0.0.1:{port}"), api_key="wrong")

    with pytest.raises(ServerUnreachableError, match=r"refuses with HTTP 401: give its key with --api-key"):
        asyncio.run(main())


def test_no_server_is_said_with_the_address(unused_port):
    with pytest.raises(ServerUnreachableError, match=rf"no server answers at http://127.0.0.1:{unused_port}"):
        asyncio.run(measure_load(LoadSettings(base_url=f"http://127.0.0.1:{unused_port}")))


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("key", ["a b", "key\n", "schlüssel", "a\r\nX-Evil: 1"])
def test_a_key_that_no_header_can_hold_is_refused(key):
    with pytest.raises(ConfigError, match="holds characters that no key has"):
        run_load([words(0.1)], api_key=key)


@pytest.mark.parametrize(
    "told",
    [
        event({"object": "error", "message": "engine died", "code": 500}),
        b'event: error\ndata: {"message": "engine died", "code": 500}\n\n',
        event({"type": "error", "error": {"message": "engine died"}}),
        event({"detail": "engine died"}),
    ],
)
def test_an_error_in_a_stream_is_one_however_it_is_told(told):
    report = run_load([words(0.1, 0.2, tokens=2), Script([*BEGUN, (0.4, told + DONE)])])
    assert report.errors == {"stream_error": 1}
    assert "engine died" in report.failures[0].detail
    assert report.figures["completed"] == 1


@pytest.mark.parametrize("count", [10**400, 1e308, 2**70, -1, True, "5"])
def test_a_count_that_cannot_be_is_a_bad_stream(count):
    script = Script([*BEGUN, (0.4, event({"choices": [], "usage": {"completion_tokens": count}}) + DONE)])
    assert run_load([words(0.1, 0.2, tokens=2), script]).errors == {"bad_stream": 1}


def test_a_key_that_the_server_repeats_is_kept_nowhere():
    refusal = Script([(0.1, b'{"error": {"message": "wrong key: sk-SECRET"}}')], 401, "application/json")
    report = run_load([words(0.1, 0.2, tokens=2), refusal], api_key="sk-SECRET")
    assert report.failures[0].detail == "wrong key: ***"


KEY = "sk-SECRET-0123456789"
TOLD = f"{'x' * 295} {KEY} {'y' * 300}"
ESCAPED = TOLD.replace("SECRET", "\\u0053ECRET")


@pytest.mark.parametrize(
    "script",
    [
        Script([(0.1, TOLD.encode())], 403, PLAIN),
        Script([(0.1, f'{{"error": {{"message": "{ESCAPED}"}}}}'.encode())], 403, "application/json"),
        Script([*BEGUN, (0.4, event({"error": {"message": TOLD}}) + DONE)]),
        Script([*BEGUN, (0.4, b"data: " + TOLD.encode() + b"\n\n")]),
        Script([*BEGUN, (0.4, event([TOLD]))]),
        Script([*BEGUN, (0.4, event({"choices": [TOLD]}))]),
        Script([(0.1, f'{{"x": "{ESCAPED}"}}'.encode())], content_type="application/json"),
        Script([(0.1, TOLD.encode())], content_type=PLAIN),
    ],
)
def test_a_key_at_the_end_of_what_is_kept_leaves_no_part_of_it(script):
    report = run_load([words(0.1, 0.2, tokens=2), script], api_key=KEY)
    assert "x" * 200 in report.failures[0].detail
    assert "sk-" not in report.failures[0].detail


@pytest.mark.parametrize(
    ("told", "words_of_it"),
    [
        (b'event: error\ndata: {"choices": [{"text": "not a text"}], "note": "engine died"}\n\n', "engine died"),
        (b'data: {"choices": [{"text": "x"}]}\nevent:error\n\n', "choices"),
        (b"event: error\ndata: the engine died\n\n", "the engine died"),
        (b"event: error\n\n", "an error without words"),
        (b'error: {"message": "slot unavailable"}\n\n', "slot unavailable"),
        ('event: error\r\ndata: {"error": {"message": "显存不足"}}\r\n\r\n'.encode(), "显存不足"),
    ],
)
def test_an_event_that_is_called_error_is_one_whatever_it_holds(told, words_of_it):
    report = run_load([Script([*BEGUN, (0.4, told + DONE)]), words(0.1, 0.2, tokens=2)])
    assert report.errors == {"stream_error": 1}
    assert words_of_it in report.failures[0].detail
    assert report.figures["completed"] == 1


def test_events_with_other_names_are_no_part_of_an_answer():
    ping = b'event: ping\ndata: {"choices": [{"index": 0, "text": "ping "}]}\n\n'
    told = b"event: message\n" + text("a")
    report = run_load([Script([(0.1, ping), (0.2, told), (0.3, ping + b"event: x\ndata: no JSON\n\n"), (0.4, DONE)])])
    [result] = report.results
    assert result.text == "a"
    assert result.timings.ttft_ms == pytest.approx(200)
    assert result.timings.e2el_ms == pytest.approx(200)


def test_a_stream_of_other_events_only_is_cut_and_says_which():
    report = run_load([Script([(0.1, b'event: content_block_delta\ndata: {"delta": {"text": "a"}}\n\n')])])
    assert report.errors == {"cut_stream": 1}
    assert "content_block_delta" in report.failures[0].detail


def test_all_answers_under_way_together_are_bounded(monkeypatch):
    from lpx.bench.load import http_client

    monkeypatch.setattr(http_client, "MAX_HELD_BYTES", 4000)
    long = Script([(0.1, text("a" * 5000))])
    report = run_load([words(0.1)] * 9 + [long] + [words(0.1)] * 2)  # what one held is free for the next
    assert report.errors == {"bad_stream": 1}
    assert "all answers under way together take more than 4000 bytes" in report.failures[0].detail
    assert len(report.results) == 11


@pytest.mark.parametrize("counts", [1, 2, 3, 4, 5])
def test_a_server_that_stops_counting_is_one_error_whenever_it_does(monkeypatch, counts):
    """While prompts are made ahead, in the warm-up, and while the load is running."""
    from lpx.bench.load import prompt_sets
    from lpx.bench.load.prompt_supply import PromptSupply

    monkeypatch.setattr(prompt_sets, "PromptSupply", lambda make, count: PromptSupply(make, count, ahead_bytes=1))
    left = iter(range(counts))

    def count(text):
        return 1 + len(text.split()) if next(left, None) is not None else -1  # which is no count

    with pytest.raises(ServerUnreachableError, match="the server stopped counting tokens"):
        run_load([words(0.1)] * 9, tokenize=count, dataset_name="random", num_warmups=1, num_prompts=8)


def test_a_model_is_asked_for_as_the_server_calls_it_and_shown_without_the_key():
    key = "sk-0123456789"
    name = f"model-{key}-{'x' * 300}"

    async def measure():
        clock = ScriptedClock()
        async with FakeServer(clock, [words(0.1, 0.2)], models={"data": [{"id": name}]}) as server:
            url = f"http://127.0.0.1:{server.port}"
            settings = LoadSettings(base_url=url, max_concurrency=1, num_warmups=0, num_prompts=1)
            return await measure_load(settings, clock=clock, api_key=key), server.bodies

    report, bodies = asyncio.run(measure())
    assert [body["model"] for body in bodies] == [name]
    assert report.subject.model.startswith("model-***-x")
    assert len(report.subject.model) == 200
