"""Which rows run in the next step.

- Rank is priority, then arrival: a sequence of a lower `priority` value comes before all of higher ones.
- Decode rows first: every running sequence that has one token without KV, or more because a grammar forced them, gets
  its rows, so a long prompt never stalls a running stream. While streams decode, prompt rows of a step are limited,
  because their time is the streams' wait (see `prefill_pace`).
- Then chunks of prompts, priority by priority. Half of the prompt rows, or more, belong to the oldest unfinished
  prompt; the other half goes to shorter ones, the shortest first. So short prompts do not wait for long ones, and long
  ones are never starved by others of their priority.
- Admission is in order of rank, by slots and by blocks for all the tokens of a sequence. They are reserved, and taken
  chunk by chunk: what is cached in them can be found until then, and the memory of prompts that wait for their rows is
  not touched. Blocks that hold the beginning of a sequence already are shared (see `prefix_cache`); a sequence whose
  next block is being computed by a running one waits for it, while its slot and its blocks are kept for it.
- When a decode row finds no free block, the last by rank gives up its blocks and waits again at its place; it
  recomputes what is no longer cached of prompt and output. The first by rank always advances, so every sequence ends.

The scheduler knows tokens and blocks, never tensors.
"""

from __future__ import annotations

from bisect import insort
from itertools import groupby
from operator import attrgetter

from lpx.engine.kv_cache import KVCache
from lpx.engine.prefill_pace import PrefillPace
from lpx.engine.prefix_cache import PrefixCache
from lpx.engine.sequence import Sequence, SequenceState
from lpx.errors import ConfigError

_by_rank = attrgetter("rank")
_by_priority = attrgetter("priority")
_by_pending = attrgetter("pending")


class Scheduler:
    """Owns the two queues. `add`, `schedule`, `advance`, `finish`."""

    def __init__(
        self,
        kv_cache: KVCache,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        prefix_cache: PrefixCache | None = None,
        pace: PrefillPace | None = None,
    ) -> None:
        if max_num_seqs < 1 or max_num_batched_tokens < max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) must be at least max_num_seqs ({max_num_seqs}), "
                "and both at least 1: every running sequence needs one row in each step"
            )
        self.kv_cache = kv_cache
        self.prefix_cache = prefix_cache  # None: every sequence computes all of its tokens
        self.pace = pace or PrefillPace()
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: list[Sequence] = []  # in order of rank
        self.running: list[Sequence] = []  # in order of rank
        self.decode_rows = 0  # of the step that was scheduled last
        self.prompt_rows = 0
        self.preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_by_rank)

    def schedule(self, deadline_ms: float | None = None) -> list[tuple[Sequence, int]]:
        """Sequences of the next step with the number of rows of each; their block tables cover these rows.

        With `deadline_ms`, prompts get no more rows than can be computed in that time.

        A decode row comes before all prompt chunks. Empty only when there is no work.
        """
        plan: list[tuple[Sequence, int]] = []
        prefilling: list[Sequence] = []
        running = self.running
        at = rows = 0
        while at < len(running):  # preemption shortens the list from its end, behind those looked at
            sequence = running[at]
            at += 1
            pending = len(sequence.tokens) - sequence.num_computed
            if pending > 1 + sequence.forced:
                prefilling.append(sequence)
                continue
            while not self._grow(sequence, len(sequence.tokens)):
                victim = running[-1]
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                if pending > 1:  # as many of the forced tokens as leave a row for each of the others
                    pending = min(pending, self.max_num_batched_tokens - rows - (len(running) - at))
                plan.append((sequence, pending))
                rows += pending
        self.decode_rows, self.prompt_rows = rows, 0
        budget = self.max_num_batched_tokens - rows
        if self.waiting and len(running) < self.max_num_seqs and budget > 0:
            prefilling.extend(self._admit())
            prefilling.sort(key=_by_rank)
        if prefilling:
            if plan:
                budget = self.pace.rows_beside(rows, budget)
            if deadline_ms is not None:
                budget = self.pace.rows_within(deadline_ms, budget)
            for _, peers in groupby(prefilling, key=_by_priority):
                chunks = _share_rows(list(peers), budget)
                for sequence, count in chunks:
                    if not self._grow(sequence, sequence.num_computed + count):
                        raise RuntimeError("a reserved KV block is missing")
                granted = sum(rows for _, rows in chunks)
                budget -= granted
                self.prompt_rows += granted
                plan.extend(chunks)
        return plan

    def advance(self, sequence: Sequence, rows: int) -> None:
        """Note that `rows` more tokens of `sequence` have KV; they are or will be its next tokens."""
        sequence.num_computed += rows
        if sequence.num_computed >= sequence.name_at and self.prefix_cache is not None:
            self.prefix_cache.note(sequence)

    def finish(self, sequence: Sequence, *, sound: bool = True) -> None:
        """Take `sequence` out, wherever it is, and free its blocks. Safe to call twice.

        With `sound` false nobody shares what it computed.
        """
        if sequence.state is SequenceState.FINISHED:
            return
        if self.prefix_cache is not None:
            self.prefix_cache.end(sequence, sound=sound)
        (self.running if sequence.state is SequenceState.RUNNING else self.waiting).remove(sequence)
        self._free_blocks(sequence)
        sequence.state = SequenceState.FINISHED

    def reset(self) -> None:
        """Forget every sequence and take all blocks back, whatever state an interrupt left them in."""
        for sequence in (*self.running, *self.waiting):
            sequence.state = SequenceState.FINISHED
        self.running.clear()
        self.waiting.clear()
        self.kv_cache.reset()
        if self.prefix_cache is not None:
            self.prefix_cache.reset()

    def _admit(self) -> list[Sequence]:
        """Move waiting sequences to running while slots and blocks last, in order of rank."""
        admitted: list[Sequence] = []
        kv_cache, prefix_cache = self.kv_cache, self.prefix_cache
        at = 0  # in the queue: those before it wait for blocks that are being computed
        kept = 0  # blocks for those
        shared: list[int] = []
        while at < len(self.waiting) and len(self.running) + at < self.max_num_seqs:
            sequence = self.waiting[at]
            needed = kv_cache.blocks_for(len(sequence.tokens))
            if prefix_cache is not None:
                shared = prefix_cache.find(sequence)
                if prefix_cache.is_on_its_way(sequence, len(shared)):
                    at += 1
                    kept += needed - prefix_cache.expected(sequence, len(shared))
                    continue
            # A cached block that nobody has is free until it is shared.
            taken = needed - sum(map(kv_cache.is_owned, shared))
            # One block in reserve for each running sequence, so that the newcomer is not preempted in the next steps.
            if taken + kept + len(self.running) > kv_cache.num_available and self.running:
                break
            sequence.block_table = kv_cache.share(shared)
            if not kv_cache.reserve(needed - len(shared)):
                kv_cache.free(sequence.block_table)
                break
            sequence.num_reserved = needed - len(shared)
            sequence.num_computed = len(shared) * kv_cache.block_size
            if prefix_cache is not None:
                prefix_cache.begin(sequence)
            del self.waiting[at]
            sequence.state = SequenceState.RUNNING
            insort(self.running, sequence, key=_by_rank)
            admitted.append(sequence)
        return admitted

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Make the block table cover the first `tokens`, from what is reserved for the sequence first."""
        kv_cache = self.kv_cache
        if not sequence.num_reserved:
            return kv_cache.grow(sequence.block_table, tokens)
        missing = kv_cache.blocks_for(tokens) - len(sequence.block_table)
        taken = max(min(missing, sequence.num_reserved), 0)
        kv_cache.release(taken)
        if not kv_cache.grow(sequence.block_table, tokens):
            kv_cache.reserve(taken)
            return False
        sequence.num_reserved -= taken
        return True

    def _free_blocks(self, sequence: Sequence) -> None:
        self.kv_cache.free(sequence.block_table)
        self.kv_cache.release(sequence.num_reserved)
        sequence.num_reserved = 0

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        if self.prefix_cache is not None:
            self.prefix_cache.end(sequence)
        self._free_blocks(sequence)
        sequence.num_computed = 0
        sequence.state = SequenceState.WAITING
        insort(self.waiting, sequence, key=_by_rank)
        self.preemptions += 1


def _share_rows(prefilling: list[Sequence], budget: int) -> list[tuple[Sequence, int]]:
    """Divide prompt rows among unfinished prompts of one priority, given in order of arrival."""
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
