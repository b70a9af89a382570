"""The messages of a conversation, as OpenAI's chat has them."""

from __future__ import annotations

from typing import Any

from lpx.server.errors import clip
from lpx.server.schemas.fields import fail

_MAX_MESSAGES = 4096


def _content(content: Any, position: int) -> str | None:
    """A message's content with its text parts joined."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise fail(f"has at position {position} a content that is neither a string nor a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            named = f" of type {clip(kind, 32)!r}" if isinstance(kind, str) else ""
            raise fail(f"has at position {position} a content part{named} that is not text: this model reads text only")
        text = part.get("text")
        if not isinstance(text, str):
            raise fail(f"has at position {position} a text part without a string 'text'")
        texts.append(text)
    return "".join(texts)


def chat_messages(value: Any) -> Any:
    if not isinstance(value, list):
        raise fail("must be a list of messages")
    if not value:
        raise fail("is empty; at least one message is needed")
    if len(value) > _MAX_MESSAGES:
        raise fail(f"holds {len(value)} messages; at most {_MAX_MESSAGES} are allowed")
    result = []
    for position, message in enumerate(value):
        if not isinstance(message, dict):
            raise fail(f"has at position {position} an item that is not an object")
        role = message.get("role")
        if not isinstance(role, str) or not role or len(role) > 64:
            raise fail(f"has at position {position} a message without a role")
        for key in ("name", "tool_call_id", "reasoning_content", "refusal"):
            if not isinstance(message.get(key), str | None):
                raise fail(f"has at position {position} a {key!r} that is not a string")
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            raise fail(f"has at position {position} 'tool_calls' that are not a list of objects")
        content = _content(message.get("content"), position)
        if content is None and not calls:
            raise fail(f"has at position {position} a message without content")
        cleaned = {key: item for key, item in message.items() if item is not None}
        cleaned["content"] = content
        result.append(cleaned)
    return result
