"""The official clients go through every endpoint: whole and streamed, with tools, forms, thoughts and errors."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.engine.fake_executor import HIDDEN, FakeExecutor
from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer
from tests.server.scripted import says

USER: Any = [{"role": "user", "content": "What is the weather?"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "北京"}}\n</tool_call>'
ARGUMENTS = {"city": "北京"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
RESPONSES_TOOL: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}
MESSAGES_TOOL: Any = {"name": "get_weather", "description": "Weather of a city.", "input_schema": SCHEMA}


class Clients:
    def __init__(self, server: LiveServer) -> None:
        self.openai = openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0)


@pytest.fixture
def clients(shared_server: LiveServer) -> Clients:
    return Clients(shared_server)


def serving(start_server: StartServer, text: str) -> Clients:
    executor = FakeExecutor(num_blocks=2048, block_size=4, choose=says(text))
    return Clients(start_server(executor, max_model_len=2048))


# --- text ---


def test_models(clients: Clients) -> None:
    assert [model.id for model in clients.openai.models.list()] == ["fake"]
    assert clients.openai.models.retrieve("fake").owned_by == "lpx"


def test_the_same_text_by_every_protocol(start_server: StartServer) -> None:
    clients = serving(start_server, "It rains.")
    chat = clients.openai.chat.completions.create(model="fake", messages=USER)
    response = clients.openai.responses.create(model="fake", input=USER)
    message = clients.anthropic.messages.create(model="fake", max_tokens=50, messages=USER)
    assert chat.choices[0].message.content == "It rains."
    assert response.output_text == "It rains."
    assert [block.text for block in message.content if block.type == "text"] == ["It rains."]
    assert (chat.choices[0].finish_reason, response.status, message.stop_reason) == ("stop", "completed", "end_turn")
    assert chat.usage is not None
    assert response.usage is not None
    assert chat.usage.prompt_tokens == response.usage.input_tokens


def test_streams_of_every_protocol(start_server: StartServer) -> None:
    clients = serving(start_server, "It rains.")
    chat = clients.openai.chat.completions.create(model="fake", messages=USER, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chat) == "It rains."
    with clients.openai.responses.stream(model="fake", input=USER) as events:
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "It rains."
    with clients.anthropic.messages.stream(model="fake", max_tokens=50, messages=USER) as stream:
        assert "".join(stream.text_stream) == "It rains."


def test_completions(clients: Clients) -> None:
    whole = clients.openai.completions.create(model="fake", prompt=["a", "b"], n=2, max_tokens=4, logprobs=1, echo=True)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    streamed = clients.openai.completions.create(model="fake", prompt="a", max_tokens=8, temperature=0, stream=True)
    assert len("".join(chunk.choices[0].text for chunk in streamed)) == 8


def test_embeddings(clients: Clients) -> None:
    answer = clients.openai.embeddings.create(model="fake", input=["a", "b"], dimensions=3)
    assert [len(item.embedding) for item in answer.data] == [3, 3]
    plain = clients.openai.embeddings.create(model="fake", input="a", encoding_format="float")
    assert len(plain.data[0].embedding) == HIDDEN


def test_tokens_are_counted(clients: Clients) -> None:
    count = clients.anthropic.messages.count_tokens(model="fake", messages=USER).input_tokens
    answer = clients.openai.chat.completions.create(model="fake", messages=USER, max_tokens=1)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == count


# --- tools ---


def test_a_tool_is_called_by_every_protocol(start_server: StartServer) -> None:
    clients = serving(start_server, "I look. " + CALL)
    chat = clients.openai.chat.completions.create(model="fake", messages=USER, tools=[CHAT_TOOL])
    [call] = chat.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (chat.choices[0].finish_reason, call.function.name) == ("tool_calls", "get_weather")
    assert json.loads(call.function.arguments) == ARGUMENTS

    response = clients.openai.responses.create(model="fake", input=USER, tools=[RESPONSES_TOOL])
    text, item = response.output
    assert (text.type, item.type, response.status) == ("message", "function_call", "completed")
    assert item.type == "function_call"
    assert (item.name, json.loads(item.arguments)) == ("get_weather", ARGUMENTS)
    assert response.tools[0].type == "function"

    message = clients.anthropic.messages.create(model="fake", max_tokens=900, messages=USER, tools=[MESSAGES_TOOL])
    block = message.content[-1]
    assert (message.stop_reason, block.type) == ("tool_use", "tool_use")
    assert block.type == "tool_use"
    assert (block.name, block.input) == ("get_weather", ARGUMENTS)


def test_calls_are_streamed_by_every_protocol(start_server: StartServer) -> None:
    clients = serving(start_server, CALL + CALL)
    with clients.openai.responses.stream(model="fake", input=USER, tools=[RESPONSES_TOOL]) as events:
        kinds: list[Any] = list(events)
    arguments = [event for event in kinds if event.type == "response.function_call_arguments.done"]
    assert [json.loads(event.arguments) for event in arguments] == [ARGUMENTS, ARGUMENTS]
    deltas = [event for event in kinds if event.type == "response.function_call_arguments.delta"]
    assert len(deltas) >= 2
    for index in (0, 1):
        joined = "".join(event.delta for event in deltas if event.output_index == index)
        assert json.loads(joined) == ARGUMENTS

    with clients.anthropic.messages.stream(
        model="fake", max_tokens=900, messages=USER, tools=[MESSAGES_TOOL]
    ) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert [block.input for block in final.content if block.type == "tool_use"] == [ARGUMENTS, ARGUMENTS]


def test_a_call_can_be_required_and_answered(clients: Clients, start_server: StartServer) -> None:
    clients = Clients(start_server(FakeExecutor(num_blocks=2048, block_size=4), max_model_len=2048))
    message = clients.anthropic.messages.create(
        model="fake", max_tokens=900, messages=USER, tools=[MESSAGES_TOOL], tool_choice={"type": "any"}
    )
    call = message.content[-1]
    assert call.type == "tool_use"
    follow_up: Any = [
        *USER,
        {"role": "assistant", "content": [block.model_dump() for block in message.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Rain"}]},
    ]
    again = clients.anthropic.messages.create(model="fake", max_tokens=5, messages=follow_up, tools=[MESSAGES_TOOL])
    assert again.usage.output_tokens == 5

    response = clients.openai.responses.create(
        model="fake", input=USER, tools=[RESPONSES_TOOL], tool_choice={"type": "function", "name": "get_weather"}
    )
    item = response.output[-1]
    assert item.type == "function_call"
    items: Any = [
        *USER,
        *[each.model_dump(exclude_none=True) for each in response.output],
        {"type": "function_call_output", "call_id": item.call_id, "output": "Rain"},
    ]
    assert clients.openai.responses.create(model="fake", input=items, max_output_tokens=16).usage is not None


# --- forms and thoughts ---


def test_a_schema_is_kept_by_every_protocol(start_server: StartServer) -> None:
    clients = Clients(start_server(FakeExecutor(num_blocks=2048, block_size=4), max_model_len=2048))
    form: Any = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
    chat = clients.openai.chat.completions.create(model="fake", messages=USER, response_format=form)
    text: Any = {"format": {"type": "json_schema", "name": "weather", "schema": SCHEMA}}
    response = clients.openai.responses.create(model="fake", input=USER, text=text)
    config: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message = clients.anthropic.messages.create(model="fake", max_tokens=500, messages=USER, output_config=config)
    block = message.content[0]
    assert block.type == "text"
    for answer in (chat.choices[0].message.content, response.output_text, block.text):
        assert set(json.loads(answer or "")) == {"city"}


def test_thoughts_are_told_apart_on_request(start_server: StartServer) -> None:
    clients = serving(start_server, "<think>\nRain?\n</think>\n\nIt rains.")
    response = clients.openai.responses.create(model="fake", input=USER, reasoning={"summary": "auto"})
    thoughts, _ = response.output
    assert thoughts.type == "reasoning"
    assert thoughts.content is not None
    assert (thoughts.content[0].text, response.output_text) == ("Rain?", "It rains.")
    with clients.anthropic.messages.stream(
        model="fake", max_tokens=500, messages=USER, thinking={"type": "adaptive"}
    ) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert final.content[0].type == "thinking"
    assert final.content[0].thinking == "Rain?"


# --- errors ---


def test_errors_are_the_clients_own(clients: Clients) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        clients.openai.chat.completions.create(model="fake", messages=USER, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        clients.openai.responses.create(model="other", input="x")
    with pytest.raises(openai.BadRequestError) as caught:
        clients.openai.responses.create(model="fake", input="x", previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError):
        clients.openai.embeddings.create(model="fake", input="")
    with pytest.raises(anthropic.BadRequestError) as refused:
        clients.anthropic.messages.create(model="fake", max_tokens=0, messages=USER)
    assert "max_tokens" in str(refused.value)
