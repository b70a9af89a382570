"""The body of OpenAI's `POST /v1/responses`, and what it means as a chat. Nothing is stored: each request says all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, model_validator
from typing_extensions import Self

from lpx.engine.sampling_params import MAX_LOGPROBS
from lpx.errors import InvalidRequestError
from lpx.server.errors import clip
from lpx.server.schemas.chat import ChatRequest
from lpx.server.schemas.fields import FLAGS_SCHEMA, INPUT_SCHEMA, OBJECTS_SCHEMA, fail, template_kwargs, tool_list
from lpx.server.schemas.sampling import SamplingRequest, StrictRequest

# What the fields of a chat request are called here, for errors.
RESPONSES_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text",
    "reasoning_effort": "reasoning",
}

_LOGPROBS = "message.output_text.logprobs"
_WITHOUT_MEANING = frozenset({_LOGPROBS, "reasoning.encrypted_content"})  # the second: nothing is encrypted here
_MAX_METADATA = 16


class ResponsesRequest(SamplingRequest):
    """`POST /v1/responses`: OpenAI's fields, and the sampling fields that all endpoints have."""

    input: Annotated[Any, BeforeValidator(lambda value: list(_chat_messages(value))), INPUT_SCHEMA]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: Annotated[dict[str, Any] | None, BeforeValidator(lambda value: _text(value))] = None
    tools: Annotated[list[dict[str, Any]] | None, BeforeValidator(lambda value: _tools(value)), OBJECTS_SCHEMA] = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning: Annotated[dict[str, Any] | None, BeforeValidator(lambda value: _reasoning(value))] = None
    parallel_tool_calls: bool | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    metadata: Annotated[dict[str, str] | None, BeforeValidator(lambda value: _metadata(value))] = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    truncation: str | None = None
    stream_options: StreamObfuscation | None = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, BeforeValidator(template_kwargs), FLAGS_SCHEMA] = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        stateless = "this server keeps nothing between requests: send the whole conversation as input"
        for name, reason in (
            ("previous_response_id", stateless),
            ("conversation", stateless),
            ("store", "answers are not stored here; send false, or leave it out"),
            ("background", "a request is answered while it is open"),
            ("prompt_logprobs", "it is not part of this protocol"),
        ):
            if getattr(self, name) not in (None, False):
                raise InvalidRequestError(f"{name}: {reason}.", param=name, code="unsupported_parameter")
        if self.truncation not in (None, "disabled"):
            raise InvalidRequestError(
                "truncation: prompts are never cut; send 'disabled', or leave it out.",
                param="truncation",
                code="unsupported_parameter",
            )
        for name in self.include or ():
            if name not in _WITHOUT_MEANING:
                raise InvalidRequestError(
                    f"include names {clip(name, 64)!r}, which there is not here.", param="include"
                )
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise InvalidRequestError(
                f"max_output_tokens must be at least 1, not {self.max_output_tokens}.", param="max_output_tokens"
            )
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_LOGPROBS:
            raise InvalidRequestError(
                f"top_logprobs must be from 0 to {MAX_LOGPROBS}, not {self.top_logprobs}.", param="top_logprobs"
            )
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options may only be given when stream is true.", param="stream_options")
        return self

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.top_logprobs) or _LOGPROBS in (self.include or ())

    def as_chat(self, body: Mapping[str, Any]) -> ChatRequest:
        """The chat request that asks for the same; `body` is what this was parsed from."""
        chat: dict[str, Any] = {
            key: body[key]
            for key in SamplingRequest.model_fields
            if key != "prompt_logprobs" and body.get(key) is not None
        }
        chat["messages"] = _one_system(self.instructions, self.input)
        if self.max_output_tokens is not None:
            chat["max_completion_tokens"] = self.max_output_tokens
        if self.wants_logprobs:
            chat |= {"logprobs": True, "top_logprobs": self.top_logprobs or 0}
        for name in ("chat_template_kwargs", "tools", "parallel_tool_calls"):
            if getattr(self, name) not in (None, []):
                chat[name] = getattr(self, name)
        if self.reasoning is not None:
            chat["separate_reasoning"] = True
            if self.reasoning.get("effort") is not None:
                chat["reasoning_effort"] = self.reasoning["effort"]
        choice = self.tool_choice
        if choice is not None:
            named = isinstance(choice, dict) and choice.get("type") == "function" and "function" not in choice
            chat["tool_choice"] = (
                {"type": "function", "function": {"name": choice.get("name")}}
                if named and isinstance(choice, dict)
                else choice
            )
        form = (self.text or {}).get("format")
        if form is not None and form != {"type": "text"}:
            chat["response_format"] = _response_format(form)
        return ChatRequest.parse(chat)


class StreamObfuscation(StrictRequest):
    """Padding that hides the length of tokens from the network: not done, and clients may say that they know."""

    include_obfuscation: bool | None = None

    @model_validator(mode="after")
    def _none(self) -> Self:
        if self.include_obfuscation:
            raise InvalidRequestError("stream_options.include_obfuscation is not supported.", param="stream_options")
        return self


ResponsesRequest.model_rebuild()


def _one_system(instructions: str | None, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Instructions and leading system messages as one: many templates take no second."""
    count = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    parts = [*([instructions] if instructions else []), *(message["content"] for message in messages[:count])]
    system = [{"role": "system", "content": "\n\n".join(parts)}] if parts else []
    return [*system, *messages[count:]]


def _chat_messages(value: Any) -> Iterator[dict[str, Any]]:
    """Items as OpenAI's chat messages; calls that follow each other belong to one message of the assistant."""
    if isinstance(value, str):
        yield {"role": "user", "content": value}
        return
    if not isinstance(value, list):
        raise fail("must be a string or a list of items")
    if not value:
        raise fail("is empty; at least one item is needed")
    answer: dict[str, Any] | None = None  # of the assistant, which calls may still be added to
    for position, item in enumerate(value):
        where = f"has at position {position}"
        if not isinstance(item, dict):
            raise fail(f"{where} an item that is not an object")
        kind = item.get("type", "message" if "role" in item else None)
        if kind == "function_call":
            answer = answer or {"role": "assistant", "content": None}
            function = {"name": _string(item, "name", where), "arguments": _string(item, "arguments", where)}
            call = {"id": _string(item, "call_id", where), "type": "function", "function": function}
            answer.setdefault("tool_calls", []).append(call)
            continue
        if kind == "reasoning":  # its text is left to templates that drop it from earlier turns anyway
            continue
        if answer is not None:
            yield answer
            answer = None
        if kind == "function_call_output":
            output = _content(item.get("output"), where)
            yield {"role": "tool", "tool_call_id": _string(item, "call_id", where), "content": output}
        elif kind == "message":
            role = item.get("role")
            if role not in ("user", "assistant", "system", "developer"):
                raise fail(f"{where} a message whose role is not user, assistant, system or developer")
            message = {
                "role": "system" if role == "developer" else role,
                "content": _content(item.get("content"), where),
            }
            if role == "assistant":
                answer = message
            else:
                yield message
        elif kind == "item_reference":
            raise fail(f"{where} a reference to a stored item, but nothing is stored here: send the item itself")
        else:
            named = f" of type {clip(kind, 32)!r}" if isinstance(kind, str) else ""
            raise fail(f"{where} an item{named} that this model cannot read")
    if answer is not None:
        yield answer


def _string(item: Mapping[str, Any], key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise fail(f"{where} an item without a string {key!r}")
    return value


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise fail(f"{where} a content that is neither a string nor a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        key = "refusal" if kind == "refusal" else "text"
        if kind not in ("input_text", "output_text", "text", "refusal") or not isinstance(part.get(key), str):
            named = f" of type {clip(kind, 32)!r}" if isinstance(kind, str) else ""
            raise fail(f"{where} a content part{named} that is not text: this model reads text only")
        texts.append(part[key])
    return "".join(texts)


def _text(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, dict) or not set(value) <= {"format", "verbosity"}:
        raise fail("must be an object with 'format'")
    if value.get("verbosity") is not None:
        raise fail("has a verbosity, which is not supported")
    form = value.get("format")
    if form is not None and not (isinstance(form, dict) and isinstance(form.get("type"), str)):
        raise fail("has a format that is not an object with a type")
    return value


def _reasoning(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, dict) or not set(value) <= {"effort", "summary", "generate_summary"}:
        raise fail("must be an object with 'effort'")
    if not isinstance(value.get("effort"), str | None):
        raise fail("has an effort that is not a string")
    for name in ("summary", "generate_summary"):
        if value.get(name) not in (None, "auto"):  # "auto" leaves it to the server, which shows the thoughts themselves
            raise fail(f"asks for a {name}, which is not made: thoughts are shown as they are")
    return value


def _response_format(form: dict[str, Any]) -> dict[str, Any]:
    """Here the schema lies beside the type; in a chat it has an object of its own."""
    if form["type"] != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {key: item for key, item in form.items() if key != "type"}}


def _tools(value: Any) -> Any:
    """Flat function tools as a chat's nested ones."""
    if tool_list(value) is None:
        return None
    tools = []
    for position, tool in enumerate(value):
        if tool.get("type") != "function":
            raise fail(f"has at position {position} a tool that is not a function; there are no others here")
        flat = {key: item for key, item in tool.items() if key != "type" and item is not None}
        tools.append({"type": "function", "function": tool.get("function", flat)})
    return tools


def _metadata(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > _MAX_METADATA:
        raise fail(f"must be an object of at most {_MAX_METADATA} strings")
    if not all(isinstance(item, str) and len(item) <= 512 and len(key) <= 64 for key, item in value.items()):
        raise fail("must hold strings of at most 512 characters, under keys of at most 64")
    return value
