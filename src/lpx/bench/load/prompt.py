"""One request as data, and as the body that an endpoint takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lpx.bench.load.settings import LoadSettings

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one request asks for."""

    content: str | tuple[Message, ...]  # a text, or a whole conversation
    output_len: int
    input_len: int | None = None  # tokens that it was made for; None: it is as long as it is


@dataclass(frozen=True, slots=True)
class Job:
    """Requests that follow each other: one, or the turns of a conversation, which contain the answers before them."""

    turns: tuple[Prompt, ...]


def request_body(settings: LoadSettings, model: str | None, prompt: Prompt, history: Sequence[Message] = ()) -> bytes:
    """The JSON of one request; members of `extra_body` win."""
    body: dict[str, Any] = {} if model is None else {"model": model}
    if settings.endpoint_type == "openai-chat":
        content = prompt.content
        news = [{"role": "user", "content": content}] if isinstance(content, str) else list(content)
        body["messages"] = [*history, *news]
    else:
        body["prompt"] = prompt.content if isinstance(prompt.content, str) else flat_text(prompt.content)
    body["max_tokens"] = prompt.output_len
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    if settings.ignore_eos:
        body["ignore_eos"] = True
    if settings.stream:
        body["stream"] = True
        if settings.endpoint_type != "lpx":
            body["stream_options"] = {"include_usage": True}
    body.update(settings.extra_body)
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "backslashreplace")  # \udXXX for half of a pair


def flat_text(messages: Sequence[Message]) -> str:
    """A conversation for an endpoint that takes text only."""
    return "\n\n".join(str(message.get("content") or "") for message in messages)
