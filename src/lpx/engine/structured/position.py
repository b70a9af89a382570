"""Where one sequence stands in its grammar: what may come next, what must, and whether it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from time import thread_time
from typing import TYPE_CHECKING

import numpy as np

from lpx.engine.structured.compiler import CompiledGrammar
from lpx.errors import InvalidRequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from numpy.typing import NDArray

_MOST_FORCED = 1024  # tokens that follow by themselves in one go
# What a token takes is hardly ever a millisecond. An ambiguous grammar can make it a tenth of a second, which all
# others wait for: so much more than the usual may a sequence take in all.
_USUAL_S = 0.002
_MOST_BEYOND_S = 0.25


class GrammarPosition:
    """Follows one sequence, token by token; what it says is a function of these tokens alone.

    Where the grammar leaves the text no choice, it is written with the tokens that the tokenizer would take for it.
    With `hasty`, these need no sampling: `accept` adds them.

    Attributes:
        mask: what may come next, uint32 [1, words] as in `SequenceInput.masks`. Changed in place.
        complete: nothing may follow; the sequence is at its end.
    """

    def __init__(self, grammar: CompiledGrammar, *, hasty: bool) -> None:
        self.grammar = grammar
        self.complete = False
        self.mask: NDArray[np.uint32] = np.zeros((1, grammar.mask_words), dtype=np.uint32)
        self._hasty = hasty
        self._beyond_s = 0.0
        self._matcher = grammar.begin()
        self._forced = self._matcher.compute_ff_tokens()  # what must come next
        _fill(self._matcher, self._forced, self.mask)

    def accept(self, token_ids: Sequence[int]) -> list[int]:
        """Go on with sampled tokens; returns them and those that follow by themselves.

        Raises `InvalidRequestError` when the grammar needs more work than is allowed.
        """
        started = thread_time()
        matcher, forced = self._matcher, self._forced
        accepted = list(token_ids)
        for token_id in token_ids:
            _consume(matcher, token_id)
            forced = forced[1:] or matcher.compute_ff_tokens()
        while forced and self._hasty and len(accepted) < _MOST_FORCED:
            for token_id in forced:
                _consume(matcher, token_id)
            accepted += forced
            forced = matcher.compute_ff_tokens()
        self._forced = forced
        self.complete = matcher.is_stopped()
        if not self.complete:
            _fill(matcher, forced, self.mask)
        taken = thread_time() - started
        if taken > _USUAL_S:
            self._beyond_s += taken - _USUAL_S
            if self._beyond_s > _MOST_BEYOND_S:
                raise _too_hard("it takes too much time")
        return accepted

    def check_draft(self, draft: Sequence[int]) -> tuple[list[int], NDArray[np.uint32]]:
        """The part of a draft that can be verified, and the masks of its rows: uint32 [1 + tokens, words].

        It ends before the first token that the grammar forbids or ends with.
        """
        matcher = self._matcher.deep_copy()  # whatever becomes of it, the sequence has not moved
        masks = np.zeros((1 + len(draft), self.grammar.mask_words), dtype=np.uint32)
        masks[0] = self.mask[0]
        forced = self._forced
        allowed: list[int] = []
        for token_id in draft:
            mask = masks[len(allowed)]
            if not mask[token_id // 32] >> (token_id % 32) & 1:
                break
            if not matcher.consume_token(token_id) or matcher.is_stopped():
                break
            forced = forced[1:] or matcher.compute_ff_tokens()
            try:
                _fill(matcher, forced, masks[len(allowed) + 1 : len(allowed) + 2])
            except InvalidRequestError:
                break
            allowed.append(token_id)
        return allowed, masks[: 1 + len(allowed)]


def _consume(matcher: LLMatcher, token_id: int) -> None:
    if not matcher.consume_token(token_id):
        raise _limit_reached(matcher)


def _fill(matcher: LLMatcher, forced: Sequence[int], mask: NDArray[np.uint32]) -> None:
    if forced:
        mask.fill(0)
        mask[0, forced[0] // 32] = 1 << forced[0] % 32
        return
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if matcher.is_error() or not mask.any():
        raise _limit_reached(matcher)


def _limit_reached(matcher: LLMatcher) -> InvalidRequestError:
    return _too_hard(matcher.get_error().partition("\n")[0] or "no token of the model fits")


def _too_hard(reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the form that was asked for cannot be followed any further ({reason[:200]}): make it simpler",
        param="structured_outputs",
    )
