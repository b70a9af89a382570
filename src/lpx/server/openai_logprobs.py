"""Log-probabilities in the two shapes that OpenAI has: the completions one and the chat one.

Values are natural logarithms under the model itself, before penalties, bias and temperature; what would be minus
infinity is -9999.0 (the engine sees to it), since JSON has no infinity.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lpx.engine.outputs import Logprob, TokenLogprobDict

if TYPE_CHECKING:
    from lpx.model.tokenizer import Tokenizer


class CompletionLogprobs:
    """Builds `{tokens, token_logprobs, top_logprobs, text_offset}` for one choice, piece by piece.

    `text_offset` counts characters from the start of the choice's text, the echoed prompt included; a token inside a
    character has the offset of that character, and control tokens take no room.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def add(self, token_ids: Sequence[int], entries: Sequence[TokenLogprobDict | None]) -> dict[str, Any]:
        """The object for the next tokens; an entry of None (the first token of a prompt) has no value."""
        tokens: list[str] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for token_id, entry in zip(token_ids, entries, strict=True):
            own = None if entry is None else entry[token_id]
            tokens.append(self._tokenizer.token_text(token_id) if own is None else own.decoded_token)
            values.append(None if own is None else own.logprob)
            tops.append(None if entry is None else _top(entry))
            offsets.append(self._offset)
            if not self._tokenizer.is_control(token_id):
                raw = self._tokenizer.token_bytes(token_id) if own is None else own.bytes
                self._offset += len(self._decoder.decode(raw))
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def _top(entry: TokenLogprobDict) -> dict[str, float]:
    # The token itself comes first. Texts may collide (parts of characters): the likeliest one keeps the name, for
    # clients compare the largest value with the token's own to see whether it was the likeliest.
    top: dict[str, float] = {}
    for logprob in entry.values():
        top[logprob.decoded_token] = max(logprob.logprob, top.get(logprob.decoded_token, -math.inf))
    return top


def chat_logprobs(token_ids: Sequence[int], entries: Sequence[TokenLogprobDict], top: int) -> list[dict[str, Any]]:
    """The `content` list of a chat choice: one entry per token, with exactly the `top` likeliest alternatives."""
    content = []
    for token_id, entry in zip(token_ids, entries, strict=True):
        likeliest = sorted(entry.values(), key=lambda logprob: logprob.rank)[:top]
        content.append({**_chat_entry(entry[token_id]), "top_logprobs": [_chat_entry(each) for each in likeliest]})
    return content


def _chat_entry(logprob: Logprob) -> dict[str, Any]:
    return {"token": logprob.decoded_token, "logprob": logprob.logprob, "bytes": list(logprob.bytes)}


def prompt_logprobs_json(entries: Sequence[TokenLogprobDict | None] | None) -> list[dict[str, Any] | None] | None:
    """vLLM's `prompt_logprobs`: per prompt token a map from token id to logprob, rank and text; the first is null."""
    if entries is None:
        return None
    return [
        None
        if entry is None
        else {
            str(token_id): {
                "logprob": each.logprob,
                "rank": each.rank,
                "decoded_token": each.decoded_token,
            }
            for token_id, each in entry.items()
        }
        for entry in entries
    ]
