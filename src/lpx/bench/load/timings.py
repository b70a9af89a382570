"""The figures of one answer, from its pieces and their times alone.

- TTFT: from the request to the first piece with text: content, reasoning or what goes to a tool. `ttft_visible` takes
  content only. An answer without text has neither.
- TPOT: (end - first text) / (tokens - tokens that the first text came with). The first text comes with one token where
  the server does not say. No tokens behind it, no figure.
- ITL: the times between pieces with text. A piece may hold several tokens; it is never taken for one.
- E2EL: from the request to the last piece that brought text, tokens or the end.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from itertools import pairwise

from lpx.bench.load.answer import Answer


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds and tokens of one answer; None where there is nothing to tell."""

    ttft_ms: float | None
    ttft_visible_ms: float | None
    tpot_ms: float | None
    e2el_ms: float
    itl_ms: array[float] = field(default_factory=lambda: array("d"))
    output_tokens: int | None = None
    recounted: bool = False  # the tokens were counted by encoding the text again: the server does not count
    first_tokens: int | None = None  # that came with the first text
    prompt_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt


def timings_of(answer: Answer) -> Timings:
    """The figures of a whole answer. One that is no stream has no TTFT, TPOT and ITL."""
    texts = [piece for piece in answer.pieces if piece.has_text]
    first = texts[0] if texts else None
    visible = next((piece for piece in texts if piece.visible), None)
    end_s = answer.pieces[-1].at_s if answer.pieces else answer.ended_s
    ttft_ms = None if first is None else 1e3 * (first.at_s - answer.sent_s)
    e2el_ms = 1e3 * (end_s - answer.sent_s)
    gaps = array("d", (1e3 * (after.at_s - before.at_s) for before, after in pairwise(texts)))
    return Timings(
        ttft_ms=ttft_ms,
        ttft_visible_ms=None if visible is None else 1e3 * (visible.at_s - answer.sent_s),
        tpot_ms=_tpot_ms(ttft_ms, e2el_ms, answer.output_tokens, None if first is None else first.tokens, gaps),
        e2el_ms=e2el_ms,
        itl_ms=gaps,
        output_tokens=answer.output_tokens,
        first_tokens=None if first is None else first.tokens,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
    )


def recounted(timings: Timings, tokens: int) -> Timings:
    """The figures of an answer that the server did not count, with the tokens that its text has when encoded again."""
    tpot_ms = _tpot_ms(timings.ttft_ms, timings.e2el_ms, tokens, None, timings.itl_ms)
    return replace(timings, output_tokens=tokens, tpot_ms=tpot_ms, recounted=True)


def _tpot_ms(
    ttft_ms: float | None, e2el_ms: float, tokens: int | None, first_tokens: int | None, gaps: array[float]
) -> float | None:
    if ttft_ms is None or tokens is None or (not gaps and first_tokens is None):
        return None  # all text in one piece, of which nobody says how many tokens it is
    behind = tokens - (first_tokens or 1)
    return (e2el_ms - ttft_ms) / behind if behind > 0 and e2el_ms > ttft_ms else None
