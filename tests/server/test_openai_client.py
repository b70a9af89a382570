"""The official client against the service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.engine.fake_executor import FakeExecutor
from tests.server.live_server import LiveServer


@pytest.fixture
def client(shared_server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=shared_server.url + "/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake",
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
        max_completion_tokens=8,
        temperature=0.5,
        seed=1,
        n=2,
        logprobs=True,
        top_logprobs=3,
        user="somebody",
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(len(choice.message.content or "") == 8 for choice in answer.choices)
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 3
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_streamed_chat(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=8,
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, usage, reasons = "", None, []
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert len(text) == 8
    assert reasons == ["length"]
    assert usage is not None
    assert usage.completion_tokens == 8


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt=["a", "b"], max_tokens=4, echo=True, logprobs=1)
    assert [choice.text[0] for choice in answer.choices] == ["a", "b"]
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.text_offset == [0, 1, 2, 3, 4]
    streamed = client.completions.create(model="fake", prompt="a", max_tokens=4, seed=3, stream=True)
    whole = client.completions.create(model="fake", prompt="a", max_tokens=4, seed=3)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").owned_by == "lpx"


def test_errors_arrive_as_the_clients_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "x"}])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="fake", prompt="x", temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as tools:
        client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "x"}],
            tools=[{"type": "function", "function": {"name": "f g"}}],
        )
    assert tools.value.param == "tools"


def test_tools_through_the_client(start_server: Callable[..., LiveServer]) -> None:
    server = start_server(FakeExecutor(num_blocks=1024, block_size=4), max_model_len=1024)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)

    def ask(**options: Any) -> Any:
        return client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "x"}],
            tools=[{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"const": 1}}}}}],
            tool_choice="required",
            parallel_tool_calls=False,
            seed=1,
            **options,
        )

    (choice,) = ask().choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    parts = [part for chunk in ask(stream=True) for part in chunk.choices[0].delta.tool_calls or ()]
    assert (parts[0].function.name, parts[0].type) == ("f", "function") == (call.function.name, call.type)
    assert "".join(part.function.arguments for part in parts) == call.function.arguments


def test_a_schema_through_the_client(client: openai.OpenAI) -> None:
    class Answer(BaseModel):
        good: bool
        kind: Literal["a", "b"]

    completion = client.chat.completions.parse(
        model="fake", messages=[{"role": "user", "content": "x"}], response_format=Answer, seed=2
    )
    assert isinstance(completion.choices[0].message.parsed, Answer)


async def _first_chunks(url: str) -> int:
    count = 0
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="unused", max_retries=0) as client:
        stream = await client.completions.create(model="fake", prompt="a", max_tokens=200, stream=True)
        async for _ in stream:
            count += 1
            if count == 3:
                await stream.close()
                break
    return count


def test_closed_stream_of_the_async_client(shared_server: LiveServer) -> None:
    import asyncio

    assert asyncio.run(_first_chunks(shared_server.url)) == 3  # that it left nothing behind, the fixture checks
