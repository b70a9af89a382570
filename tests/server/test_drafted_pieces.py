"""`return_drafts` over HTTP: the answer token by token, whole and streamed, on every endpoint."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer
from tests.server.test_speculation import with_drafts

PATHS = ["/generate", "/v1/completions", "/v1/chat/completions"]


@pytest.fixture
def server(start_server: StartServer) -> LiveServer:
    return with_drafts(start_server)


def body(path: str, **options: Any) -> dict[str, Any]:
    given = {"messages": [{"role": "user", "content": "abcabcabc"}]} if "chat" in path else {"prompt": "abcabcabc"}
    return {**given, "max_tokens": 15, "temperature": 0, "return_drafts": True, **options}


def choice_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The choice with its text under "text", whatever the endpoint calls it."""
    [choice] = answer.get("choices", [answer]) or [{}]
    message = choice.get("message", choice.get("delta", choice))
    return {**choice, "text": message.get("content", choice.get("text", ""))}


@pytest.mark.parametrize("path", PATHS)
def test_pieces_join_to_the_text(server: LiveServer, path: str) -> None:
    answer = server.post(path, body(path)).json()
    choice = choice_of(answer)
    assert "".join(piece["text"] for piece in choice["pieces"]) == choice["text"]
    assert len(choice["pieces"]) == 15
    assert sum(piece["drafted"] for piece in choice["pieces"]) == answer["timings"]["accepted_tokens"] > 0


@pytest.mark.parametrize("path", PATHS)
def test_streams_have_the_pieces_of_each_chunk(server: LiveServer, path: str) -> None:
    whole = choice_of(server.post(path, body(path)).json())
    # A prompt found in the cache would be a first step that may draft.
    *events, done = server.events(path, body(path, cache_salt="another"))
    assert done == "[DONE]"
    chunks = [choice_of(event) for event in events]
    for chunk in chunks:
        assert "".join(piece["text"] for piece in chunk.get("pieces", ())) == chunk["text"]
    assert [piece for chunk in chunks for piece in chunk.get("pieces", ())] == whole["pieces"]


@pytest.mark.parametrize("path", PATHS)
def test_who_does_not_ask_is_told_nothing(server: LiveServer, path: str) -> None:
    given = body(path)
    del given["return_drafts"]
    assert "pieces" not in server.post(path, given).text
    assert not any("pieces" in str(event) for event in server.events(path, {**given, "return_drafts": False}))


def test_choices_have_their_own_pieces(server: LiveServer) -> None:
    answer = server.post("/v1/completions", body("/v1/completions", n=2, temperature=1, seed=3)).json()
    for choice in answer["choices"]:
        assert "".join(piece["text"] for piece in choice["pieces"]) == choice["text"]
