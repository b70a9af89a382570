"""`POST /v1/completions`."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from lpx.engine.async_engine import AsyncEngine
from lpx.server.streaming import dumps
from tests.engine.fake_executor import BOS, FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer, counted

PATH = "/v1/completions"


def complete(server: LiveServer, **body: Any) -> dict[str, Any]:
    response = server.post(PATH, body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def joined(events: list[Any]) -> dict[int, str]:
    """Text of each choice of a stream."""
    texts: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


def test_shape_of_an_answer(shared_server: LiveServer) -> None:
    answer = complete(shared_server, prompt="Hello", max_tokens=4)
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["model"] == "fake"
    [choice] = answer["choices"]
    assert choice["index"] == 0
    assert len(choice["text"]) == 4
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert counted(answer["usage"]) == (5, 4)


def test_max_tokens_absent_is_16_and_null_is_the_context_limit(shared_server: LiveServer) -> None:
    assert complete(shared_server, prompt="a")["usage"]["completion_tokens"] == 16
    assert complete(shared_server, prompt="a", max_tokens=None)["usage"]["total_tokens"] == 256


@pytest.mark.parametrize("prompt", ["ab", ["ab", "ab"], [97, 98], [[97, 98], [97, 98]]])
def test_every_shape_of_prompt_gives_the_same_text(shared_server: LiveServer, prompt: object) -> None:
    alone = complete(shared_server, prompt="ab", seed=3)["choices"][0]["text"]
    assert {choice["text"] for choice in complete(shared_server, prompt=prompt, seed=3)["choices"]} == {alone}


def test_choices_are_numbered_prompt_by_prompt(shared_server: LiveServer) -> None:
    body = {"prompt": ["one", "two"], "n": 2, "seed": 4, "max_tokens": 9}
    answer = complete(shared_server, **body)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in answer["choices"]}) == 4
    # The prompts are counted once each, not once a choice.
    assert counted(answer["usage"]) == (6, 36)
    second = complete(shared_server, prompt="two", n=2, seed=4, max_tokens=9)
    assert [c["text"] for c in second["choices"]] == [c["text"] for c in answer["choices"][2:]]


def test_stream_of_several_choices_ends_each_once(start_server: StartServer) -> None:
    # Choices of different lengths: each stops at a letter that its own history decides on.
    server = start_server(FakeExecutor(num_blocks=256, block_size=4))
    body = {"prompt": ["one", "two"], "n": 3, "seed": 5, "max_tokens": 60, "stop": ["a", "b", "c"]}
    whole = complete(server, **body)
    *events, done = server.events(PATH, body)
    assert done == "[DONE]"
    assert joined(events) == {choice["index"]: choice["text"] for choice in whole["choices"]}
    ends = [c for event in events for c in event["choices"] if c["finish_reason"] is not None]
    assert sorted(end["index"] for end in ends) == list(range(6))
    assert {e["index"]: e["finish_reason"] for e in ends} == {c["index"]: c["finish_reason"] for c in whole["choices"]}
    assert len({len(choice["text"]) for choice in whole["choices"]}) > 1


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_no_usage_chunk_unless_asked(shared_server: LiveServer, options: object) -> None:
    *events, done = shared_server.events(PATH, {"prompt": "a", "stream_options": options})
    assert done == "[DONE]"
    assert all(len(event["choices"]) == 1 and "usage" not in event for event in events)


def test_usage_chunk_comes_last_when_asked(shared_server: LiveServer) -> None:
    body = {"prompt": ["a", "bc"], "max_tokens": 5, "stream_options": {"include_usage": True}}
    *events, last, done = shared_server.events(PATH, body)
    assert done == "[DONE]"
    assert all(event["usage"] is None for event in events)
    assert last["choices"] == []
    assert counted(last["usage"]) == (3, 10)


def test_stream_options_without_stream_are_refused(shared_server: LiveServer) -> None:
    response = shared_server.post(PATH, {"prompt": "a", "stream_options": {"include_usage": True}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream_options"


def test_echo_puts_the_prompt_first(shared_server: LiveServer) -> None:
    plain = complete(shared_server, prompt=["ab", "cd"], seed=1)
    echoed = complete(shared_server, prompt=["ab", "cd"], seed=1, echo=True)
    assert [c["text"] for c in echoed["choices"]] == [
        prompt + choice["text"] for prompt, choice in zip(("ab", "cd"), plain["choices"], strict=True)
    ]
    assert complete(shared_server, prompt=[97, 98], seed=1, echo=True)["choices"][0] == echoed["choices"][0]
    streamed = joined(shared_server.events(PATH, {"prompt": ["ab", "cd"], "seed": 1, "echo": True})[:-1])
    assert streamed == {choice["index"]: choice["text"] for choice in echoed["choices"]}


def test_stream_without_echo_never_repeats_the_prompt(shared_server: LiveServer) -> None:
    prompt = [*b"Hello ", *"ก".encode()[:2]]  # ends inside a character
    body = {"prompt": prompt, "seed": 2, "max_tokens": 8}
    whole = complete(shared_server, **body)["choices"][0]["text"]
    assert joined(shared_server.events(PATH, body)[:-1]) == {0: whole}
    assert "Hello" not in whole


def test_logprobs_in_the_legacy_shape(shared_server: LiveServer) -> None:
    choice = complete(shared_server, prompt="ab", max_tokens=4, logprobs=2)["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == list(choice["text"])
    assert logprobs["text_offset"] == [0, 1, 2, 3]
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert top[token] == value <= 0
        assert len(top) in (2, 3)  # the sampled token comes on top of the two likeliest
    none = complete(shared_server, prompt="ab", max_tokens=4, logprobs=0)["choices"][0]["logprobs"]
    assert all(len(top) == 1 for top in none["top_logprobs"])


def test_max_tokens_0_with_echo_scores_the_prompt(start_server: StartServer) -> None:
    server = start_server(add_bos=True)
    answer = complete(server, prompt="abc", max_tokens=0, echo=True, logprobs=1)
    choice = answer["choices"][0]
    assert choice["text"] == "abc"
    assert choice["finish_reason"] == "length"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == [f"<{BOS}>", "a", "b", "c"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert logprobs["text_offset"] == [0, 0, 1, 2]  # the control token takes no room in the text
    assert counted(answer["usage"]) == (4, 0)
    assert complete(server, prompt="abc", max_tokens=0, echo=True)["choices"][0]["text"] == "abc"
    assert server.post(PATH, {"prompt": "abc", "max_tokens": 0}).status_code == 400


@pytest.mark.parametrize("n", [1, 3])
def test_echoed_scores_stream_as_they_come_whole(shared_server: LiveServer, n: int) -> None:
    body = {"prompt": ["abc", "de"], "echo": True, "logprobs": 1, "max_tokens": 5, "n": n, "seed": 9}
    whole = complete(shared_server, **body)
    events = shared_server.events(PATH, body)[:-1]
    assert joined(events) == {choice["index"]: choice["text"] for choice in whole["choices"]}
    for choice in whole["choices"]:
        parts = [c["logprobs"] for e in events for c in e["choices"] if c["index"] == choice["index"] and c["logprobs"]]
        merged = {key: list(itertools.chain.from_iterable(part[key] for part in parts)) for key in parts[0]}
        assert merged == choice["logprobs"]


def test_prompt_logprobs_in_vllms_shape(shared_server: LiveServer) -> None:
    choice = complete(shared_server, prompt="abc", max_tokens=1, prompt_logprobs=1)["choices"][0]
    first, second, third = choice["prompt_logprobs"]
    assert first is None
    assert second[str(ord("b"))]["decoded_token"] == "b"
    assert set(third[str(ord("c"))]) == {"logprob", "rank", "decoded_token"}
    assert choice["logprobs"] is None
    refused = shared_server.post(PATH, {"prompt": "a", "prompt_logprobs": 1, "stream": True})
    assert refused.json()["error"]["param"] == "prompt_logprobs"


def test_minus_infinity_becomes_a_finite_number(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = FakeExecutor(num_blocks=64)
    score = executor._score

    def hopeless(*args: Any) -> Any:
        entry = score(*args)
        entry.logprob = float("-inf")
        entry.top = [(token_id, float("-inf")) for token_id, _ in entry.top]
        return entry

    monkeypatch.setattr(executor, "_score", hopeless)
    server = start_server(executor)
    logprobs = complete(server, prompt="ab", max_tokens=1, echo=True, logprobs=1)["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [None, -9999.0, -9999.0]


def test_part_of_a_character_has_its_own_offset_and_bytes(start_server: StartServer) -> None:
    text = "a😸é".encode()
    server = start_server(FakeExecutor(num_blocks=64, choose=lambda tokens: text[(len(tokens) - 1) % len(text)]))
    choice = complete(server, prompt="x", max_tokens=len(text), logprobs=0)["choices"][0]
    assert choice["text"] == "a😸é"
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 1, 1, 2, 2]
    streamed = joined(server.events(PATH, {"prompt": "x", "max_tokens": len(text)})[:-1])
    assert streamed == {0: "a😸é"}


@pytest.mark.parametrize("line_end", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\r", "\x1c"])
def test_line_ends_in_the_text_do_not_break_an_event(start_server: StartServer, line_end: str) -> None:
    text = f"a{line_end}b".encode()
    server = start_server(FakeExecutor(num_blocks=64, choose=lambda tokens: text[(len(tokens) - 1) % len(text)]))
    # `events` fails on an event of more than one line, as Unicode has it.
    events = server.events(PATH, {"prompt": "x", "max_tokens": len(text)})
    assert joined(events[:-1]) == {0: f"a{line_end}b"}


def test_one_bad_prompt_of_a_list_submits_none(start_server: StartServer) -> None:
    server = start_server(max_model_len=64)
    assert isinstance(server.engine, AsyncEngine)
    before = server.engine.stats().requests_total
    response = server.post(PATH, {"prompt": ["fine", "x" * 100]})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    response = server.post(PATH, {"prompt": [[1, 2], [300]]})
    assert response.status_code == 400
    # Nothing runs on: what was submitted before the bad prompt came is gone.
    server.post(PATH, {"prompt": "a", "max_tokens": 1})
    assert server.engine.stats().generation_tokens_total <= 1 + 1 + 2 * (server.engine.stats().requests_total - before)


def test_a_full_queue_refuses_with_429(start_server: StartServer) -> None:
    server = start_server(max_num_seqs=2, max_waiting=2)
    response = server.post(PATH, {"prompt": ["a", "b", "c", "d", "e", "f"], "max_tokens": 100})
    assert response.status_code == 429
    assert response.json()["error"]["type"] == "rate_limit_error"
    assert response.headers["retry-after"] == "1"


def test_logit_bias_takes_ids_as_strings(shared_server: LiveServer) -> None:
    answer = complete(shared_server, prompt="a", max_tokens=3, logit_bias={"90": 100})
    assert answer["choices"][0]["text"] == "ZZZ"


def test_ignore_eos_and_min_tokens(start_server: StartServer) -> None:
    server = start_server(FakeExecutor(num_blocks=64, choose=lambda tokens: 257))
    assert complete(server, prompt="a")["choices"][0] | {"stop_reason": None} == {
        "index": 0,
        "text": "",
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    answer = complete(server, prompt="a", ignore_eos=True, max_tokens=5)
    assert answer["usage"]["completion_tokens"] == 5
    assert complete(server, prompt="a", min_tokens=3, max_tokens=9)["usage"]["completion_tokens"] == 4


def test_a_large_answer_is_written_as_a_small_one(shared_server: LiveServer) -> None:
    body = {"prompt": ["你好", "b"] * 6, "max_tokens": 3, "temperature": 0, "logprobs": 2}
    answer = shared_server.post("/v1/completions", body)
    assert answer.text == dumps(answer.json())
    alone = shared_server.post("/v1/completions", {**body, "prompt": "你好"}).json()["choices"][0]
    assert answer.json()["choices"][2] == {**alone, "index": 2}
