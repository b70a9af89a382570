"""Parameters that users of vLLM and llama.cpp know, in both spellings: honoured, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from lpx.server.settings import ServerSettings
from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer
from tests.server.test_refusals import error_of

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
MESSAGES = [{"role": "user", "content": "Hello"}]
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "Hello"},
    CHAT: {"messages": MESSAGES},
    GENERATE: {"prompt": "Hello"},
}


def tokens_of(server: LiveServer, path: str, **more: Any) -> int:
    response = server.post(path, {**BODIES[path], "temperature": 0, **more})
    assert response.status_code == 200, response.text
    count: int = response.json()["usage"]["completion_tokens"]
    return count


@pytest.mark.parametrize("path", BODIES)
def test_both_names_for_the_number_of_tokens(shared_server: LiveServer, path: str) -> None:
    assert tokens_of(shared_server, path, max_tokens=5) == 5
    assert tokens_of(shared_server, path, n_predict=5) == 5
    assert tokens_of(shared_server, path, n_predict=-1) > 100
    both = shared_server.post(path, {**BODIES[path], "max_tokens": 5, "n_predict": 5})
    assert error_of(both, 400)["param"] == "n_predict"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_both_names_for_the_number_of_choices(shared_server: LiveServer, path: str) -> None:
    for name in ("n", "n_cmpl"):
        choices = shared_server.post(path, {**BODIES[path], name: 3, "max_tokens": 1}).json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2]


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        *((path, "n_predict", -2) for path in BODIES),
        *((path, "repeat_penalty", 0) for path in BODIES),
        *((path, "t_max_predict_ms", -2) for path in BODIES),
        *((path, "n_cmpl", 0) for path in (COMPLETIONS, CHAT)),
        (CHAT, "max_completion_tokens", 0),
        (GENERATE, "n_probs", -3),
    ],
)
def test_a_wrong_value_is_refused_under_the_name_that_was_sent(
    shared_server: LiveServer, path: str, name: str, value: float
) -> None:
    error = error_of(shared_server.post(path, {**BODIES[path], name: value}), 400)
    assert error["param"] == name
    assert name in error["message"]


def test_best_of_all_is_no_choice_at_all(shared_server: LiveServer) -> None:
    body = {"prompt": "a", "max_tokens": 1, "n": 2}
    assert shared_server.post(COMPLETIONS, {**body, "best_of": 2}).status_code == 200
    assert error_of(shared_server.post(COMPLETIONS, {**body, "best_of": 3}), 400)["param"] == "best_of"


@pytest.mark.parametrize("bias", [{"120": False}, {"120": -100}, [[120, False]], [[120, -100.0]]])
def test_a_bias_of_false_bans(start_server: StartServer, bias: Any) -> None:
    server = start_server(FakeExecutor(num_blocks=256, choose=lambda tokens: "x"))
    body = {"prompt": "Hello", "max_tokens": 8, "temperature": 0}
    assert server.post(GENERATE, body).json()["text"] == "xxxxxxxx"
    assert "x" not in server.post(GENERATE, {**body, "logit_bias": bias}).json()["text"]


@pytest.mark.parametrize(
    "bias", [{"120": True}, {"a": 1}, [[120]], [["x", 1]], [[120, 1], [120, 2]], {"259": False}, {"1": 101}, "x"]
)
def test_biases_without_meaning_are_refused(shared_server: LiveServer, bias: Any) -> None:
    response = shared_server.post(GENERATE, {"prompt": "a", "logit_bias": bias})
    assert error_of(response, 400)["param"] == "logit_bias"


def test_prompt_is_cut_at_its_beginning_on_request(shared_server: LiveServer) -> None:
    same = {"temperature": 0, "max_tokens": 6}
    cut = shared_server.post(COMPLETIONS, {"prompt": "x" * 300 + "Hello", "truncate_prompt_tokens": 5, **same}).json()
    plain = shared_server.post(COMPLETIONS, {"prompt": "Hello", **same}).json()
    assert cut["choices"][0]["text"] == plain["choices"][0]["text"]
    assert cut["usage"]["prompt_tokens"] == 5
    fits = shared_server.post(GENERATE, {"prompt": "x" * 300, "truncate_prompt_tokens": -1, **same}).json()
    assert fits["usage"]["prompt_tokens"] == 250
    assert fits["usage"]["completion_tokens"] == 6
    chat = shared_server.post(CHAT, {"messages": MESSAGES, "truncate_prompt_tokens": 7, **same}).json()
    assert chat["usage"]["prompt_tokens"] == 7
    for wrong in (0, -2):
        response = shared_server.post(GENERATE, {"prompt": "a", "truncate_prompt_tokens": wrong})
        assert error_of(response, 400)["param"] == "truncate_prompt_tokens"


def test_special_tokens_before_a_prompt_are_a_choice(start_server: StartServer) -> None:
    server = start_server(add_bos=True)
    for path in (COMPLETIONS, GENERATE):
        counts = [
            server.post(path, {"prompt": "ab", "max_tokens": 1, "add_special_tokens": special}).json()["usage"]
            for special in (True, None, False)
        ]
        assert [count["prompt_tokens"] for count in counts] == [3, 3, 2]
    response = server.post(CHAT, {"messages": MESSAGES, "add_special_tokens": True})
    assert error_of(response, 400)["param"] == "add_special_tokens"


def test_a_prompt_need_not_be_kept_nor_looked_up(start_server: StartServer) -> None:
    server = start_server()
    body = {"prompt": "x" * 40, "max_tokens": 1}

    def cached(**more: Any) -> int:
        usage = server.post(GENERATE, {**body, **more}).json()["usage"]
        count: int = usage["prompt_tokens_details"]["cached_tokens"]
        return count

    assert [cached(cache_prompt=False), cached(cache_prompt=False), cached(), cached(), cached(cache_prompt=False)] == [
        0, 0, 0, 36, 0,
    ]  # fmt: skip


def test_token_ids_on_request(shared_server: LiveServer) -> None:
    same = {"temperature": 0, "max_tokens": 6, "return_token_ids": True}
    [choice] = shared_server.post(COMPLETIONS, {"prompt": "ab", **same}).json()["choices"]
    assert choice["prompt_token_ids"] == [97, 98]
    assert bytes(choice["token_ids"]).decode() == choice["text"]
    chat = shared_server.post(CHAT, {"messages": MESSAGES, **same}).json()
    assert bytes(chat["prompt_token_ids"]) == b"user: Hello\nassistant: "
    assert bytes(chat["choices"][0]["token_ids"]).decode() == chat["choices"][0]["message"]["content"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_token_ids_in_streams(shared_server: LiveServer, path: str) -> None:
    body = {**BODIES[path], "temperature": 0, "max_tokens": 9, "n": 2, "return_token_ids": True}
    whole = shared_server.post(path, body).json()
    *chunks, done = shared_server.events(path, body)
    assert done == "[DONE]"
    ids: dict[int, list[int]] = {0: [], 1: []}
    prompts = []
    for chunk in chunks:
        prompts += [chunk["prompt_token_ids"]] if "prompt_token_ids" in chunk else []
        for choice in chunk["choices"]:
            ids[choice["index"]] += choice.get("token_ids", [])
            prompts += [choice["prompt_token_ids"]] if "prompt_token_ids" in choice else []
    assert ids == {choice["index"]: choice["token_ids"] for choice in whole["choices"]}
    expected = whole["choices"][0].get("prompt_token_ids") or whole["prompt_token_ids"]
    assert len(prompts) == 2
    assert all(prompt == expected for prompt in prompts)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_usage_so_far_in_every_chunk(shared_server: LiveServer, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _ = shared_server.events(path, {**BODIES[path], "max_tokens": 9, "stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 9


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_timings_in_every_chunk(shared_server: LiveServer, path: str) -> None:
    *chunks, _ = shared_server.events(path, {**BODIES[path], "max_tokens": 9, "timings_per_token": True})
    assert chunks[-1]["timings"]["predicted_n"] == 9
    assert all({"prompt_ms", "prompt_n", "predicted_ms", "cache_n"} <= set(chunk["timings"]) for chunk in chunks)


def test_timings_have_llama_cpp_s_names_too(shared_server: LiveServer) -> None:
    timings = shared_server.post(GENERATE, {"prompt": "Hello", "max_tokens": 9}).json()["timings"]
    assert timings["predicted_n"] == timings["completion_tokens"] == 9
    assert timings["prompt_n"] + timings["cache_n"] == timings["prompt_tokens"] == 5
    assert timings["predicted_ms"] == timings["decode_ms"]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("path", [GENERATE, COMPLETIONS, CHAT])
def test_timings_as_the_server_or_the_request_says(start_server: StartServer, path: str, enabled: bool) -> None:
    server = start_server(settings=ServerSettings(request_timings=enabled))
    for wanted, shown in (({}, enabled), ({"timings": True}, True), ({"timings": False}, False)):
        body = server.post(path, {**BODIES[path], "max_tokens": 3, **wanted}).json()
        assert (body["timings"] is not None) == shown


def test_log_probabilities_by_llama_cpp_s_name(shared_server: LiveServer) -> None:
    body = shared_server.post(GENERATE, {"prompt": "Hello", "max_tokens": 2, "n_probs": 3}).json()
    assert [len(entry["top_logprobs"]) for entry in body["logprobs"]] == [3, 3]
    assert "logprobs" not in shared_server.post(GENERATE, {"prompt": "Hello", "max_tokens": 2, "n_probs": 0}).json()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "more",
    [
        {"seed": -1, "user": "x", "cache_prompt": True, "repeat_last_n": -1, "t_max_predict_ms": -1},
        {"repeat_last_n": 64, "repeat_penalty": 1.0, "mirostat": 0, "mirostat_tau": 5.0, "n_keep": 4, "id_slot": -1},
        {"top_n_sigma": -1, "dry_multiplier": 0.0, "dry_base": 1.75, "xtc_probability": 0, "xtc_threshold": 0.1},
        {"timings_per_token": False, "return_progress": False, "lora": [], "typical_p": 1.0, "min_keep": 0},
        {"use_beam_search": False, "length_penalty": 1.0, "spaces_between_special_tokens": True, "bad_words": []},
    ],
    ids=["common", "defaults", "samplers", "off", "vllm"],
)  # fmt: skip
def test_values_that_change_nothing_are_taken(shared_server: LiveServer, path: str, more: dict[str, Any]) -> None:
    assert tokens_of(shared_server, path, max_tokens=2, **more) == 2


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("return_progress", True),
        ("top_n_sigma", 1.0),
        ("mirostat", 2),
        ("typical_p", 0.5),
        ("dry_multiplier", 0.8),
        ("xtc_probability", 0.5),
        ("samplers", ["top_k"]),
        ("id_slot", 1),
        ("post_sampling_probs", True),
        ("response_fields", ["content"]),
        ("lora", [{"id": 0}]),
        ("use_beam_search", True),
        ("bad_words", ["x"]),
        ("logits_processors", ["x"]),
        ("return_tokens_as_token_ids", True),
        ("repeat_last_n", -2),
        ("repeat_last_n", 1.5),
        ("t_max_predict_ms", 0),
        ("cache_prompt", "yes"),
        ("timings_per_token", 1),
        ("seed", 2**64),
        ("best_of", 2),
        ("no_such_thing", 1),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    shared_server: LiveServer, path: str, name: str, value: Any
) -> None:
    assert error_of(shared_server.post(path, {**BODIES[path], name: value}), 400)["param"] == name
