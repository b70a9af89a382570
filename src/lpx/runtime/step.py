"""What travels between the engine and a device: one step in, one result out.

The contract is device-neutral. The engine knows tokens and KV blocks, never tensors; the executor knows tensors,
never requests.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from lpx import _native


@dataclass(slots=True)
class SamplerSettings:
    """How one sequence picks its tokens; a token is a function of (logits, these, seed, position) only (I2).

    Order: repetition, presence and frequency penalties, `logit_bias`, `banned_ids`, `masks`, temperature, min_p, top_k,
    top_p, then Gumbel noise keyed by (`seed`, position of the sampled token) and argmax. `temperature` 0 is argmax of
    the logits after bias, bans and masks.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    seed: int = 0  # [0, 2**64)
    repetition_penalty: float = 1.0  # over prompt and output ids, once per id
    presence_penalty: float = 0.0  # over output ids
    frequency_penalty: float = 0.0  # over output ids
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    @property
    def needs_history(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@dataclass(slots=True)
class SequenceInput:
    """The rows of one sequence in one step.

    `token_ids[i]` stands at position `start_position + i`. The block table covers every position up to and including
    the last row. The last `sample_rows` rows get a sampled token: 0 while the prompt is unfinished, 1 at decode,
    1 + drafted when drafts are verified.
    """

    token_ids: Sequence[int]
    start_position: int
    block_table: Sequence[int]
    sample_rows: int = 0
    sampling: SamplerSettings | None = None  # needed when sample_rows > 0
    banned_ids: Sequence[int] = ()  # never sampled in this step (min_tokens, ignore_eos has none)
    prompt_ids: Sequence[int] = ()  # history for penalties; empty unless sampling.needs_history
    output_ids: Sequence[int] = ()  # history for penalties; empty unless sampling.needs_history
    logprobs: int | None = None  # None: off; n: log-probability of the sampled token and of the n likeliest
    score_targets: Sequence[int] = ()  # prompt scoring: per row the id to score, -1 for none; empty: no scoring
    score_logprobs: int = 0  # how many likeliest ids accompany each scored row
    # What may be sampled, uint32 [sample_rows, words for all ids]: bit i % 32 of word i // 32 stands for id i. Bans
    # that leave nothing of it do not hold. None: every id may be sampled.
    masks: NDArray[np.uint32] | None = None
    stop_ids: Collection[int] = ()  # sampling one of these ends the steps that follow
    # Rows [begin, end) whose final hidden states (after the last norm) are added to `pool_sum`, in their order: so the
    # bits of the sum do not depend on how a prompt was cut into steps. None: nothing is pooled.
    pool_rows: tuple[int, int] | None = None
    pool_sum: NDArray[np.float64] | None = None  # [hidden size] of the rows before; None: zeros


class DraftedStep(NamedTuple):
    """What became of drafts in one step."""

    drafted: int
    accepted: int
    found: bool  # something could be drafted
    ms: float


@dataclass(slots=True)
class StepBatch:
    """All sequences of one step. Bits of a row do not depend on the others (I1).

    With `more_steps`, up to so many decode steps follow before the result returns, each with the ids that the one
    before sampled. Every sequence must then have one row that samples, without log-probabilities, masks and history,
    and a block table that covers the further positions; bans hold for all steps. All sequences get the same number of
    ids, at least one.

    With `drafting`, for one sequence and an executor that `drafts`, `more_steps` counts the further tokens.
    """

    sequences: list[SequenceInput]
    more_steps: int = 0
    drafting: _native.Drafting | None = None


@dataclass(slots=True)
class TokenLogprobs:
    """Natural-log probabilities at one row, from the unmodified logits (float32 log-softmax)."""

    token_id: int
    logprob: float
    rank: int  # 1: the likeliest
    top: list[tuple[int, float]]  # likeliest first


@dataclass(slots=True)
class SequenceOutput:
    """Results of one `SequenceInput`, in row order."""

    sampled_ids: list[int]  # length sample_rows, or more with StepBatch.more_steps
    logprobs: list[TokenLogprobs] | None  # length sample_rows when asked for
    scores: list[TokenLogprobs | None] | None  # length len(score_targets) when asked for
    error: str | None = None  # what went wrong in these rows alone (NaN logits); the other sequences are unaffected
    pool_sum: NDArray[np.float64] | None = None  # [hidden size] with this step's rows, when asked for


@dataclass(slots=True)
class StepResult:
    sequences: list[SequenceOutput]
    drafted_steps: list[DraftedStep] = field(default_factory=list)  # with StepBatch.drafting
    draft_balance: float = 0.0  # of the drafting behind them


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What is really in use (printed at start, shown by /v1/models, stored with measurements)."""

    device: str  # "cpu"
    isa: str  # kernel set, e.g. "avx2"
    threads: int
    quantization: str  # weight types by bytes, e.g. "Q4_1 97%, F32 3%"
    kv_cache_dtype: str  # of keys and values: "f16", "q8", or both apart as "q8,q4"
    block_size: int  # tokens per KV block
    num_blocks: int
    weight_bytes: int
    kv_bytes: int
    work_bytes: int
    bytes_per_token: int  # weight bytes read by a decode step of one row
    hidden_size: int = 0  # numbers of a hidden state
    drafts: bool = False  # takes StepBatch.drafting


class Executor(Protocol):
    """Runs steps on one device. Not thread-safe: one caller at a time."""

    @property
    def info(self) -> ExecutorInfo: ...

    def step(self, batch: StepBatch) -> StepResult:
        """Run one step; KV rows are written, results returned. Releases the GIL while it computes."""
        ...

    def populate_kv(self, first: int, count: int) -> bool:
        """Have the memory of `count` KV blocks there before they are written to; what they hold stays.

        False when that cannot be done, or is not needed on this device.
        """
        ...

    def close(self) -> None:
        """Free weights, KV cache and threads; idempotent."""
        ...
