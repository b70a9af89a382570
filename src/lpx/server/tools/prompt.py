"""Tools for models whose chat template knows nothing of them: told in a system message, in the hermes format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lpx.errors import InvalidRequestError
from lpx.server.tools.formats import HERMES_BEGIN, HERMES_END

_RESULT_BEGIN, _RESULT_END = "<tool_response>", "</tool_response>"


def tell_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with the tools in its system message, and earlier calls and results as text."""
    told = [_as_text(message, f"messages[{i}]") for i, message in enumerate(messages)]
    if tools:
        instructions = _instructions(tools)
        if told and told[0].get("role") in ("system", "developer"):
            told[0] = {**told[0], "content": f"{told[0]['content']}\n\n{instructions}"}
        else:
            told.insert(0, {"role": "system", "content": instructions})
    merged: list[dict[str, Any]] = []
    for message in told:
        # Results of several calls, and what the user says to them, are one turn.
        if merged and message["role"] == "user" == merged[-1]["role"] and _RESULT_END in merged[-1]["content"]:
            merged[-1] = {**merged[-1], "content": f"{merged[-1]['content']}\n{message['content']}"}
        else:
            merged.append(message)
    return merged


def _instructions(tools: Sequence[Mapping[str, Any]]) -> str:
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You can call these functions, one JSON object each:\n{lines}\n\n"
        "To call one, answer with its name and arguments in exactly this form, and with nothing else:\n"
        f'{HERMES_BEGIN}\n{{"name": "the function", "arguments": {{"a parameter": "its value"}}}}\n{HERMES_END}\n'
        f"Its result comes between {_RESULT_BEGIN} and {_RESULT_END}. Answer without a call when none is needed."
    )


def _as_text(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content") or ""
    if role == "tool":
        return {"role": "user", "content": f"{_RESULT_BEGIN}\n{content}\n{_RESULT_END}"}
    calls = message.get("tool_calls")
    if role != "assistant" or not calls:
        return dict(message)
    parts = [content] if content else []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidRequestError(f"{where}.tool_calls[{i}].function must have a name.", param="messages")
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            arguments = _parsed(arguments, f"{where}.tool_calls[{i}].function.arguments")
        text = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
        parts.append(f"{HERMES_BEGIN}\n{text}\n{HERMES_END}")
    return {"role": "assistant", "content": "\n".join(parts)}


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequestError(f"{where} is not valid JSON.", param="messages") from None
