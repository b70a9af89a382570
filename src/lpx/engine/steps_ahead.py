"""How many decode steps the executor runs before anybody looks at the tokens, and when it drafts between them."""

from __future__ import annotations

from time import monotonic_ns

from lpx.engine.deadlines import Deadlines
from lpx.engine.drafting.speculation import Speculation
from lpx.engine.scheduler import Scheduler
from lpx.engine.sequence import Sequence
from lpx.runtime.step import StepBatch

# For how long steps may run unseen: a frame of a screen, which nobody sees in a stream and a new or a cancelled request
# hardly feels. Python between steps costs the same whether they take 3 ms or 300.
_UNSEEN_NS = 16_000_000
_MOST_STEPS = 7  # behind the first
_MOST_TOKENS = 63  # behind the first, where drafts are verified on the way


class StepsAhead:
    """Decides for each step of an engine what may follow it in the same call of the executor."""

    def __init__(
        self, scheduler: Scheduler, deadlines: Deadlines, speculation: Speculation | None, *, drafts: bool
    ) -> None:
        self._scheduler = scheduler
        self._deadlines = deadlines
        self._speculation = speculation
        self._drafts = drafts  # the executor can
        self.step_ns = 0  # of the last step

    def count(self, plan: list[tuple[Sequence, int]]) -> int:
        """Of steps that may follow one of this plan, in which nothing is drafted."""
        if not self.step_ns or self._scheduler.waiting:
            return 0
        if self._speculation is not None and self._speculation.expects([sequence for sequence, _ in plan]):
            return 0
        more = min(_MOST_STEPS, self._unseen_ns() // self.step_ns - 1)
        for sequence, count in plan:
            if more < 1 or not _may_be_followed(sequence, count):
                return 0
            more = min(more, _room(sequence))
        return more if more > 0 and all(self._reach(sequence, more) for sequence, _ in plan) else 0

    def drafting(self, plan: list[tuple[Sequence, int]]) -> StepBatch | None:
        """Steps of a lone sequence between which the executor drafts by itself; None where it cannot.

        Looking for drafts then costs next to nothing, so that it looks before every step.
        """
        if self._speculation is None or not self._drafts or len(plan) != 1 or self._scheduler.waiting:
            return None
        ((sequence, count),) = plan
        unseen_ns = self._unseen_ns()
        more = min(_MOST_TOKENS, _room(sequence))
        if unseen_ns <= 0 or more < 1 or not _may_be_followed(sequence, count):
            return None
        drafting = self._speculation.ahead(sequence, 1e-6 * unseen_ns)
        if drafting is None or not self._reach(sequence, more):
            return None
        return StepBatch([sequence.row], more_steps=more, drafting=drafting)

    def _unseen_ns(self) -> int:
        return min(_UNSEEN_NS, self._deadlines.next_ns - monotonic_ns())

    def _reach(self, sequence: Sequence, more: int) -> bool:
        """Have the block table cover so many tokens more."""
        return self._scheduler.kv_cache.grow(sequence.block_table, len(sequence.tokens) + more)


def _room(sequence: Sequence) -> int:
    """Tokens that may come behind the next."""
    return sequence.max_length - len(sequence.tokens) - 1


def _may_be_followed(sequence: Sequence, count: int) -> bool:
    """Whether steps of the sequence may follow one of `count` tokens before anybody looks at what was sampled."""
    row = sequence.row
    if count != 1 or not row.sample_rows or row.banned_ids or row.score_targets:
        return False
    if row.sampling is None or row.sampling.needs_history or row.logprobs is not None or row.masks is not None:
        return False
    return bool(sequence.output_ids)  # a first token is not kept waiting
