"""Splits what a model thinks, between `<think>` and `</think>`, from what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

BEGIN, END = "<think>", "</think>"
_WHITE = " \t\r\n"
_LOOKED_AT = 8  # tokens at the end of a prompt


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thinks, without the tags."""

    text: str


class TokenText(Protocol):
    """What `begins_inside` needs of a `Tokenizer`."""

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...


def begins_inside(prompt_ids: Sequence[int], tokenizer: TokenText) -> bool:
    """Whether the prompt ends with an open `<think>`, so that the answer begins with thoughts."""
    return tokenizer.decode(prompt_ids[-_LOOKED_AT:], skip_special=False).rstrip(_WHITE).endswith(BEGIN)


class ReasoningSplitter:
    """Takes an answer's text in any pieces; the joined thoughts and text do not depend on how it was cut.

    Thoughts come first: `<think>` counts only where nothing but white space stands before it. White space beside the
    tags belongs to neither side. Thoughts that never end are thoughts.
    """

    def __init__(self, *, inside: bool = False) -> None:
        self._state: Literal["begin", "inside", "behind", "text"] = "inside" if inside else "begin"
        self._held = ""
        self._thought = False  # something of the thoughts has been told

    def feed(self, text: str) -> list[str | Reasoning]:
        """What has become certain with `text`."""
        self._held += text
        pieces: list[str | Reasoning] = []
        while True:
            state = self._state
            if state == "begin":
                self._begin(pieces)
            elif state == "inside":
                self._go_on_inside(pieces)
            elif state == "behind":
                self._held = self._held.lstrip(_WHITE)
                if self._held:
                    self._state = "text"
            elif self._held:
                pieces.append(self._held)
                self._held = ""
            if self._state == state:
                return pieces

    def finish(self) -> list[str | Reasoning]:
        """The rest, when no more text comes."""
        held, self._held = self._held, ""
        if self._state == "inside":
            return self._thoughts(held.rstrip(_WHITE))
        return [held] if held and self._state != "behind" else []

    def _begin(self, pieces: list[str | Reasoning]) -> None:
        body = self._held.lstrip(_WHITE)
        if body.startswith(BEGIN):
            self._state, self._held = "inside", body[len(BEGIN) :]
        elif not BEGIN.startswith(body):
            self._state = "text"

    def _go_on_inside(self, pieces: list[str | Reasoning]) -> None:
        if not self._thought:
            self._held = self._held.lstrip(_WHITE)
        thoughts, ended, rest = self._held.partition(END)
        if ended:
            pieces += self._thoughts(thoughts.rstrip(_WHITE))
            self._state, self._held = "behind", rest
            return
        safe = len(thoughts) - _begun(thoughts)
        safe = len(thoughts[:safe].rstrip(_WHITE))
        pieces += self._thoughts(thoughts[:safe])
        self._held = thoughts[safe:]

    def _thoughts(self, text: str) -> list[str | Reasoning]:
        self._thought |= bool(text)
        return [Reasoning(text)] if text else []


def _begun(text: str) -> int:
    """How many characters at the end of `text` could be the beginning of the closing tag."""
    return next((n for n in range(min(len(END) - 1, len(text)), 0, -1) if text.endswith(END[:n])), 0)
