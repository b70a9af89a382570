"""Which rows run in the next step.

- Decode rows first: every running sequence that has one token without KV gets its row, so a long prompt never stalls
  a running stream. While streams decode, prompt rows of a step are limited, because their time is the streams' wait.
- Then chunks of prompts. Half of the prompt rows, or more, belong to the oldest unfinished prompt; the other half goes
  to shorter ones, the shortest first. So short prompts do not wait for long ones, and long ones are never starved.
- Admission is first come, first served, by slots and by blocks for all the tokens of a sequence.
- When a decode row finds no free block, the latest arrival gives up its blocks and waits again at its place in the
  order of arrival; it recomputes prompt and output. The earliest arrival always advances, so every sequence ends.

The scheduler knows tokens and blocks, never tensors.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from lpx.engine.kv_cache import KVCache
from lpx.engine.sequence import Sequence, SequenceState
from lpx.errors import ConfigError

# Prompt rows beside decode rows: an eighth of the token budget, but not fewer than this. From about 16 rows on the
# time of a step grows with the rows, so smaller chunks cost no throughput, and 64 rows keep streams fluent.
MIN_PROMPT_ROWS_BESIDE_DECODE = 64

_by_arrival = attrgetter("arrival")
_by_pending = attrgetter("pending")


class Scheduler:
    """Owns the two queues. `add`, `schedule`, `advance`, `finish`."""

    def __init__(self, kv_cache: KVCache, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        if max_num_seqs < 1 or max_num_batched_tokens < max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) must be at least max_num_seqs ({max_num_seqs}), "
                "and both at least 1: every running sequence needs one row in each step"
            )
        self.kv_cache = kv_cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: list[Sequence] = []  # in order of arrival
        self.running: list[Sequence] = []  # in order of arrival
        self.preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_by_arrival)

    def schedule(self) -> list[tuple[Sequence, int]]:
        """Sequences of the next step with the number of rows of each; their block tables cover these rows.

        A decode row comes before all prompt chunks. Empty only when there is no work.
        """
        plan: list[tuple[Sequence, int]] = []
        prefilling: list[Sequence] = []
        running = self.running
        kv_cache = self.kv_cache
        at = 0
        while at < len(running):  # preemption shortens the list from its end, behind those looked at
            sequence = running[at]
            at += 1
            if len(sequence.tokens) - sequence.num_computed > 1:
                prefilling.append(sequence)
                continue
            while not kv_cache.grow(sequence.block_table, len(sequence.tokens)):
                victim = running[-1]
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                plan.append((sequence, 1))
        budget = self.max_num_batched_tokens - len(plan)
        if self.waiting and len(running) < self.max_num_seqs and budget > 0:
            prefilling.extend(self._admit())
            prefilling.sort(key=_by_arrival)
        if prefilling:
            if plan:
                beside = max(MIN_PROMPT_ROWS_BESIDE_DECODE, self.max_num_batched_tokens // 8)
                budget = min(budget, beside)
            plan.extend(_share_rows(prefilling, budget))
        return plan

    def advance(self, sequence: Sequence, rows: int) -> None:
        """Note that `rows` more tokens of `sequence` have KV."""
        sequence.num_computed += rows

    def finish(self, sequence: Sequence) -> None:
        """Take `sequence` out, wherever it is, and free its blocks. Safe to call twice."""
        if sequence.state is SequenceState.FINISHED:
            return
        (self.running if sequence.state is SequenceState.RUNNING else self.waiting).remove(sequence)
        self.kv_cache.free(sequence.block_table)
        sequence.state = SequenceState.FINISHED

    def reset(self) -> None:
        """Forget every sequence and take all blocks back, whatever state an interrupt left them in."""
        for sequence in (*self.running, *self.waiting):
            sequence.state = SequenceState.FINISHED
        self.running.clear()
        self.waiting.clear()
        self.kv_cache.reset()

    def _admit(self) -> list[Sequence]:
        """Move waiting sequences to running while slots and blocks last, in order of arrival."""
        admitted: list[Sequence] = []
        kv_cache = self.kv_cache
        at = 0
        while at < len(self.waiting) and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[at]
            donor, shared = self._prompt_donor(sequence)
            if donor is not None and donor.num_computed < shared * kv_cache.block_size:
                at += 1  # its twin is computing the very blocks it needs: waiting is the faster way
                continue
            # One block in reserve for each running sequence, so that the newcomer is not preempted in the next steps.
            needed = kv_cache.blocks_for(len(sequence.tokens)) - shared
            if needed + len(self.running) > kv_cache.num_free and self.running:
                break
            if donor is not None:
                sequence.block_table = kv_cache.share(donor.block_table[:shared])
                sequence.num_computed = shared * kv_cache.block_size
            if not kv_cache.grow(sequence.block_table, len(sequence.tokens)):
                kv_cache.free(sequence.block_table)
                sequence.num_computed = 0
                break
            del self.waiting[at]
            sequence.state = SequenceState.RUNNING
            insort(self.running, sequence, key=_by_arrival)
            admitted.append(sequence)
        return admitted

    def _prompt_donor(self, sequence: Sequence) -> tuple[Sequence | None, int]:
        """A running choice of the same request and the number of full prompt blocks to share with it.

        At least one token is left to compute: the row whose logits give the next token.
        """
        if len(sequence.request.sequences) < 2 or sequence.must_score:
            return None, 0
        shared = min(sequence.prompt_length, len(sequence.tokens) - 1) // self.kv_cache.block_size
        if shared:
            for twin in sequence.request.sequences:
                if twin.state is SequenceState.RUNNING:
                    return twin, shared
        return None, 0

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.kv_cache.free(sequence.block_table)
        sequence.num_computed = 0
        sequence.state = SequenceState.WAITING
        insort(self.waiting, sequence, key=_by_arrival)
        self.preemptions += 1


def _share_rows(prefilling: list[Sequence], budget: int) -> list[tuple[Sequence, int]]:
    """Divide prompt rows among unfinished prompts given in order of arrival."""
    if not prefilling or budget < 1:
        return []
    oldest, *others = prefilling
    granted = min(oldest.pending, budget - budget // 2 if others else budget)
    budget -= granted
    shorter = sorted([s for s in others if s.pending < oldest.pending], key=_by_pending)
    plan: list[tuple[Sequence, int]] = []
    for sequence in shorter:
        rows = min(sequence.pending, budget)
        if rows:
            plan.append((sequence, rows))
            budget -= rows
    more = min(oldest.pending - granted, budget)
    granted += more
    budget -= more
    plan.insert(0, (oldest, granted))
    for sequence in others:
        rows = min(sequence.pending, budget) if sequence.pending >= oldest.pending else 0
        if rows:
            plan.append((sequence, rows))
            budget -= rows
    return plan
