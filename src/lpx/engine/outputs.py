"""What comes out of the engine: deltas while a request runs, whole outputs at its end, and figures about both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from lpx.engine.drafting.draft_counts import DraftCounts
from lpx.engine.step_times import StepTimes
from lpx.errors import LpxError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FinishReason = Literal["stop", "length", "timeout", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural log-probability of one token under the model, before penalties, bias and temperature."""

    logprob: float  # finite: -inf is reported as -9999
    rank: int  # 1: the likeliest
    decoded_token: str  # for display; a token that holds a part of a character decodes to U+FFFD
    bytes: bytes  # exact


TextPiece = tuple[str, bool]  # text of one token, and whether that was drafted and accepted
TokenLogprobDict = dict[int, Logprob]  # the token itself first, then the likeliest by rank


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a request went. Rates are 0 when there is nothing to measure (fewer than two tokens)."""

    queue_ms: float  # arrival to first scheduled
    prefill_ms: float  # first scheduled to first token
    decode_ms: float  # first token to last token
    ttft_ms: float  # arrival to first token
    prompt_tokens: int
    cached_tokens: int  # of the prompt, taken from the prefix cache
    prefill_tokens_per_second: float  # of the tokens that were computed
    completion_tokens: int
    decode_tokens_per_second: float  # (completion_tokens - 1) / decode time
    drafted_tokens: int = 0
    accepted_tokens: int = 0  # drafted tokens that sampling gave, too
    speculation: str = "off"  # "drafted", or why not at the end: "no_draft", "would_not_pay", "off"
    mean_accepted_length: float = 0.0  # tokens a verified draft gave, the sampled one included; 0: no draft


@dataclass(slots=True)
class RequestDelta:
    """News of one choice of a request since its previous delta.

    Joined, the `text` of a choice's deltas is exactly its whole text. `token_ids` may run ahead of `text`, which holds
    back unfinished characters and possible beginnings of stop strings. The last delta of a choice has a
    `finish_reason`; with "error", `error` says why.
    """

    request_id: str
    index: int
    text: str
    token_ids: list[int]
    prompt_tokens: int
    cached_tokens: int = 0  # of the prompt, taken from the prefix cache
    logprobs: list[TokenLogprobDict] | None = None  # one per token id, when asked for
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop token id or stop string; None for end of sequence
    prompt_logprobs: list[TokenLogprobDict | None] | None = None  # in the first delta of choice 0, when asked for
    timings: Timings | None = None  # in the last delta
    error: LpxError | None = None
    pooled: NDArray[np.float64] | None = None  # sum of hidden states [hidden size], in the last delta of an embedding
    pieces: list[TextPiece] | None = None  # with return_drafts; joined they are `text`


@dataclass(slots=True)
class EmbeddingOutput:
    """The embedding of one text."""

    embedding: NDArray[np.float32]  # [dimensions], of length 1 unless asked otherwise
    prompt_token_ids: list[int]
    timings: Timings | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One choice of a request."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None  # sum over token_ids when logprobs were asked for
    logprobs: list[TokenLogprobDict] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """A request with all its choices."""

    request_id: str
    prompt: str | None  # None when the prompt came as token ids
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprobDict | None] | None = None  # first position: None
    finished: bool = False
    num_cached_tokens: int = 0  # of the prompt, taken from the prefix cache
    timings: Timings | None = None  # over all choices


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges of this moment and counters since the start."""

    running: int  # sequences
    waiting: int  # sequences, those not yet taken over by the engine included
    free_blocks: int
    total_blocks: int
    requests_total: int
    prompt_tokens_total: int
    generation_tokens_total: int
    preemptions_total: int
    prefix_cache_queries_total: int  # tokens of prompts that were looked up in the prefix cache
    prefix_cache_hits_total: int  # of these, tokens that were found
    steps_total: int
    finished_total: dict[str, int]  # choices by finish reason
    drafts: DraftCounts  # of all sequences
    step_cost_ms: dict[int, float]  # expected, by rows of a decode step; empty: not known
    drafts_declined: dict[str, int]  # decode steps of sequences without a draft, by reason
    step_times: StepTimes


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is really in use: for /v1/models, `--json`, start-up lines and stored measurements. Holds no paths."""

    model: str
    architecture: str
    max_model_len: int
    vocab_size: int
    quantization: str
    dtype: str
    device: str
    isa: str
    threads: int
    kv_cache_dtype: str
    block_size: int
    num_blocks: int
    kv_bytes: int
    weight_bytes: int
    work_bytes: int
    bytes_per_token: int
    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool
    itl_target_ms: float | None  # None: follows the steps that run
    speculation: str  # how tokens are drafted, "off" if not
    chat_template: bool  # whether the model can be chatted with
    model_version: str | None = None  # in the model store; None: the model is not one of its versions


def make_timings(
    arrival_ns: int,
    scheduled_ns: int,
    first_ns: int,
    last_ns: int,
    prompt_tokens: int,
    cached_tokens: int,
    completion_tokens: int,
    drafts: DraftCounts,
    speculation: str,
) -> Timings:
    """Timings from monotonic stamps; a stamp of 0 has not happened (an aborted or scored request)."""
    scheduled_ns = scheduled_ns or last_ns
    first_ns = first_ns or last_ns
    prefill_ns = max(first_ns - scheduled_ns, 0)
    decode_ns = max(last_ns - first_ns, 0)
    return Timings(
        queue_ms=max(scheduled_ns - arrival_ns, 0) / 1e6,
        prefill_ms=prefill_ns / 1e6,
        decode_ms=decode_ns / 1e6,
        ttft_ms=max(first_ns - arrival_ns, 0) / 1e6,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        prefill_tokens_per_second=(prompt_tokens - cached_tokens) * 1e9 / prefill_ns if prefill_ns else 0.0,
        completion_tokens=completion_tokens,
        decode_tokens_per_second=(completion_tokens - 1) * 1e9 / decode_ns
        if decode_ns and completion_tokens > 1
        else 0.0,
        drafted_tokens=drafts.drafted,
        speculation="drafted" if drafts.steps else speculation,
        accepted_tokens=drafts.accepted,
        mean_accepted_length=drafts.mean_accepted_length,
    )


def merge_deltas(deltas: Iterable[RequestDelta]) -> list[RequestDelta]:
    """Join deltas of one request into one per choice, in order of first appearance."""
    groups: dict[int, list[RequestDelta]] = {}
    for delta in deltas:
        groups.setdefault(delta.index, []).append(delta)
    merged = []
    for group in groups.values():
        if len(group) == 1:
            merged.append(group[0])
            continue
        first, last = group[0], group[-1]
        logprobs = [entry for delta in group for entry in delta.logprobs or ()]
        merged.append(
            RequestDelta(
                request_id=first.request_id,
                index=first.index,
                text="".join([delta.text for delta in group]),
                token_ids=[token_id for delta in group for token_id in delta.token_ids],
                prompt_tokens=first.prompt_tokens,
                cached_tokens=last.cached_tokens,
                logprobs=logprobs if any(delta.logprobs is not None for delta in group) else None,
                finish_reason=last.finish_reason,
                stop_reason=last.stop_reason,
                prompt_logprobs=next((d.prompt_logprobs for d in group if d.prompt_logprobs is not None), None),
                timings=last.timings,
                error=last.error,
                pooled=last.pooled,
                pieces=_joined_pieces(group),
            )
        )
    return merged


def _joined_pieces(group: list[RequestDelta]) -> list[TextPiece] | None:
    if group[0].pieces is None:
        return None
    return [piece for delta in group for piece in delta.pieces or ()]
