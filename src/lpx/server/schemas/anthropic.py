"""The bodies of Anthropic's `POST /v1/messages` and `/v1/messages/count_tokens`, and what they mean as a chat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, model_validator
from typing_extensions import Self

from lpx.errors import InvalidRequestError
from lpx.server.errors import clip
from lpx.server.schemas.chat import ChatRequest
from lpx.server.schemas.fields import (
    MESSAGES_SCHEMA,
    OBJECTS_SCHEMA,
    STOPS_SCHEMA,
    TEXTS_SCHEMA,
    fail,
    stop_list,
    tool_list,
)
from lpx.server.schemas.sampling import SamplingRequest

# What the fields of a chat request are called here, for errors.
MESSAGES_NAMES = {
    "stop": "stop_sequences",
    "max_completion_tokens": "max_tokens",
    "parallel_tool_calls": "tool_choice",
    "chat_template_kwargs": "thinking",
    "response_format": "output_config",
}


class MessagesRequest(SamplingRequest):
    """`POST /v1/messages`: Anthropic's fields, and the sampling fields that all endpoints have."""

    messages: Annotated[Any, BeforeValidator(lambda value: _joined_turns(_chat_messages(value))), MESSAGES_SCHEMA]
    max_tokens: int
    system: Annotated[str | None, BeforeValidator(lambda value: _texts(value, "system")), TEXTS_SCHEMA] = None
    stop_sequences: Annotated[list[str] | None, BeforeValidator(stop_list), STOPS_SCHEMA] = None
    thinking: Annotated[dict[str, Any] | None, BeforeValidator(lambda value: _thinking(value))] = None
    tools: Annotated[list[dict[str, Any]] | None, BeforeValidator(lambda value: _tools(value)), OBJECTS_SCHEMA] = None
    tool_choice: dict[str, Any] | None = None
    output_config: Annotated[dict[str, Any] | None, BeforeValidator(lambda value: _output_config(value))] = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.stop is not None and self.stop_sequences is not None:
            raise InvalidRequestError("Give either stop_sequences or stop, not both.", param="stop")
        if self.prompt_logprobs is not None:
            raise InvalidRequestError("prompt_logprobs is not part of this protocol.", param="prompt_logprobs")
        if self.max_tokens < 1:
            raise InvalidRequestError(f"max_tokens must be at least 1, not {self.max_tokens}.", param="max_tokens")
        return self

    def as_chat(self, body: Mapping[str, Any]) -> ChatRequest:
        """The chat request that asks for the same; `body` is what this was parsed from."""
        chat: dict[str, Any] = {
            key: body[key]
            for key in SamplingRequest.model_fields
            if key not in ("prompt_logprobs", "stop") and body.get(key) is not None
        }
        system = [] if not self.system else [{"role": "system", "content": self.system}]
        chat["messages"] = [*system, *self.messages]
        chat["max_completion_tokens"] = self.max_tokens
        stop = self.stop if self.stop_sequences is None else self.stop_sequences
        if stop is not None:
            chat["stop"] = stop
        if self.messages[-1]["role"] == "assistant":  # the answer goes on where this ends
            chat["continue_final_message"] = True
        if self.thinking is not None:
            wanted = self.thinking["type"] != "disabled"
            chat |= {"chat_template_kwargs": {"enable_thinking": wanted}, "separate_reasoning": wanted}
        if self.tools:
            chat["tools"] = self.tools
        if self.output_config and self.output_config.get("format"):
            schema = {"name": "output", "schema": self.output_config["format"]["schema"]}
            chat["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self.tool_choice is not None:
            chat |= _tool_choice(self.tool_choice)
        return ChatRequest.parse(chat)


class CountTokensRequest(MessagesRequest):
    """`POST /v1/messages/count_tokens`: a message that is not answered."""

    max_tokens: int = 1


def _chat_messages(value: Any) -> Iterator[dict[str, Any]]:
    """Anthropic's messages as OpenAI's: results of tools become messages of their own."""
    if not isinstance(value, list):
        raise fail("must be a list of messages")
    if not value:
        raise fail("is empty; at least one message is needed")
    for position, message in enumerate(value):
        if not isinstance(message, dict):
            raise fail(f"has at position {position} an item that is not an object")
        role = message.get("role")
        if role not in ("user", "assistant", "system"):
            raise fail(f"has at position {position} a message whose role is not user or assistant")
        content = message.get("content")
        if isinstance(content, str):
            yield {"role": role, "content": content}
            continue
        if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
            raise fail(f"has at position {position} a content that is neither a string nor a list of blocks")
        yield from _blocks(role, content, f"has at position {position}")


def _joined_turns(messages: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of the same role that follow each other are one turn, as Anthropic has it."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        last = turns[-1] if turns else None
        if (
            last is not None
            and last.keys() == message.keys() == {"role", "content"}
            and last["role"] == message["role"]
        ):
            last["content"] += "\n" + message["content"]
        else:
            turns.append(message)
    return turns


def _blocks(role: str, content: list[dict[str, Any]], where: str) -> Iterator[dict[str, Any]]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    results = False
    for block in content:
        kind = block.get("type")
        if kind == "text":
            texts.append(_string(block, "text", where))
        elif kind == "thinking" and role == "assistant":
            thoughts.append(_string(block, "thinking", where))
        elif kind == "redacted_thinking" and role == "assistant":
            continue
        elif kind == "tool_use" and role == "assistant":
            if not isinstance(block.get("input", {}), dict):
                raise fail(f"{where} a tool_use block whose input is not an object")
            arguments = json.dumps(block.get("input", {}), ensure_ascii=False)
            function = {"name": _string(block, "name", where), "arguments": arguments}
            calls.append({"id": _string(block, "id", where), "type": "function", "function": function})
        elif kind == "tool_result" and role == "user":
            results = True
            yield {
                "role": "tool",
                "tool_call_id": _string(block, "tool_use_id", where),
                "content": _texts(block.get("content"), "tool_result") or "",
            }
        else:
            named = f" of type {clip(kind, 32)!r}" if isinstance(kind, str) else ""
            raise fail(f"{where} a content block{named} that this model cannot read in a message of the {role}")
    if texts or not results:
        message: dict[str, Any] = {"role": role, "content": "".join(texts)}
        if thoughts:
            message["reasoning_content"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        yield message


def _string(block: Mapping[str, Any], key: str, where: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise fail(f"{where} a content block without a string {key!r}")
    return value


def _texts(value: Any, where: str) -> str | None:
    """Text, or blocks of text joined."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(
        isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)
        for block in value
    ):
        raise fail(f"must be a string or a list of text blocks ({where})")
    return "\n".join(block["text"] for block in value)


def _thinking(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("type") not in ("enabled", "disabled", "adaptive"):
        raise fail("must be an object whose type is enabled, adaptive or disabled")
    budget = value.get("budget_tokens")
    if budget is not None:
        raise fail("has a budget_tokens, which is not supported: leave it out, and thinking ends with max_tokens")
    return value


def _output_config(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, dict) or not set(value) <= {"format", "effort"}:
        raise fail("must be an object with 'format'")
    if value.get("effort") is not None:
        raise fail("has an effort, which is not supported")
    form = value.get("format")
    if form is not None and not (
        isinstance(form, dict) and form.get("type") == "json_schema" and isinstance(form.get("schema"), dict)
    ):
        raise fail("has a format that is not of type json_schema with an object as schema")
    return value


def _tools(value: Any) -> Any:
    """Anthropic's tools as OpenAI's functions."""
    if tool_list(value) is None:
        return None
    tools = []
    for position, tool in enumerate(value):
        if tool.get("type", "custom") != "custom":
            raise fail(f"has at position {position} a tool that runs on Anthropic's servers; only custom ones are here")
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            raise fail(f"has at position {position} a tool without a name")
        function = {"name": name, "parameters": tool.get("input_schema", {"type": "object", "properties": {}})}
        if tool.get("description") is not None:
            function["description"] = tool["description"]
        tools.append({"type": "function", "function": function})
    return tools


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kinds: dict[Any, Any] = {"auto": "auto", "any": "required", "none": "none"}
    kind = choice.get("type")
    result: dict[str, Any] = {}
    if kind == "tool" and isinstance(choice.get("name"), str):
        result["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif isinstance(kind, str) and kind in kinds:
        result["tool_choice"] = kinds[kind]
    else:
        raise InvalidRequestError(
            "tool_choice must be an object whose type is auto, any, none, or tool with a name.", param="tool_choice"
        )
    alone = choice.get("disable_parallel_tool_use")
    if alone is not None:
        if not isinstance(alone, bool):
            raise InvalidRequestError(
                "tool_choice.disable_parallel_tool_use must be true or false.", param="tool_choice"
            )
        result["parallel_tool_calls"] = not alone
    return result
