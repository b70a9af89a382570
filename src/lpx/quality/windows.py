"""Texts as windows of token ids, cut as `llama-perplexity` cuts them, so that perplexities can be compared.

The rule (llama.cpp, tools/perplexity, without strides): the ids of the whole text, BOS in front where the model wants
it, in pieces of `size`; BOS takes the place of the first id of every piece; of a piece the second half is scored, each
token from all before it in the piece; what is left of the text after the last whole piece is not scored.

Divergence is measured at every position of every piece and of the rest as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from lpx.errors import InvalidRequestError
from lpx.quality.texts import Text

DEFAULT_WINDOW = 512  # tokens, llama-perplexity's n_ctx
LEAST_WINDOW = 8


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    @property
    def bos_id(self) -> int | None: ...

    @property
    def add_bos(self) -> bool: ...

    def encode(self, text: str, *, add_special: bool = True) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Window:
    """Token ids that are seen together."""

    text: str  # name of the text it is from
    token_ids: tuple[int, ...]
    first_scored: int | None  # rows from here on count for perplexity, but for the last; None: none does

    @property
    def scored_rows(self) -> range:
        """Rows whose next token counts for perplexity: row i predicts `token_ids[i + 1]`."""
        return range(0) if self.first_scored is None else range(self.first_scored, len(self.token_ids) - 1)


def make_windows(encoder: Encoder, texts: Sequence[Text], size: int = DEFAULT_WINDOW) -> list[Window]:
    """All windows of all texts. A text shorter than one window is a window of its own, scored in its second half.

    Raises InvalidRequestError for a size below 8, or when a text has less than 2 tokens.
    """
    if size < LEAST_WINDOW:
        raise InvalidRequestError(f"a window must have at least {LEAST_WINDOW} tokens, not {size}", param="window")
    windows: list[Window] = []
    for text in texts:
        ids = encoder.encode(text.content)
        if len(ids) < 2:
            raise InvalidRequestError(f"the text {text.name} has {len(ids)} token: give a longer one", param="text")
        windows += _cut(text.name, ids, size, encoder.bos_id if encoder.add_bos else None)
    return windows


def _cut(name: str, ids: list[int], size: int, bos: int | None) -> Iterator[Window]:
    for start in range(0, len(ids), size):
        piece = ids[start : start + size]
        if bos is not None:
            piece[0] = bos
        whole = len(piece) == size
        if whole or start == 0:
            yield Window(name, tuple(piece), len(piece) // 2)
        elif len(piece) > 1:
            yield Window(name, tuple(piece), None)


def spread(windows: Sequence[Window], most: int | None) -> list[Window]:
    """At most `most` of the windows, spread over all of them; all when it is None.

    Raises InvalidRequestError for less than 1.
    """
    if most is None or most >= len(windows):
        return list(windows)
    if most < 1:
        raise InvalidRequestError(f"the number of windows must be at least 1, not {most}", param="windows")
    return [windows[index * len(windows) // most] for index in range(most)]
