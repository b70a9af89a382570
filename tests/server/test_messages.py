"""Anthropic's `POST /v1/messages` and `count_tokens`, by the official client and byte by byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer

PATH = "/v1/messages"
HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def client(shared_server: LiveServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=shared_server.url, api_key="unused", max_retries=0) as client:
        yield client


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert body["type"] == "error"
    assert set(body["error"]) == {"type", "message"}
    error: dict[str, Any] = body["error"]
    return error


def test_message(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(
        model="fake", max_tokens=8, system="Be brief.", messages=HELLO, extra_body={"temperature": 0, "top_k": 5}
    )
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "fake")
    [block] = answer.content
    assert block.type == "text"
    assert len(block.text) == 8
    assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
    read = len("system: Be brief.\nuser: Hello\nassistant: ")
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == read
    assert answer.usage.output_tokens == 8


def test_stream_has_the_same_text(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model="fake", max_tokens=20, messages=HELLO, extra_body={"temperature": 0})
    with client.messages.stream(model="fake", max_tokens=20, messages=HELLO, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert whole.content[0].type == "text"
    assert text == whole.content[0].text
    assert final.content[0].type == "text"
    assert final.content[0].text == text
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 20)


def test_events_of_a_stream(shared_server: LiveServer) -> None:
    body = {"model": "fake", "max_tokens": 4, "messages": HELLO, "stream": True}
    with shared_server.client.stream("POST", PATH, json=body) as response:
        response.read()
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for record in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = record.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    assert kinds == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["content"] == []
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 4


def test_stop_sequence_is_told(start_server: StartServer) -> None:
    server = start_server(FakeExecutor(num_blocks=256, choose=lambda tokens: "abcdefgh"[len(tokens) % 8]))
    answer = server.post(PATH, {"messages": HELLO, "max_tokens": 30, "stop_sequences": ["def"]}).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "def")
    assert "def" not in answer["content"][0]["text"]


def test_end_of_turn(start_server: StartServer) -> None:
    server = start_server(FakeExecutor(num_blocks=256, choose=lambda tokens: 258))
    answer = server.post(PATH, {"messages": HELLO, "max_tokens": 30}).json()
    assert (answer["stop_reason"], answer["content"]) == ("end_turn", [])


def test_an_answer_that_was_begun_goes_on() -> None:
    from lpx.server.schemas.anthropic import MessagesRequest

    body = {"max_tokens": 3, "messages": [*HELLO, {"role": "assistant", "content": "The answer is"}]}
    assert MessagesRequest.parse(body).as_chat(body).continue_final_message is True


def test_blocks_are_read_as_the_chat_that_they_are() -> None:
    from lpx.server.schemas.anthropic import MessagesRequest

    body = {
        "max_tokens": 3,
        "system": [{"type": "text", "text": "A"}, {"type": "text", "text": "B", "cache_control": {}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "He"}, {"type": "text", "text": "llo"}]},
            {"role": "user", "content": "there"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "find", "input": {"城": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "found"}]},
                    {"type": "text", "text": "And?"},
                ],
            },
        ],
    }  # fmt: skip
    chat = MessagesRequest.parse(body).as_chat(body)
    assert [(message["role"], message["content"]) for message in chat.messages] == [
        ("system", "A\nB"),
        ("user", "Hello\nthere"),
        ("assistant", "I look."),
        ("tool", "found"),
        ("user", "And?"),
    ]
    assert chat.messages[2]["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"城": 1}'}
    assert chat.messages[2]["reasoning_content"] == "hm"
    assert chat.messages[3]["tool_call_id"] == "t1"


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    count = client.messages.count_tokens(model="fake", messages=HELLO, system="Be brief.")
    assert count.input_tokens == len("system: Be brief.\nuser: Hello\nassistant: ")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "context"),
        ({"system": 5}, "system"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["a"], "stop": ["b"]}, "stop"),
        ({"temperature": -1}, "temperature"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "budget_tokens"),
        ({"tools": [{"type": "web_search_20250305", "name": "x"}]}, "tools"),
        ({"tool_choice": {"type": "some"}}, "tool_choice"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_refusals_have_anthropic_s_shape(shared_server: LiveServer, change: dict[str, Any], word: str) -> None:
    response = shared_server.post(PATH, {"max_tokens": 4, "messages": HELLO, **change})
    error = error_of(response, 400)
    assert error["type"] == "invalid_request_error"
    assert word in error["message"]


def test_official_client_raises_its_own_errors(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(model="other", max_tokens=4, messages=HELLO)
    assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index, call-overload]


def test_error_in_a_stream_is_an_event(start_server: StartServer) -> None:
    server = start_server(FakeExecutor(num_blocks=64, fail_at_step=4), ends_idle=False)
    body = {"max_tokens": 50, "messages": HELLO, "stream": True}
    with server.client.stream("POST", PATH, json=body) as response:
        response.read()
    last = response.text.strip().split("\n\n")[-1]
    assert last.startswith("event: error\ndata: ")
    assert json.loads(last.split("data: ")[1])["error"]["type"] in ("api_error", "overloaded_error")
    assert "message_stop" not in response.text
