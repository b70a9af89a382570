"""What a model's text holds beside text: tool calls, whole and piece by piece."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_ALPHABET = string.ascii_letters + string.digits

MakeId = Callable[[], str]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a function. `arguments_json` is JSON text as the model wrote it, cut where the text was cut."""

    name: str
    arguments_json: str
    id: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; its arguments follow. `index` counts the calls of an answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next part of the arguments of call `index`, as JSON text."""

    index: int
    text: str


Piece = str | CallStart | CallArguments
"""News from a parser: text for the reader, or a part of a call. The pieces of a call follow each other."""


def make_call_id() -> str:
    """Nine letters and digits: what the strictest templates (Mistral's) accept in a history."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))


def collect_calls(pieces: Iterable[Piece]) -> tuple[str, list[ToolCall]]:
    """The text and the calls that pieces make up."""
    texts: list[str] = []
    starts: list[CallStart] = []
    arguments: list[list[str]] = []
    for piece in pieces:
        if isinstance(piece, str):
            texts.append(piece)
        elif isinstance(piece, CallStart):
            starts.append(piece)
            arguments.append([])
        else:
            arguments[piece.index].append(piece.text)
    calls = [ToolCall(start.name, "".join(parts), start.id) for start, parts in zip(starts, arguments, strict=True)]
    return "".join(texts), calls
