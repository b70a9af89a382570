"""An answer as the blocks that protocols show: text, reasoning, tool calls, each whole and piece by piece.

What reads a model's text gives `Piece`s (see `lpx.server.tools`); here they become blocks with a beginning and an end.
OpenAI's Responses and Anthropic's Messages differ only in how they write these down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from lpx.server.answer_reader import AnswerPiece, AnswerReader
from lpx.server.reasoning import Reasoning
from lpx.server.tools import CallArguments, CallStart
from lpx.server.tools.scanner import is_whole_value


@dataclass(slots=True)
class Block:
    """A part of an answer."""

    kind: Literal["text", "reasoning", "call"]
    text: str = ""  # of a call: its arguments as JSON text
    id: str = ""  # of a call
    name: str = ""  # of a call: the function


@dataclass(frozen=True, slots=True)
class BlockStart:
    index: int
    block: Block


@dataclass(frozen=True, slots=True)
class BlockText:
    """More of a block's text."""

    index: int
    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class BlockEnd:
    index: int
    block: Block


BlockEvent = BlockStart | BlockText | BlockEnd


class Blocks:
    """Collects the blocks of one answer and tells what is new. One block is open at a time."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._open = False

    def take(self, pieces: Iterable[AnswerPiece]) -> Iterator[BlockEvent]:
        """The events that `pieces` make."""
        for piece in pieces:
            if isinstance(piece, str):
                yield from self._add_to("text", piece)
            elif isinstance(piece, Reasoning):
                yield from self._add_to("reasoning", piece.text)
            elif isinstance(piece, CallStart):
                yield from self._begin(Block("call", id=piece.id, name=piece.name))
            elif isinstance(piece, CallArguments):
                yield self._add(piece.text)

    def finish(self, pieces: Iterable[AnswerPiece] = ()) -> Iterator[BlockEvent]:
        """The last events; an answer of nothing has one empty block of text."""
        yield from self.take(pieces)
        if not self.blocks:
            yield from self._begin(Block("text"))
        yield from self._end()

    @property
    def has_calls(self) -> bool:
        """Whether tools were called; a last call that was cut off, by a stop string perhaps, is none to be made."""
        calls = [block for block in self.blocks if block.kind == "call"]
        return bool(calls) and is_whole_value(calls[-1].text)

    def _add_to(self, kind: Literal["text", "reasoning"], text: str) -> Iterator[BlockEvent]:
        if text:
            if not self._open or self.blocks[-1].kind != kind:
                yield from self._begin(Block(kind))
            yield self._add(text)

    def _begin(self, block: Block) -> Iterator[BlockEvent]:
        yield from self._end()
        self.blocks.append(block)
        self._open = True
        yield BlockStart(len(self.blocks) - 1, block)

    def _add(self, text: str) -> BlockText:
        block = self.blocks[-1]
        block.text += text
        return BlockText(len(self.blocks) - 1, block, text)

    def _end(self) -> Iterator[BlockEvent]:
        if self._open:
            self._open = False
            yield BlockEnd(len(self.blocks) - 1, self.blocks[-1])


def read(reader: AnswerReader | None, text: str) -> list[AnswerPiece]:
    """What the next piece of text brings; without a reader it is text."""
    if reader is not None:
        return reader.feed(text) if text else []
    return [text] if text else []


def rest(reader: AnswerReader | None) -> list[AnswerPiece]:
    """What is left when no more text comes."""
    return reader.finish() if reader is not None else []


def blocks_of(text: str, reader: AnswerReader | None) -> Blocks:
    """The blocks of a whole answer."""
    blocks = Blocks()
    for _ in blocks.take(read(reader, text)):
        pass
    for _ in blocks.finish(rest(reader)):
        pass
    return blocks
