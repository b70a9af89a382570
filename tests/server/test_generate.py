"""`POST /generate`."""

from __future__ import annotations

import pytest

from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer, counted


def test_answer_has_text_usage_and_timings(shared_server: LiveServer) -> None:
    response = shared_server.post("/generate", {"prompt": "Hello", "max_tokens": 12})
    assert response.status_code == 200
    answer = response.json()
    assert len(answer["text"]) == 12
    assert bytes(answer["token_ids"]).decode() == answer["text"]
    assert answer["finish_reason"] == "length"
    assert counted(answer["usage"]) == (5, 12)
    assert answer["timings"]["completion_tokens"] == 12
    assert answer["timings"]["ttft_ms"] >= answer["timings"]["prefill_ms"] > 0


def test_stream_joins_to_the_whole_text_and_ends_with_the_figures(shared_server: LiveServer) -> None:
    body = {"prompt": "Hello", "max_tokens": 30, "seed": 7}
    whole = shared_server.post("/generate", body).json()
    *events, last, done = shared_server.events("/generate", body)
    assert done == "[DONE]"
    assert "".join(event["text"] for event in [*events, last]) == whole["text"]
    assert [i for event in [*events, last] for i in event["token_ids"]] == whole["token_ids"]
    assert all("usage" not in event for event in events)
    assert last["finish_reason"] == "length"
    assert last["usage"] == whole["usage"]
    assert last["timings"]["completion_tokens"] == 30


def test_token_ids_are_a_prompt(shared_server: LiveServer) -> None:
    text = shared_server.post("/generate", {"prompt": "Hello", "seed": 1}).json()["text"]
    assert shared_server.post("/generate", {"prompt": list(b"Hello"), "seed": 1}).json()["text"] == text


def test_default_length_is_128_and_null_runs_to_the_context_limit(shared_server: LiveServer) -> None:
    assert shared_server.post("/generate", {"prompt": "a"}).json()["usage"]["completion_tokens"] == 128
    assert shared_server.post("/generate", {"prompt": "a", "max_tokens": None}).json()["usage"]["total_tokens"] == 256
    assert shared_server.post("/generate", {"prompt": "a", "n_predict": -1}).json()["usage"]["total_tokens"] == 256
    assert shared_server.post("/generate", {"prompt": "a", "n_predict": 3}).json()["usage"]["completion_tokens"] == 3


def test_stop_string_ends_the_text_and_is_named(start_server: StartServer) -> None:
    server = start_server(FakeExecutor(num_blocks=64, choose=lambda tokens: "abcdefgh"[len(tokens) % 8]))
    body = {"prompt": "12345678", "max_tokens": 40, "stop": ["xyz", "def"]}
    answer = server.post("/generate", body).json()
    assert (answer["text"], answer["finish_reason"], answer["stop_reason"]) == ("abc", "stop", "def")
    events = server.events("/generate", body)[:-1]
    assert "".join(event["text"] for event in events) == "abc"
    answer = server.post("/generate", {**body, "include_stop_str_in_output": True}).json()
    assert answer["text"] == "abcdef"


def test_both_spellings_of_the_repetition_penalty(shared_server: LiveServer) -> None:
    for name in ("repeat_penalty", "repetition_penalty"):
        assert shared_server.post("/generate", {"prompt": "a", name: 1.2, "max_tokens": 2}).status_code == 200
        error = shared_server.post("/generate", {"prompt": "a", name: 0}).json()["error"]
        assert error["param"] == name
        assert name in error["message"]
    both = {"prompt": "a", "repeat_penalty": 1.2, "repetition_penalty": 1.2}
    assert shared_server.post("/generate", both).status_code == 400


def test_seed_makes_it_repeatable_and_minus_one_does_not(shared_server: LiveServer) -> None:
    def text(seed: int) -> str:
        return str(shared_server.post("/generate", {"prompt": "a", "seed": seed, "max_tokens": 40}).json()["text"])

    assert text(5) == text(5) != text(6)
    assert text(-1) != text(-1)


def test_logprobs_name_every_token(shared_server: LiveServer) -> None:
    answer = shared_server.post("/generate", {"prompt": "a", "max_tokens": 3, "logprobs": 2}).json()
    assert [entry["token"] for entry in answer["logprobs"]] == list(answer["text"])
    assert all(len(entry["top_logprobs"]) == 2 for entry in answer["logprobs"])


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]]])
def test_several_prompts_are_refused_with_the_way_out(shared_server: LiveServer, prompt: object) -> None:
    error = shared_server.post("/generate", {"prompt": prompt}).json()["error"]
    assert error["param"] == "prompt"
    assert "/v1/completions" in error["message"]
