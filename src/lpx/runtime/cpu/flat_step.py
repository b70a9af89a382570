"""A `StepBatch` as the flat arrays that the native core reads, and its results as a `StepResult`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpx import _native
from lpx.runtime.step import (
    DraftedStep,
    SamplerSettings,
    SequenceInput,
    SequenceOutput,
    StepBatch,
    StepResult,
    TokenLogprobs,
)

_NOT_FINITE = (
    "the model's logits are not finite (NaN or infinity): its weights are damaged or its values overflow float32"
)


_NO_IDS = np.empty(0, dtype=np.int32)
_NOTHING_POOLED = {"pool_begin": _NO_IDS, "pool_end": _NO_IDS, "pool_sums": np.empty((0, 0))}
_NO_MASKS = {"mask": _NO_IDS, "masks": np.empty((0, 0), dtype=np.uint32)}
_NOTHING_FOLLOWS = {"more_steps": 0, "stop_ids": _NO_IDS, "stop_begin": _NO_IDS, "drafting": None}


class FlatStep:
    """One step, flattened.

    Attributes:
        rows: arguments about tokens and KV blocks, for `Decoder.step` and `Decoder.logits`.
        sampling: arguments about what happens to the logits, for `Decoder.step`.
        following: arguments about the steps that follow, for `Decoder.step`.
        pooling: arguments about sums of hidden states, for `Decoder.step`, which writes the sums into them.
    """

    def __init__(self, batch: StepBatch, vocab_size: int, hidden_size: int = 0) -> None:
        token_ids: list[int] = []
        row_begin = [0]
        starts: list[int] = []
        block_ids: list[int] = []
        table_begin = [0]
        self._batch = batch
        self._logit_rows: list[int] = []
        self._entries = _Entries()
        settings = _Settings(vocab_size)
        for sequence in batch.sequences:
            first_row = len(token_ids)
            token_ids.extend(sequence.token_ids)
            row_begin.append(len(token_ids))
            starts.append(sequence.start_position)
            block_ids.extend(sequence.block_table)
            table_begin.append(len(block_ids))
            self._add_logit_rows(sequence, first_row, settings)
        self.rows: dict[str, Any] = {
            "token_ids": np.array(token_ids, dtype=np.int32),
            "row_begin": np.array(row_begin, dtype=np.int32),
            "start_position": np.array(starts, dtype=np.int32),
            "block_ids": np.array(block_ids, dtype=np.int32),
            "table_begin": np.array(table_begin, dtype=np.int32),
            "logit_rows": np.array(self._logit_rows, dtype=np.int32),
        }
        masks = [sequence.masks for sequence in batch.sequences if sequence.masks is not None]
        mask_arrays = _masks_of_rows(batch.sequences, masks) if masks else _NO_MASKS
        self.sampling: dict[str, Any] = {**self._entries.arrays(), **settings.arrays(), **mask_arrays}
        self.pooling: dict[str, Any] = self._pools(hidden_size)
        self.following: dict[str, Any] = _NOTHING_FOLLOWS
        if batch.more_steps:
            stop_ids: list[int] = []
            stop_begin = [0]
            for sequence in batch.sequences:
                stop_ids.extend(sequence.stop_ids)
                stop_begin.append(len(stop_ids))
            self.following = {
                "more_steps": batch.more_steps,
                "stop_ids": np.array(stop_ids, dtype=np.int32),
                "stop_begin": np.array(stop_begin, dtype=np.int32),
                "drafting": batch.drafting,
            }

    def _pools(self, hidden_size: int) -> dict[str, Any]:
        begins: list[int] = []
        ends: list[int] = []
        sums: list[NDArray[np.float64]] = []
        first_row = 0
        for sequence in self._batch.sequences:
            if sequence.pool_rows is not None:
                begin, end = sequence.pool_rows
                if not 0 <= begin < end <= len(sequence.token_ids):
                    raise ValueError(f"pooled rows {begin} to {end} in a sequence of {len(sequence.token_ids)}")
                begins.append(first_row + begin)
                ends.append(first_row + end)
                sums.append(np.zeros(hidden_size) if sequence.pool_sum is None else sequence.pool_sum)
            first_row += len(sequence.token_ids)
        if not sums:
            return _NOTHING_POOLED
        return {
            "pool_begin": np.array(begins, dtype=np.int32),
            "pool_end": np.array(ends, dtype=np.int32),
            "pool_sums": np.array(sums, dtype=np.float64),  # a copy, which the native core adds to
        }

    def _add_logit_rows(self, sequence: SequenceInput, first_row: int, settings: _Settings) -> None:
        count = len(sequence.token_ids)
        if not 0 <= sequence.sample_rows <= count:
            raise ValueError(f"{sequence.sample_rows} sampled rows in a sequence of {count}")
        first_sampled = count - sequence.sample_rows
        if sequence.score_targets:
            if len(sequence.score_targets) != count:
                raise ValueError(f"{len(sequence.score_targets)} targets to score for {count} rows")
            for row, target in enumerate(sequence.score_targets):
                if target >= 0:
                    self._logit_rows.append(first_row + row)
                    self._entries.score(target, sequence.score_logprobs)
                if row >= first_sampled:
                    self._add_sampled(sequence, first_row, row, row - first_sampled, settings)
        else:
            for drafted in range(sequence.sample_rows):
                self._add_sampled(sequence, first_row, first_sampled + drafted, drafted, settings)

    def _add_sampled(
        self, sequence: SequenceInput, first_row: int, row: int, drafted: int, settings: _Settings
    ) -> None:
        if drafted == 0:
            settings.add(sequence)
        self._logit_rows.append(first_row + row)
        self._entries.sample(
            settings.count - 1,
            drafted if sequence.sampling is not None and sequence.sampling.needs_history else 0,
            sequence.start_position + row + 1,
            -1 if sequence.logprobs is None else sequence.logprobs,
        )

    def results(self, native: tuple[NDArray[Any], ...]) -> StepResult:
        """What `Decoder.step` returned, by sequence."""
        sampled, finite, ids, logprobs, ranks, top_ids, top_logprobs = native
        all_finite = bool(finite.all())
        if self._batch.drafting is not None:
            return _results_of_drafting(self._batch.drafting, sampled.tolist(), all_finite)
        if len(sampled) > len(finite):
            return self._results_of_steps(sampled.reshape(-1, len(finite)), finite)
        sampled_ids: list[int] = sampled.tolist()
        entry = 0
        pool_sums = iter(self.pooling["pool_sums"])

        def scored(entry: int, top: int) -> TokenLogprobs:
            pairs = zip(top_ids[entry, :top].tolist(), top_logprobs[entry, :top].tolist(), strict=True)
            return TokenLogprobs(
                token_id=int(ids[entry]),
                logprob=float(logprobs[entry]),
                rank=int(ranks[entry]),
                top=[pair for pair in pairs if pair[0] >= 0],
            )

        outputs = []
        for sequence in self._batch.sequences:
            first_entry = entry
            output = SequenceOutput(
                sampled_ids=[],
                logprobs=None if sequence.logprobs is None else [],
                scores=[] if sequence.score_targets else None,
            )
            first_sampled = len(sequence.token_ids) - sequence.sample_rows
            rows = range(0 if sequence.score_targets else first_sampled, len(sequence.token_ids))
            for row in rows:
                if output.scores is not None:
                    score = None
                    if sequence.score_targets[row] >= 0:
                        score = scored(entry, sequence.score_logprobs)
                        entry += 1
                    output.scores.append(score)
                if row >= first_sampled:
                    output.sampled_ids.append(sampled_ids[entry])
                    if output.logprobs is not None and sequence.logprobs is not None:
                        output.logprobs.append(scored(entry, sequence.logprobs))
                    entry += 1
            if not all_finite and not finite[first_entry:entry].all():
                output = SequenceOutput(sampled_ids=[], logprobs=None, scores=None, error=_NOT_FINITE)
            if sequence.pool_rows is not None:
                output.pool_sum = next(pool_sums)
                if not np.isfinite(output.pool_sum).all():
                    output = SequenceOutput(sampled_ids=[], logprobs=None, scores=None, error=_NOT_FINITE)
            outputs.append(output)
        return StepResult(outputs)

    def _results_of_steps(self, sampled: NDArray[Any], finite: NDArray[Any]) -> StepResult:
        """Of several steps: `sampled` is [steps, sequences]."""
        return StepResult(
            [
                SequenceOutput(ids, logprobs=None, scores=None)
                if fine
                else SequenceOutput(sampled_ids=[], logprobs=None, scores=None, error=_NOT_FINITE)
                for ids, fine in zip(sampled.T.tolist(), finite.tolist(), strict=True)
            ]
        )


def _results_of_drafting(drafting: _native.Drafting, sampled: list[int], finite: bool) -> StepResult:
    """Of the steps of one sequence, which gave these tokens."""
    if not finite:
        return StepResult([SequenceOutput(sampled_ids=[], logprobs=None, scores=None, error=_NOT_FINITE)])
    return StepResult(
        [SequenceOutput(sampled, logprobs=None, scores=None)],
        [DraftedStep(*step) for step in drafting.steps],
        drafting.balance,
    )


def _masks_of_rows(sequences: Sequence[SequenceInput], masks: list[NDArray[np.uint32]]) -> dict[str, NDArray[Any]]:
    """The masks, and which of them each row of logits has (-1: none)."""
    of_rows: list[int] = []
    count = 0
    for sequence in sequences:
        first_sampled = len(sequence.token_ids) - sequence.sample_rows
        if sequence.masks is not None and len(sequence.masks) != sequence.sample_rows:
            raise ValueError(f"{len(sequence.masks)} masks for {sequence.sample_rows} rows that sample")
        for row in range(0 if sequence.score_targets else first_sampled, len(sequence.token_ids)):
            if sequence.score_targets and sequence.score_targets[row] >= 0:
                of_rows.append(-1)
            if row >= first_sampled:
                of_rows.append(-1 if sequence.masks is None else count)
                count += sequence.masks is not None
    return {
        "mask": np.array(of_rows, dtype=np.int32),
        "masks": masks[0] if len(masks) == 1 else np.concatenate(masks),
    }


class _Entries:
    """What to do with each row of logits."""

    def __init__(self) -> None:
        self._sampling: list[int] = []
        self._drafted: list[int] = []
        self._positions: list[int] = []
        self._targets: list[int] = []
        self._top: list[int] = []

    def sample(self, settings: int, drafted: int, position: int, top: int) -> None:
        self._sampling.append(settings)
        self._drafted.append(drafted)
        self._positions.append(position)
        self._targets.append(-1)
        self._top.append(top)

    def score(self, target: int, top: int) -> None:
        self._sampling.append(-1)
        self._drafted.append(0)
        self._positions.append(0)
        self._targets.append(target)
        self._top.append(top)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "sampling": np.array(self._sampling, dtype=np.int32),
            "drafted": np.array(self._drafted, dtype=np.int32),
            "positions": np.array(self._positions, dtype=np.int64),
            "targets": np.array(self._targets, dtype=np.int32),
            "top": np.array(self._top, dtype=np.int32),
        }


class _Settings:
    """Sampler settings of the sequences that sample."""

    def __init__(self, vocab_size: int) -> None:
        self.count = 0
        self._vocab_size = vocab_size
        self._numbers: list[tuple[float, ...]] = []
        self._top_k: list[int] = []
        self._seeds: list[int] = []
        self._ids: list[int] = []
        self._ids_begin = [0]
        self._bias_values: list[float] = []

    def add(self, sequence: SequenceInput) -> None:
        sampling: SamplerSettings | None = sequence.sampling
        if sampling is None:
            raise ValueError("a sequence that samples needs sampler settings")
        self.count += 1
        self._numbers.append(
            (
                sampling.temperature,
                sampling.top_p,
                sampling.min_p,
                sampling.repetition_penalty,
                sampling.presence_penalty,
                sampling.frequency_penalty,
            )
        )
        self._top_k.append(min(sampling.top_k, self._vocab_size))
        self._seeds.append(sampling.seed)
        history = sampling.needs_history
        drafted = sequence.token_ids[len(sequence.token_ids) - sequence.sample_rows + 1 :] if history else ()
        for ids in (
            sampling.logit_bias,
            sequence.banned_ids,
            sequence.prompt_ids if history else (),
            sequence.output_ids if history else (),
            drafted,
        ):
            self._ids.extend(ids)
            self._ids_begin.append(len(self._ids))
        self._bias_values.extend(sampling.logit_bias.values())

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "numbers": np.array(self._numbers, dtype=np.float32).reshape(-1),
            "top_k": np.array(self._top_k, dtype=np.int32),
            "seeds": np.array(self._seeds, dtype=np.uint64),
            "ids": np.array(self._ids, dtype=np.int32),
            "ids_begin": np.array(self._ids_begin, dtype=np.int32),
            "bias_values": np.array(self._bias_values, dtype=np.float32),
        }
