"""`POST /v1/responses`: items in, typed events out, nothing kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer
from tests.server.test_refusals import error_of

PATH = "/v1/responses"


@pytest.fixture
def client(shared_server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=shared_server.url + "/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_answer_of_the_official_client(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model="fake", input="Hello", instructions="Be brief.", max_output_tokens=8, temperature=0, metadata={"a": "b"}
    )
    assert (answer.object, answer.status) == ("response", "incomplete")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert len(answer.output_text) == 8
    assert answer.usage is not None
    assert answer.usage.input_tokens == len("system: Be brief.\nuser: Hello\nassistant: ")
    assert (answer.usage.output_tokens, answer.usage.output_tokens_details.reasoning_tokens) == (8, 0)
    assert (answer.metadata, answer.store, answer.instructions) == ({"a": "b"}, False, "Be brief.")


def test_events_of_a_stream_and_their_numbers(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="fake", input="Hello", max_output_tokens=8, temperature=0)
    events = list(client.responses.create(model="fake", input="Hello", max_output_tokens=8, temperature=0, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))  # type: ignore[union-attr]
    kinds = [event.type for event in events]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [kind for kind in kinds if kind != "response.output_text.delta"] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(event.delta for event in deltas)
    assert text == whole.output_text
    last: Any = events[-1]
    assert last.response.output_text == text
    assert last.response.usage.output_tokens == 8
    assert {event.item_id for event in deltas} == {last.response.output[0].id}


def test_stream_of_the_official_client_s_helper(client: openai.OpenAI) -> None:
    with client.responses.stream(model="fake", input="Hello", max_output_tokens=8, temperature=0) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert len("".join(pieces)) == 8


def test_answer_that_stops_by_itself_is_completed(start_server: StartServer) -> None:
    server = start_server(FakeExecutor(num_blocks=256, choose=lambda tokens: 258))  # the end of a turn
    body = server.post(PATH, {"input": "Hello"}).json()
    assert (body["status"], body["incomplete_details"]) == ("completed", None)
    assert body["output"][0]["content"][0]["text"] == ""
    assert body["max_output_tokens"] is None


def test_conversation_is_read_as_the_chat_that_it_is(shared_server: LiveServer) -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": t} for t in ("Hel", "lo")]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi", "annotations": []}]},
        {"type": "reasoning", "summary": []},
        {"role": "user", "content": "Bye"},
    ]  # fmt: skip
    messages = [
        {"role": "system", "content": "Rule.\n\nBe brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Bye"},
    ]
    sampling = {"temperature": 0, "seed": 3}
    ours = shared_server.post(PATH, {"input": items, "instructions": "Rule.", "max_output_tokens": 6, **sampling})
    chat = shared_server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 6, **sampling})
    assert ours.json()["output"][0]["content"][0]["text"] == chat.json()["choices"][0]["message"]["content"]


def test_log_probabilities(client: openai.OpenAI) -> None:
    answer: Any = client.responses.create(
        model="fake", input="Hello", max_output_tokens=3, top_logprobs=2, include=["message.output_text.logprobs"]
    )
    logprobs = answer.output[0].content[0].logprobs
    assert len(logprobs) == 3
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [1]}, "input"),
        ({"input": [{"role": "nobody", "content": "x"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input"),
        ({"input": "x" * 300}, "input"),
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "x"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "5"}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"text": {"format": 1}}, "text"),
        ({"text": {"verbosity": "low"}}, "text"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options"),
    ],
)
def test_refusals_name_the_field(shared_server: LiveServer, change: dict[str, Any], param: str) -> None:
    error = error_of(shared_server.post(PATH, {"input": "Hello", **change}), 400)
    assert error["param"] == param


@pytest.mark.parametrize(
    "more",
    [
        {"store": False, "truncation": "disabled", "background": False, "user": "x", "parallel_tool_calls": True},
        {"text": {"format": {"type": "text"}}, "tools": [], "tool_choice": "auto", "include": []},
        {"input": [{"role": "user", "content": "Hello"}], "service_tier": "auto", "reasoning": None},
    ],
)
def test_fields_that_ask_for_what_happens_anyway_are_taken(shared_server: LiveServer, more: dict[str, Any]) -> None:
    assert shared_server.post(PATH, {"input": "Hello", "max_output_tokens": 1, **more}).status_code == 200


def test_error_in_a_stream_is_an_event(start_server: StartServer) -> None:
    server = start_server(FakeExecutor(num_blocks=64, fail_at_step=4), ends_idle=False)
    with server.client.stream("POST", PATH, json={"input": "Hello", "stream": True}) as response:
        response.read()
    last = response.text.strip().split("\n\n")[-1]
    assert last.startswith("event: error\ndata: ")
    assert '"code"' in last
    assert "response.completed" not in response.text
    assert "[DONE]" not in response.text
