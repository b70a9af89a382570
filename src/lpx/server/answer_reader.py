"""What a protocol shows of one choice's text: thoughts, text and tool calls, piece by piece."""

from __future__ import annotations

from lpx.server.reasoning import Reasoning, ReasoningSplitter
from lpx.server.tools.calls import CallArguments, CallStart, Piece
from lpx.server.tools.formats import ToolCallParser
from lpx.server.tools.scanner import is_whole_value

AnswerPiece = Piece | Reasoning


class AnswerReader:
    """Reads one choice. `feed` and `finish` give pieces in order; `called` tells whether a tool was called."""

    def __init__(
        self, splitter: ReasoningSplitter | None, parser: ToolCallParser | None, *, calls_only: bool = False
    ) -> None:
        """With `calls_only`, what is no call is the beginning of one that was cut off, and not shown."""
        self.called = False
        self._calls_only = calls_only
        self._arguments: list[str] = []  # of the last call
        self._splitter = splitter
        self._parser = parser

    def feed(self, text: str) -> list[AnswerPiece]:
        """News from the next piece of text."""
        return self._parse(self._splitter.feed(text) if self._splitter is not None else [text])

    def finish(self) -> list[AnswerPiece]:
        """The rest, when no more text comes."""
        pieces = self._parse(self._splitter.finish()) if self._splitter is not None else []
        return pieces + self._note(self._parser.finish() if self._parser is not None else [])

    def read(self, text: str) -> list[AnswerPiece]:
        """All of a whole text."""
        return self.feed(text) + self.finish()

    def finish_reason(self, reason: str) -> str:
        """An answer that came to its end with whole calls ends for these; one that a stop string cut does not."""
        is_call = self.called and reason == "stop" and is_whole_value("".join(self._arguments))
        return "tool_calls" if is_call else reason

    def _parse(self, parts: list[str | Reasoning]) -> list[AnswerPiece]:
        if self._parser is None:
            return [part for part in parts if part]
        pieces: list[AnswerPiece] = []
        for part in parts:
            pieces += [part] if isinstance(part, Reasoning) else self._note(self._parser.feed(part))
        return pieces

    def _note(self, pieces: list[Piece]) -> list[Piece]:
        for piece in pieces:
            if isinstance(piece, CallStart):
                self.called = True
                self._arguments = []
            elif isinstance(piece, CallArguments):
                self._arguments.append(piece.text)
        return [piece for piece in pieces if not isinstance(piece, str)] if self._calls_only else pieces
