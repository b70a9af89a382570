"""What clients are told about the prefix cache, and how they keep out of each other's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer

TEXT = "A beginning that several requests have in common, long enough for a few blocks. "
ASKS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": TEXT, "max_tokens": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 3},
    "/generate": {"prompt": TEXT, "max_tokens": 3},
}


def ask(server: LiveServer, path: str, streamed: bool, **more: Any) -> tuple[int, int, dict[str, Any]]:
    """(prompt tokens, cached tokens, timings) of one request."""
    body = {**ASKS[path], **more}
    if streamed:
        if path != "/generate":
            body["stream_options"] = {"include_usage": True}
        answer = [event for event in server.events(path, body) if event != "[DONE]" and event.get("usage")][-1]
    else:
        response = server.post(path, body)
        assert response.status_code == 200, response.text
        answer = response.json()
    usage = answer["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], answer["timings"]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ASKS)
def test_second_request_tells_what_it_found(start_server: StartServer, path: str, streamed: bool) -> None:
    server = start_server()
    prompt, cached, timings = ask(server, path, streamed)
    assert (cached, timings["cached_tokens"]) == (0, 0)
    prompt, cached, timings = ask(server, path, streamed)
    assert cached == timings["cached_tokens"] == (prompt - 1) // 4 * 4
    assert timings["prompt_tokens"] == prompt


def test_prompts_of_one_request_add_up_and_choices_do_not(start_server: StartServer) -> None:
    server = start_server()
    ask(server, "/v1/completions", False)
    body = {"prompt": [TEXT, "x", TEXT], "n": 2, "max_tokens": 2}
    usage = server.post("/v1/completions", body).json()["usage"]
    assert usage["prompt_tokens"] == 2 * len(TEXT) + 1
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2 * ((len(TEXT) - 1) // 4 * 4)


@pytest.mark.parametrize("path", ASKS)
def test_other_salt_finds_nothing(start_server: StartServer, path: str) -> None:
    server = start_server()
    found = [ask(server, path, False, cache_salt=salt)[1] > 0 for salt in (None, "a", "b", "b", "a", None)]
    assert found == [False, False, False, True, True, True]


def test_wrong_salt_is_refused_by_name(shared_server: LiveServer) -> None:
    for salt in ("", 5, "x" * 300):
        response = shared_server.post("/v1/completions", {"prompt": "a", "cache_salt": salt})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "cache_salt"


def test_second_scored_prompt_has_the_same_scores(start_server: StartServer) -> None:
    server = start_server()
    body = {"prompt": TEXT, "echo": True, "logprobs": 1, "max_tokens": 2, "temperature": 0}
    first, second = (server.post("/v1/completions", body).json() for _ in range(2))
    assert first["choices"] == second["choices"]
    assert second["choices"][0]["logprobs"]["token_logprobs"][0] is None
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
