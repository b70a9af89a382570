"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Any

import pytest

from lpx.errors import ChatTemplateError
from tests.engine.fake_executor import FakeExecutor, LineTemplate
from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def chat(server: LiveServer, messages: object = HELLO, **body: Any) -> dict[str, Any]:
    response = server.post(PATH, {"messages": messages, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_shape_of_an_answer(shared_server: LiveServer) -> None:
    answer = chat(shared_server, max_tokens=4)
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    [choice] = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) == 4
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == len("user: Hello\nassistant: ")


def test_stream_begins_with_the_role_and_joins_to_the_whole(shared_server: LiveServer) -> None:
    body = {"messages": HELLO, "max_tokens": 20, "seed": 3, "n": 2}
    whole = shared_server.post(PATH, body).json()
    *events, done = shared_server.events(PATH, body)
    assert done == "[DONE]"
    for index in range(2):
        mine = [c for e in events for c in e["choices"] if c["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in mine[1:])
        text = "".join(choice["delta"].get("content", "") for choice in mine)
        assert text == whole["choices"][index]["message"]["content"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["length"]
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1


def test_usage_chunk_only_when_asked(shared_server: LiveServer) -> None:
    body = {"messages": HELLO, "max_tokens": 3}
    assert all(event["choices"] for event in shared_server.events(PATH, body)[:-1])
    *events, last, _ = shared_server.events(PATH, {**body, "stream_options": {"include_usage": True}})
    assert all(event["usage"] is None for event in events)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3


def test_logprobs_hold_the_raw_bytes_of_parts_of_characters(start_server: StartServer) -> None:
    text = "😸".encode()
    executor = FakeExecutor(num_blocks=64, choose=lambda tokens: text[(len(tokens) - 23) % 4])
    server = start_server(executor)
    body = {"messages": HELLO, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    choice = server.post(PATH, body).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == choice["message"]["content"] == "😸"
    assert [entry["bytes"] for entry in content] == [[0xF0], [0x9F], [0x98], [0xB8]]
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert all(set(each) == {"token", "logprob", "bytes"} for entry in content for each in entry["top_logprobs"])
    streamed = [
        entry
        for event in server.events(PATH, body)[:-1]
        for c in event["choices"]
        for entry in (c["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content


def test_top_logprobs_need_logprobs(shared_server: LiveServer) -> None:
    for body in ({"top_logprobs": 2}, {"top_logprobs": 2, "logprobs": False}, {"logprobs": True, "top_logprobs": 21}):
        response = shared_server.post(PATH, {"messages": HELLO, **body})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "top_logprobs"
    content = chat(shared_server, logprobs=True, max_tokens=2)["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in content] == [[], []]


def test_max_completion_tokens_is_max_tokens(shared_server: LiveServer) -> None:
    assert chat(shared_server, max_completion_tokens=3)["usage"]["completion_tokens"] == 3
    assert chat(shared_server, max_completion_tokens=3, max_tokens=3)["usage"]["completion_tokens"] == 3
    differ = shared_server.post(PATH, {"messages": HELLO, "max_tokens": 3, "max_completion_tokens": 4})
    assert differ.status_code == 400
    assert chat(shared_server)["usage"]["total_tokens"] == 256  # absent: up to the context limit


def test_text_parts_are_joined_and_other_parts_refused(shared_server: LiveServer) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    same = chat(shared_server, [{"role": "user", "content": parts}], seed=1, max_tokens=8)
    assert same["choices"] == chat(shared_server, seed=1, max_tokens=8)["choices"]
    image = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}]
    response = shared_server.post(PATH, {"messages": [{"role": "user", "content": image}]})
    assert response.status_code == 400
    assert "image_url" in response.json()["error"]["message"]
    assert "x.png" not in response.text


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "Hello",
        {},
        [None],
        ["Hello"],
        [{}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 5}],
        [{"role": 5, "content": "x"}],
        [{"role": "user", "content": "x", "name": ["y"]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "assistant", "tool_calls": "x"}],
    ],
)
def test_odd_messages_are_refused(shared_server: LiveServer, messages: object) -> None:
    response = shared_server.post(PATH, {"messages": messages})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"


class _Recorder(LineTemplate):
    calls: list[dict[str, Any]]

    def __init__(self) -> None:
        self.calls = []

    def encode(self, messages: Any, *, add_generation_prompt: bool = True, **others: Any) -> list[int]:
        self.calls.append({"messages": messages, "add_generation_prompt": add_generation_prompt, **others})
        return super().encode(messages, add_generation_prompt=add_generation_prompt)


def test_what_the_template_is_given(start_server: StartServer) -> None:
    server = start_server()
    recorder = _Recorder()
    server.engine._engine.chat_template = recorder
    chat(server, max_tokens=1, chat_template_kwargs={"enable_thinking": False})
    assert recorder.calls[-1]["kwargs"] == {"enable_thinking": False}
    assert recorder.calls[-1]["add_generation_prompt"] is True
    lone = [*HELLO, {"role": "assistant", "content": "I"}]
    chat(server, lone, max_tokens=1, continue_final_message=True)
    assert recorder.calls[-1]["add_generation_prompt"] is False
    assert recorder.calls[-1]["continue_final_message"] is True
    both = {"messages": lone, "continue_final_message": True, "add_generation_prompt": True}
    assert server.post(PATH, both).status_code == 400
    recorder.source = "{% if tools %}<tool_call>{% endif %}"
    calls = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]
    tools = [{"type": "function", "function": {"name": "f", "description": "d"}}]
    chat(server, HELLO, max_tokens=1, tools=tools)
    assert recorder.calls[-1]["tools"] == tools
    assert recorder.calls[-1]["messages"] == HELLO
    chat(server, [{"role": "assistant", "content": None, "tool_calls": calls}], max_tokens=1)
    assert recorder.calls[-1]["messages"][0]["tool_calls"] == calls


@pytest.mark.parametrize(
    "kwargs",
    [
        {"chat_template": "{{ 1 }}"},
        {"tokenize": False},
        {"messages": []},
        {"tools": []},
        {"add_generation_prompt": False},
        {"range": 1},
        {"__class__": 1},
        {"a b": 1},
        {"x": [1]},
        {"x": {"y": 1}},
        {"x": "y" * 1000},
        {f"x{i}": 1 for i in range(100)},
        [],
        "x",
    ],
)
def test_template_kwargs_set_plain_flags_only(shared_server: LiveServer, kwargs: object) -> None:
    response = shared_server.post(PATH, {"messages": HELLO, "chat_template_kwargs": kwargs})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "chat_template_kwargs"


def test_a_request_cannot_bring_a_template(shared_server: LiveServer) -> None:
    response = shared_server.post(PATH, {"messages": HELLO, "chat_template": "{{ 1 }}"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "chat_template"


def test_model_without_a_template_refuses_chat_and_completes(start_server: StartServer) -> None:
    server = start_server(template=False)
    response = server.post(PATH, {"messages": HELLO})
    assert response.status_code == 400
    assert "chat template" in response.json()["error"]["message"]
    assert server.post("/v1/completions", {"prompt": "a"}).status_code == 200


def test_a_template_that_refuses_is_a_400_and_the_next_request_works(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()

    def refuse(*args: object, **options: object) -> list[int]:
        raise ChatTemplateError("the template refused: System role not supported", param="messages")

    with monkeypatch.context() as patch:
        patch.setattr(LineTemplate, "encode", refuse)
        response = server.post(PATH, {"messages": HELLO})
    assert response.status_code == 400
    assert "System role not supported" in response.json()["error"]["message"]
    assert server.post(PATH, {"messages": HELLO, "max_tokens": 1}).status_code == 200


def test_too_long_a_chat_names_both_lengths(shared_server: LiveServer) -> None:
    response = shared_server.post(PATH, {"messages": [{"role": "user", "content": "x" * 300}]})
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"
    assert "318" in error["message"]
    assert "256" in error["message"]
