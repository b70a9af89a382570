"""Limits: token buckets as pure arithmetic, and what a client meets when it goes beyond one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.engine.sampling_params import SamplingParams
from lpx.errors import ConfigError
from lpx.server.api_keys import KeyRing
from lpx.server.caller import Callers
from lpx.server.rate_limits import LimitReached, Quota, Ticket, TokenBucket, begin_requests
from lpx.server.settings import Limits, ServerSettings
from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer, eventually, reset

ALICE, BOB = "sk-alice-0123456789", "sk-bob-0123456789ab"


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# --- buckets ------------------------------------------------------------------------------------------------------


def test_a_bucket_empties_fills_up_evenly_and_never_beyond_a_minute() -> None:
    clock = FakeClock()
    bucket = TokenBucket(60, clock)
    bucket.take(60)
    assert bucket.wait_s(1) == pytest.approx(1)
    clock.now += 30
    assert bucket.balance == pytest.approx(30)
    assert bucket.wait_s(45) == pytest.approx(15)
    clock.now += 1e9
    assert bucket.balance == 60


def test_what_is_larger_than_a_minute_needs_the_whole_bucket_and_is_owed() -> None:
    clock = FakeClock()
    bucket = TokenBucket(60, clock)
    assert bucket.wait_s(1000) == 0
    bucket.take(100)
    assert bucket.balance == -40
    assert bucket.wait_s(1) == pytest.approx(41)


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "wait"]), st.floats(0, 500)), max_size=50))
def test_a_bucket_never_holds_more_than_it_can_and_says_when_to_come_back(steps: list[tuple[str, float]]) -> None:
    clock = FakeClock()
    bucket = TokenBucket(100, clock)
    for what, amount in steps:
        if what == "take":
            bucket.take(amount)
        elif what == "give":
            bucket.give(amount)
        else:
            clock.now += bucket.wait_s(amount) + 1e-9
            assert bucket.wait_s(amount) < 1e-6
        assert bucket.balance <= 100


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 60), st.sampled_from(["settle", "drop", "twice"])), max_size=20
    )
)
def test_tickets_charge_what_was_used_and_give_all_slots_back(uses: list[tuple[int, int, str]]) -> None:
    quota = Quota(Limits(tokens_per_minute=10_000, max_concurrent_requests=1000), "this key", FakeClock())
    assert quota.tokens is not None
    charged = 0
    for prompt, more, end in uses:
        ticket = Ticket((quota,), prompt_tokens=prompt, reserved=prompt + 100, slots=(quota,))
        assert quota.under_way == 1
        if end == "drop":
            charged += prompt
        else:
            ticket.settle(prompt + more)
            charged += prompt + more
            if end == "twice":
                ticket.settle(0)
        del ticket
        assert quota.under_way == 0
        assert quota.tokens.balance == 10_000 - charged


def test_a_refused_request_takes_nothing() -> None:
    quota = Quota(
        Limits(max_concurrent_requests=1, requests_per_minute=5, tokens_per_minute=100), "this key", FakeClock()
    )
    assert quota.tokens is not None
    quota.begin_request()
    for _ in range(10):
        with pytest.raises(LimitReached) as caught:
            quota.begin_request()
        assert caught.value.reason == "concurrent_requests"
    quota.end_request()
    for _ in range(4):
        quota.begin_request()
        quota.end_request()
    with pytest.raises(LimitReached) as caught:
        quota.begin_request()
    assert caught.value.headers == {"retry-after": "12"}
    quota.tokens.take(50)
    with pytest.raises(LimitReached):
        Ticket((quota,), prompt_tokens=1, reserved=51)
    assert quota.tokens.balance == 50


def test_a_request_is_counted_with_all_quotas_or_with_none() -> None:
    own, shared = Quota(Limits(), "this key"), Quota(Limits(max_concurrent_requests=1), "this server")
    begin_requests((own, shared))
    with pytest.raises(LimitReached):
        begin_requests((own, shared))
    assert (own.under_way, shared.under_way) == (1, 1)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "5", 2**60])
def test_limits_are_whole_numbers(value: Any) -> None:
    with pytest.raises(ConfigError):
        Limits(requests_per_minute=value)


def test_a_callers_salt_keeps_keys_apart_whatever_they_name() -> None:
    callers = Callers(KeyRing([ALICE, BOB]), Limits())
    alice, bob = (callers.of(key) for key in callers.ring.keys)
    params = [SamplingParams(cache_salt=salt) for salt in (None, "a", "b")]
    salts = [who.admit([[1]], each, 100)[0].cache_salt for who in (alice, bob) for each in params]
    assert len(set(salts)) == 6
    assert alice.admit([[1]], params[1], 100)[0].cache_salt == salts[1]
    anybody = callers.of(None)
    assert anybody.admit([[1]], params[0], 100)[0].cache_salt is None


# --- over HTTP ----------------------------------------------------------------------------------------------------


def keyed(start_server: StartServer, tmp_path: Path, lines: str, *executor: FakeExecutor, **options: Any) -> LiveServer:
    path = tmp_path / "keys"
    path.write_text(lines)
    path.chmod(0o600)
    limits = options.pop("limits", Limits())
    return start_server(*executor, settings=ServerSettings(api_key_file=path, limits=limits), **options)


def ask(server: LiveServer, key: str, **body: Any) -> httpx.Response:
    body = {"prompt": "abc", "max_tokens": 2, **body}
    return server.post("/v1/completions", body, headers={"authorization": f"Bearer {key}"})


def limited(response: httpx.Response, *said: str) -> None:
    assert response.status_code == 429, response.text
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert int(response.headers["retry-after"]) >= 1
    for part in said:
        assert part in error["message"]


def test_requests_per_minute_are_counted_by_key(start_server: StartServer, tmp_path: Path) -> None:
    server = keyed(start_server, tmp_path, f"alice:{ALICE} requests_per_minute=2\nbob:{BOB}\n")
    assert [ask(server, ALICE).status_code for _ in range(2)] == [200, 200]
    limited(ask(server, ALICE), "2 requests per minute", "this key")
    assert [ask(server, BOB).status_code for _ in range(5)] == [200] * 5
    assert server.get("/v1/models", headers={"authorization": f"Bearer {ALICE}"}).status_code == 200


def test_tokens_per_minute_count_prompts_and_answers(start_server: StartServer, tmp_path: Path) -> None:
    server = keyed(start_server, tmp_path, f"alice:{ALICE} tokens_per_minute=100\n")
    assert ask(server, ALICE, prompt="x" * 40, max_tokens=20).status_code == 200
    limited(ask(server, ALICE, prompt="x" * 40, max_tokens=20), "100 tokens per minute", "may take 60")
    assert ask(server, ALICE, prompt="x" * 10, max_tokens=10).status_code == 200


def test_what_an_answer_did_not_use_is_given_back(start_server: StartServer, tmp_path: Path) -> None:
    executor = FakeExecutor(num_blocks=256, block_size=4, choose=lambda tokens: "\n")
    server = keyed(start_server, tmp_path, f"alice:{ALICE} tokens_per_minute=100\n", executor)
    for _ in range(5):  # each may take 63 tokens and takes 4
        assert ask(server, ALICE, max_tokens=60, stop="\n").status_code == 200


def test_concurrent_requests_are_counted_and_given_back_on_every_end(start_server: StartServer, tmp_path: Path) -> None:
    hold = threading.Event()
    executor = FakeExecutor(num_blocks=2000, block_size=16, before_step=lambda step: step == 0 or hold.wait(60))
    server = keyed(start_server, tmp_path, f"alice:{ALICE} max_concurrent_requests=2\n", executor, max_model_len=20_000)
    head = f"POST /generate HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ALICE}\r\n".encode()
    body = b'{"prompt": "a", "stream": true, "max_tokens": null, "ignore_eos": true}'
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    running = [server.raw(head + body), server.raw(head + body)]
    eventually(lambda: server.engine.stats().running + server.engine.stats().waiting == 2, "two requests")
    limited(ask(server, ALICE), "2 requests are under way", "this key")
    for connection in running:
        reset(connection)  # one kind of end; the others below
    hold.set()
    eventually(lambda: server.idle, "an idle engine")
    eventually(lambda: ask(server, ALICE).status_code == 200, "a free place")
    for wrong in ({"prompt": 1}, {"temperature": -1}, {"max_tokens": 10**9, "n": 500}, {"model": "x"}):
        assert 400 <= ask(server, ALICE, **wrong).status_code < 500
    server.client.post("/generate", content=b"{", headers={"authorization": f"Bearer {ALICE}"})
    assert [ask(server, ALICE).status_code for _ in range(3)] == [200] * 3


def test_all_clients_together_have_limits_too(start_server: StartServer, tmp_path: Path) -> None:
    limits = Limits(requests_per_minute=3)
    server = keyed(start_server, tmp_path, f"alice:{ALICE}\nbob:{BOB}\n", limits=limits)
    assert [ask(server, key).status_code for key in (ALICE, BOB, ALICE)] == [200] * 3
    limited(ask(server, BOB), "this server")


def test_limits_hold_without_keys(start_server: StartServer) -> None:
    server = start_server(settings=ServerSettings(limits=Limits(requests_per_minute=1)))
    assert server.post("/generate", {"prompt": "a", "max_tokens": 1}).status_code == 200
    limited(server.post("/generate", {"prompt": "a", "max_tokens": 1}), "this server")
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("limit", "body", "status", "param"),
    [
        ("max_prompt_tokens=5", {"prompt": "x" * 6}, 400, "prompt"),
        ("max_prompt_tokens=5", {"prompt": ["x", "x" * 6]}, 400, "prompt"),
        ("max_output_tokens=5", {"max_tokens": 6}, 400, "max_tokens"),
        ("max_choices=2", {"n": 3}, 400, "n"),
        ("max_choices=2", {"prompt": ["a", "b"], "n": 2}, 400, "n"),
        ("max_body_bytes=100", {"prompt": "x" * 100}, 413, None),
    ],
)
def test_what_a_key_may_never_ask_is_refused_by_name(
    start_server: StartServer, tmp_path: Path, limit: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    server = keyed(start_server, tmp_path, f"alice:{ALICE} {limit}\nbob:{BOB}\n")
    response = ask(server, ALICE, **body)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param
    assert ask(server, BOB, **body).status_code == 200


def test_an_answer_without_a_length_ends_at_the_keys_limit(start_server: StartServer, tmp_path: Path) -> None:
    server = keyed(start_server, tmp_path, f"alice:{ALICE} max_output_tokens=5 max_prompt_tokens=30\n")
    bearer = {"authorization": f"Bearer {ALICE}"}
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    answer = server.post("/v1/chat/completions", chat, headers=bearer).json()
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["choices"][0]["finish_reason"] == "length"
    for path in ("/v1/completions", "/generate"):  # whose own defaults are longer
        usage = server.post(path, {"prompt": "hi"}, headers=bearer).json()["usage"]
        assert usage["completion_tokens"] == 5
    chat["messages"][0]["content"] = "x" * 100
    refused = server.post("/v1/chat/completions", chat, headers=bearer)
    assert refused.json()["error"]["param"] == "messages"


def test_a_full_queue_is_429_at_once(start_server: StartServer) -> None:
    hold = threading.Event()
    executor = FakeExecutor(num_blocks=64, before_step=lambda step: step == 0 or hold.wait(60))
    server = start_server(executor, max_num_seqs=1, max_waiting=1)
    waiting = [server.send_json("/generate", {"prompt": "a", "max_tokens": 2}) for _ in range(2)]
    eventually(lambda: server.engine.stats().running + server.engine.stats().waiting == 2, "a full queue")
    response = server.post("/generate", {"prompt": "a"})
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    hold.set()
    for connection in waiting:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        connection.close()


def test_the_openai_client_knows_the_limit_for_what_it_is(start_server: StartServer, tmp_path: Path) -> None:
    server = keyed(start_server, tmp_path, f"alice:{ALICE} requests_per_minute=1\n")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key=ALICE, max_retries=0)
    client.completions.create(model="fake", prompt="a", max_tokens=1)
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model="fake", prompt="a", max_tokens=1)


def test_refusals_are_counted_by_reason(start_server: StartServer, tmp_path: Path) -> None:
    server = keyed(start_server, tmp_path, f"alice:{ALICE} requests_per_minute=1\nbob:{BOB} tokens_per_minute=1\n")
    for key in (ALICE, ALICE, BOB, BOB, "wrong"):
        ask(server, key)
    refusals = server.app.state.service.refusals
    assert (refusals["requests_per_minute"], refusals["tokens_per_minute"], refusals["key"]) == (1, 1, 1)


# --- keys apart ---------------------------------------------------------------------------------------------------


def test_the_prefix_cache_never_crosses_keys(start_server: StartServer, tmp_path: Path) -> None:
    server = keyed(start_server, tmp_path, f"alice:{ALICE}\nbob:{BOB}\n")

    def cached(key: str, **body: Any) -> int:
        usage = ask(server, key, prompt="x" * 100, **body).json()["usage"]
        count: int = usage["prompt_tokens_details"]["cached_tokens"]
        return count

    assert cached(ALICE) == 0
    assert cached(ALICE) > 90
    assert cached(BOB) == 0
    assert cached(BOB) > 90
    assert cached(ALICE, cache_salt="one") == 0
    assert cached(BOB, cache_salt="one") == 0
    assert cached(ALICE, cache_salt="one") > 90


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x", "n_predict": 10}, "n_predict"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 10}, "max_tokens"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 1, "n_cmpl": 3}, "n_cmpl"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n_predict": 10}, "n_predict"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 10},
            "max_completion_tokens",
        ),
        ("/v1/responses", {"input": "x", "max_output_tokens": 10}, "max_output_tokens"),
        ("/v1/responses", {"input": "x" * 60, "max_output_tokens": 1}, "input"),
        ("/generate", {"prompt": "x", "n_predict": 10}, "n_predict"),
        ("/v1/embeddings", {"input": "x" * 60}, "input"),
    ],
)
def test_a_limit_names_the_field_as_the_client_did(
    start_server: StartServer, path: str, body: dict[str, Any], param: str
) -> None:
    server = start_server(
        settings=ServerSettings(limits=Limits(max_output_tokens=5, max_choices=2, max_prompt_tokens=50))
    )
    error = server.post(path, body).json()["error"]
    assert error["param"] == param
    assert "max_tokens" not in error["message"] or param == "max_tokens"
