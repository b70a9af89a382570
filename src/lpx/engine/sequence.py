"""A request and its sequences: the state that travels through scheduler and engine."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from lpx.engine.deadlines import NO_DEADLINE
from lpx.engine.drafting.draft_counts import DraftCounts
from lpx.engine.outputs import Timings, TokenLogprobDict, make_timings
from lpx.engine.prefix_cache import NEVER
from lpx.engine.sampling_params import SamplingParams
from lpx.runtime.step import SequenceInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lpx.engine.detokenizer import Detokenizer
    from lpx.engine.structured.position import GrammarPosition
    from lpx.model.pooling import PoolingKind


class SequenceState(Enum):
    WAITING = "waiting"  # holds no blocks
    RUNNING = "running"  # holds blocks for all its tokens but, perhaps, the newest
    FINISHED = "finished"  # holds no blocks


class Request:
    """One prompt with its parameters; each of the `n` choices is a `Sequence`."""

    __slots__ = (
        "arrival_ns",
        "cached_tokens",
        "deadline_ns",
        "first_scheduled_ns",
        "owner",
        "params",
        "pool_sum",
        "pooling",
        "prompt_ids",
        "prompt_logprobs",
        "request_id",
        "scored",
        "sequences",
        "unfinished",
    )

    def __init__(self, request_id: str, prompt_ids: list[int], params: SamplingParams, arrival_ns: int) -> None:
        self.request_id = request_id
        self.prompt_ids = prompt_ids
        self.params = params
        self.arrival_ns = arrival_ns
        self.deadline_ns = NO_DEADLINE
        if params.max_latency_ms is not None:
            self.deadline_ns = arrival_ns + int(params.max_latency_ms * 1e6)
        # Whose text this is: drafts of one owner never come from texts of another.
        self.owner = params.cache_salt or ""
        self.first_scheduled_ns = 0
        # Of the prompt, found in the prefix cache by the first choice that ran; None before.
        self.cached_tokens: int | None = None
        self.sequences: list[Sequence] = []
        self.unfinished = 0
        # Prompt scoring is choice 0's work: `scored` rows have been scored, all but the last prompt row need it.
        self.prompt_logprobs: list[TokenLogprobDict | None] | None = None
        self.scored = 0
        # Of an embedding: which tokens' hidden states are summed up, and their sum so far.
        self.pooling: PoolingKind | None = None
        self.pool_sum: NDArray[np.float64] | None = None
        if params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]

    @property
    def scoring_done(self) -> bool:
        return self.prompt_logprobs is None or self.scored >= len(self.prompt_ids) - 1

    def timings(self) -> Timings:
        """Over all choices: from the first token of any to the last token of all."""
        stamps = [sequence.first_token_ns for sequence in self.sequences if sequence.first_token_ns]
        return make_timings(
            self.arrival_ns,
            self.first_scheduled_ns,
            min(stamps, default=0),
            max((sequence.last_token_ns for sequence in self.sequences), default=0),
            len(self.prompt_ids),
            self.cached_tokens or 0,
            sum(len(sequence.output_ids) for sequence in self.sequences),
            self.draft_counts(),
            self.sequences[0].speculation,
        )

    def draft_counts(self) -> DraftCounts:
        """Over all choices."""
        counts = DraftCounts()
        for sequence in self.sequences:
            counts.steps += sequence.drafts.steps
            counts.drafted += sequence.drafts.drafted
            counts.accepted += sequence.drafts.accepted
        return counts


class Sequence:
    """One choice: its tokens, how many of them have KV, and where."""

    __slots__ = (
        "arrival",
        "awaited",
        "block_names",
        "block_table",
        "detokenizer",
        "draft_balance",
        "draft_held_at",
        "drafts",
        "first_token_ns",
        "forced",
        "grammar",
        "index",
        "last_token_ns",
        "max_length",
        "name_at",
        "num_computed",
        "num_named",
        "num_reserved",
        "output_ids",
        "prompt_length",
        "request",
        "row",
        "speculation",
        "state",
        "stop_ids",
        "tokens",
    )

    def __init__(
        self,
        request: Request,
        index: int,
        *,
        arrival: int = -1,
        max_length: int,
        row: SequenceInput,
        stop_ids: frozenset[int],
        detokenizer: Detokenizer,
        grammar: GrammarPosition | None = None,
    ) -> None:
        self.request = request
        self.index = index
        self.arrival = arrival  # order of arrival, unique; given when the engine takes the request
        self.prompt_length = len(request.prompt_ids)
        self.max_length = max_length  # tokens of prompt and output together at which it ends
        self.tokens = list(request.prompt_ids)  # prompt and output
        self.output_ids: list[int] = []
        self.num_computed = 0  # leading tokens whose KV is in the block table
        self.block_table: list[int] = []
        self.num_reserved = 0  # further blocks that the scheduler keeps for its tokens
        # For the prefix cache, which alone changes them.
        self.block_names: list[bytes] = []  # of its full blocks, as far as they have been asked for
        self.num_named = 0  # leading blocks of the block table that others can find
        self.name_at = NEVER  # computed tokens with which the next block is full
        self.awaited: tuple[int, int] | None = None  # who computes its next block: arrival, tokens it had computed
        self.state = SequenceState.WAITING
        self.row = row  # this sequence's part of a step, refreshed for every step
        self.stop_ids = stop_ids  # token ids that end it
        self.detokenizer = detokenizer
        self.grammar = grammar  # None: any text will do
        self.forced = 0  # tokens at its end that were not sampled, because the grammar left no choice
        self.first_token_ns = 0
        self.last_token_ns = 0
        self.drafts = DraftCounts()
        self.draft_balance = 0.0  # tokens that drafts brought, less those that their steps would have brought without
        self.draft_held_at = 0  # tokens before the latest draft, if that was mostly right; else 0
        self.speculation = "off"  # why the latest decode step had a draft, or none

    @property
    def priority(self) -> int:
        return self.request.params.priority

    @property
    def rank(self) -> tuple[int, int]:
        """Whose turn it is: the lower, the earlier."""
        return self.request.params.priority, self.arrival

    @property
    def pending(self) -> int:
        """Tokens without KV. 1 at decode; more while a prompt, or prompt and output after preemption, is computed."""
        return len(self.tokens) - self.num_computed

    @property
    def wants_tokens(self) -> bool:
        """False for a prompt that is only scored."""
        return self.max_length > self.prompt_length

    @property
    def must_score(self) -> bool:
        return self.index == 0 and not self.request.scoring_done

    @property
    def needs_every_row(self) -> bool:
        """Whether nothing of it may come from the prefix cache: each row gives something beside its KV."""
        return self.must_score or self.request.pooling in ("mean", "first")
