"""Drafts with a smaller model that shares the vocabulary: it decodes ahead, for all sequences of a batch together."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from lpx.engine.drafting.odds import CommonOdds, Judgements
from lpx.engine.drafting.step_costs import StepCosts
from lpx.engine.kv_cache import KVCache
from lpx.engine.sequence import Sequence
from lpx.errors import ConfigError
from lpx.runtime.step import Executor, SamplerSettings, SequenceInput, StepBatch

if TYPE_CHECKING:
    from lpx.model.tokenizer import Tokenizer


class DraftModelDrafter:
    """Implements `Drafter` with an executor of its own and a KV pool of its own, which it owns and closes.

    The draft model samples with the seed, position and settings of the sequence (without penalties), so that it draws
    the same token wherever it agrees with the large model. A sequence beyond the draft model's context, or without room
    in its pool, is not drafted for.
    """

    name = "draft_model"

    def __init__(self, executor: Executor, *, most: int, max_model_len: int, max_rows: int, vocab_size: int) -> None:
        self.executor = executor
        self.costs = StepCosts(executor.info.isa)
        self._max_model_len = max_model_len
        self._max_rows = max_rows
        self._vocab_size = vocab_size  # ids that the large model knows
        facts = executor.info
        self._kv_cache = KVCache(facts.num_blocks, facts.block_size)
        self._common = CommonOdds([0.6] * most)
        self._states: dict[Sequence, _State] = {}

    def odds(self, sequence: Sequence, most: int) -> list[float]:
        most = min(most, self._max_model_len - len(sequence.tokens), len(self._common))
        if most < 1:
            return []
        state = self._states.get(sequence)
        if state is None:
            settings = sequence.row.sampling or SamplerSettings()
            state = self._states[sequence] = _State(
                Judgements(len(self._common)),
                replace(settings, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0),
            )
        if not self._kv_cache.grow(state.block_table, len(sequence.tokens) + most):
            return []
        judged, right = state.judgements.judged, state.judgements.right
        return [self._common.chance(i, judged, right) for i in range(most)]

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        self._catch_up([sequence for sequence, _ in wanted])
        drafts: list[list[int]] = [[] for _ in wanted]
        going = list(range(len(wanted)))
        # One call decodes all that it can; sequences with more than one new token take a step of their own first.
        while going:
            rows = []
            for i in going:
                sequence, _ = wanted[i]
                state = self._states[sequence]
                tokens = [*sequence.tokens, *drafts[i]][state.num_computed :]
                rows.append(state.row(tokens))
            left = min(wanted[i][1] - len(drafts[i]) for i in going)
            follow = left - 1 if all(len(row.token_ids) == 1 for row in rows) else 0
            started = perf_counter()
            outputs = self.executor.step(StepBatch(rows, more_steps=follow)).sequences
            if follow or left == 1:
                self.costs.observe(len(rows), 1e3 * (perf_counter() - started) / (follow + 1))
            still = []
            for i, row, output in zip(going, rows, outputs, strict=True):
                ids = output.sampled_ids
                self._states[wanted[i][0]].num_computed = row.start_position + len(row.token_ids) + len(ids) - 1
                usable = [token_id for token_id in ids if token_id < self._vocab_size]
                drafts[i] += usable
                if usable and len(usable) == len(ids) and len(drafts[i]) < wanted[i][1]:
                    still.append(i)
            going = still
        return drafts

    def judge(self, sequence: Sequence, drafted: SequenceOf[int], accepted: int) -> None:
        """Called with the tokens of the sequence as they were when it was drafted for."""
        state = self._states[sequence]
        state.judgements.add_draft(len(drafted), accepted)
        state.num_computed = min(state.num_computed, len(sequence.tokens) + accepted)

    def measure_costs(self) -> None:
        self.costs.measure(self.executor, self._vocab_size, self._max_rows, self._max_model_len)

    def cost_ms(self, sequences: int, longest: int) -> float:
        return longest * self.costs.ms(sequences) if self.costs.known else 0.0

    def end(self, sequence: Sequence) -> None:
        state = self._states.pop(sequence, None)
        if state is not None:
            self._common.add(state.judgements.judged, state.judgements.right)
            self._kv_cache.free(state.block_table)

    def close(self) -> None:
        for sequence in list(self._states):
            self.end(sequence)
        self.executor.close()

    def _catch_up(self, sequences: list[Sequence]) -> None:
        """Compute all tokens but the last `max_rows` over the batch, chunk by chunk."""
        fair = max(1, self._max_rows // len(sequences))
        for sequence in sequences:
            state = self._states[sequence]
            while (behind := len(sequence.tokens) - state.num_computed) > fair:
                chunk = min(behind - 1, self._max_rows)
                row = state.row(sequence.tokens[state.num_computed : state.num_computed + chunk])
                row.sample_rows = 0
                self.executor.step(StepBatch([row]))
                state.num_computed += chunk


class _State:
    __slots__ = ("block_table", "judgements", "num_computed", "settings")

    def __init__(self, judgements: Judgements, settings: SamplerSettings) -> None:
        self.judgements = judgements
        self.settings = settings
        self.num_computed = 0  # leading tokens whose KV is right
        self.block_table: list[int] = []

    def row(self, token_ids: list[int]) -> SequenceInput:
        return SequenceInput(token_ids, self.num_computed, self.block_table, sample_rows=1, sampling=self.settings)


def check_same_vocabulary(tokenizer: Tokenizer, draft: Tokenizer, draft_name: str) -> None:
    """Raise `ConfigError` unless every id that both tokenizers have means the same text in both.

    Only trailing ids that one of them lacks may differ: padding of the embedding.
    """
    for token_id in range(min(tokenizer.vocab_size, draft.vocab_size)):
        ours, theirs = tokenizer.token_bytes(token_id), draft.token_bytes(token_id)
        if ours != theirs or tokenizer.is_control(token_id) != draft.is_control(token_id):
            raise ConfigError(
                f"the draft model {draft_name!r} has another vocabulary: id {token_id} is {_shown(ours)} in the model "
                f"and {_shown(theirs)} in the draft model. Use a draft model of the same family"
            )
    if tokenizer.eos_ids and draft.eos_ids and not tokenizer.eos_ids & draft.eos_ids:
        raise ConfigError(
            f"the draft model {draft_name!r} ends texts with other tokens ({sorted(draft.eos_ids)}) than the model "
            f"({sorted(tokenizer.eos_ids)})"
        )


def _shown(token: bytes) -> str:
    return repr(token.decode(errors="replace"))
