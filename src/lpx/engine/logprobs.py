"""From the executor's log-probabilities to those that users read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lpx.engine.outputs import Logprob, TokenLogprobDict

if TYPE_CHECKING:
    from lpx.model.tokenizer import Tokenizer
    from lpx.runtime.step import TokenLogprobs

LOGPROB_FLOOR = -9999.0  # stands for -inf, which JSON cannot carry


def describe_logprobs(entry: TokenLogprobs, tokenizer: Tokenizer) -> TokenLogprobDict:
    """The token itself first, then the likeliest ones by rank. Each is decoded on its own."""

    def describe(token_id: int, logprob: float, rank: int) -> Logprob:
        return Logprob(
            max(logprob, LOGPROB_FLOOR), rank, tokenizer.token_text(token_id), tokenizer.token_bytes(token_id)
        )

    described = {entry.token_id: describe(entry.token_id, entry.logprob, entry.rank)}
    for rank, (token_id, logprob) in enumerate(entry.top, 1):
        if token_id != entry.token_id:
            described[token_id] = describe(token_id, logprob, rank)
    return described
