"""Pieces of an answer in OpenAI's chat protocol: an assistant's message, whole or delta by delta."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lpx.server.answer_reader import AnswerPiece
from lpx.server.reasoning import Reasoning
from lpx.server.tools.calls import CallStart, collect_calls


def message_of(pieces: Sequence[AnswerPiece]) -> dict[str, Any]:
    """The fields of a whole message: `content` (null beside calls without text), `tool_calls`, `reasoning_content`."""
    thoughts = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    text, calls = collect_calls(piece for piece in pieces if not isinstance(piece, Reasoning))
    message: dict[str, Any] = {"content": text or (None if calls else "")}
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
            for call in calls
        ]
    return message


def delta_of(piece: AnswerPiece) -> dict[str, Any]:
    """The `delta` of a chunk."""
    if isinstance(piece, str):
        return {"content": piece}
    if isinstance(piece, Reasoning):
        return {"reasoning_content": piece.text}
    if isinstance(piece, CallStart):
        function = {"name": piece.name, "arguments": ""}
        return {"tool_calls": [{"index": piece.index, "id": piece.id, "type": "function", "function": function}]}
    return {"tool_calls": [{"index": piece.index, "function": {"arguments": piece.text}}]}
