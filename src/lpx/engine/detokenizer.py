"""Generated token ids to text, piece by piece.

Joined pieces are exactly `tokenizer.decode` of all the ids, cut at the first stop string. Each token costs time in its
own length only: nothing is decoded twice.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from lpx.errors import InvalidRequestError


class TokenDecoder(Protocol):
    """What the detokenizer needs of a `Tokenizer`."""

    def token_bytes(self, token_id: int, *, skip_special: bool = False) -> bytes: ...


class _StopFinder:
    """Aho-Corasick automaton over the stop strings: one step per character, whatever their number."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.next: list[dict[str, int]] = [{}]
        self.depth = [0]  # how many characters of some stop string the state stands for
        self.found: list[str | None] = [None]  # the longest stop string that ends here
        for stop in stops:
            state = 0
            for character in stop:
                step = self.next[state].get(character)
                if step is None:
                    step = self.next[state][character] = len(self.next)
                    self.next.append({})
                    self.depth.append(self.depth[state] + 1)
                    self.found.append(None)
                state = step
            self.found[state] = stop
        self.fail = [0] * len(self.next)
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self.next[state].items():
                queue.append(child)
                back = self.fail[state]
                while back and character not in self.next[back]:
                    back = self.fail[back]
                self.fail[child] = self.next[back].get(character, 0)
                if self.found[child] is None:
                    self.found[child] = self.found[self.fail[child]]

    def step(self, state: int, character: str) -> int:
        while True:
            step = self.next[state].get(character)
            if step is not None:
                return step
            if state == 0:
                return 0
            state = self.fail[state]


@lru_cache(maxsize=64)
def _finder(stops: tuple[str, ...]) -> _StopFinder | None:
    return _StopFinder(stops) if stops else None


class Detokenizer:
    """Turns the ids of one generated sequence into text that can be sent.

    Bytes of an unfinished character are held until it is complete or has become invalid, and text that may be the start
    of a stop string until that is decided; `finish` flushes both. Bytes that are not UTF-8 become U+FFFD just as
    decoding everything at once would have it. The ids are the generated ones only: a prompt never shows up in the text,
    and if it ended in the middle of a character, that character's remaining bytes are not text.

    A SentencePiece vocabulary's first token keeps its space (" Paris"), as in llama.cpp and vLLM: the text continues
    the prompt.

    Of several stop strings the one that ends first in the text wins, and of those that end at the same place the
    longest. That does not depend on how the text is cut into tokens, and needs no look at further tokens.

    Attributes:
        stopped: the stop string that was found; no text after it is ever returned.
        consumed: how many ids were taken, up to the one that completed the stop string.
    """

    def __init__(
        self,
        tokenizer: TokenDecoder,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
    ) -> None:
        if any(not s for s in stop):
            raise InvalidRequestError(
                "stop strings must not be empty: every text contains the empty one.", param="stop"
            )
        self.stopped: str | None = None
        self.consumed = 0
        self._tokenizer = tokenizer
        self._include_stop = include_stop
        self._skip_special = skip_special
        self._finder = _finder(tuple(stop))
        self._state = 0
        self._held = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._returned: list[str] = []

    @property
    def text(self) -> str:
        """Everything returned so far."""
        if len(self._returned) > 1:
            self._returned = ["".join(self._returned)]
        return self._returned[0] if self._returned else ""

    def push(self, token_ids: Sequence[int], *, check_stop: bool = True) -> str:
        """Take the next ids and return the text that has become safe to send (may be empty).

        With `check_stop` false (before `min_tokens`), the text of these ids takes no part in stop strings.
        """
        pieces = []
        for token_id in token_ids:
            if self.stopped is not None:
                break
            self.consumed += 1
            data = self._tokenizer.token_bytes(token_id, skip_special=self._skip_special)
            if data:
                pieces.append(self._take(self._decoder.decode(data), check_stop))
        return self._return("".join(pieces))

    def finish(self) -> str:
        """Return what is still held: the sequence has ended, for whatever reason. Safe to call twice."""
        if self.stopped is not None:
            return ""
        piece = self._take(self._decoder.decode(b"", final=True), True)
        if self.stopped is None:
            piece += self._held
        self._held = ""
        self._state = 0
        return self._return(piece)

    def _return(self, piece: str) -> str:
        if piece:
            self._returned.append(piece)
        return piece

    def _take(self, text: str, check_stop: bool) -> str:
        finder = self._finder
        if finder is None:
            return text
        text = self._held + text
        if not check_stop:
            self._held, self._state = "", 0
            return text
        state = self._state
        for at in range(len(self._held), len(text)):
            state = finder.step(state, text[at])
            found = finder.found[state]
            if found is not None:
                self.stopped = found
                self._held = ""
                end = at + 1
                return text[: end if self._include_stop else end - len(found)]
        self._state = state
        safe = len(text) - finder.depth[state]
        self._held = text[safe:]
        return text[:safe]


class PieceDetokenizer(Detokenizer):
    """A detokenizer that remembers what each token let out: its own text, and what had been held before it."""

    def __init__(
        self,
        tokenizer: TokenDecoder,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
    ) -> None:
        super().__init__(tokenizer, stop=stop, include_stop=include_stop, skip_special=skip_special)
        self._pieces: list[tuple[str, int]] = []
        self._pushed = 0

    def take_pieces(self) -> list[tuple[str, int]]:
        """Texts since the last call and which of its pushes they came by, -1 for the end; joined, what was returned."""
        taken, self._pieces, self._pushed = self._pieces, [], 0
        return taken

    def push(self, token_ids: Sequence[int], *, check_stop: bool = True) -> str:
        piece = super().push(token_ids, check_stop=check_stop)
        if piece:
            self._pieces.append((piece, self._pushed))
        self._pushed += 1
        return piece

    def finish(self) -> str:
        piece = super().finish()
        if piece:
            self._pieces.append((piece, -1))
        return piece
