"""The synchronous core: requests in, one step at a time, deltas out.

Owns the scheduler, the KV accounting and the executor. One thread at a time may change it. Knows nothing of asyncio
and clients.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from time import monotonic_ns
from typing import TYPE_CHECKING

from lpx.engine.deadlines import Deadlines
from lpx.engine.detokenizer import PieceDetokenizer
from lpx.engine.drafting.draft_counts import DraftCounts
from lpx.engine.drafting.speculation import Speculation, mean_context
from lpx.engine.embedding import rows_to_pool
from lpx.engine.kv_cache import KVCache
from lpx.engine.logprobs import describe_logprobs
from lpx.engine.memory_ahead import MemoryAhead
from lpx.engine.outputs import EngineInfo, EngineStats, FinishReason, RequestDelta, TokenLogprobDict, make_timings
from lpx.engine.prefill_pace import PrefillPace
from lpx.engine.prefix_cache import PrefixCache
from lpx.engine.request_intake import Prompt, RequestIntake
from lpx.engine.sampling_params import SamplingParams
from lpx.engine.scheduler import Scheduler
from lpx.engine.sequence import Request, Sequence, SequenceState
from lpx.engine.step_times import StepTimes
from lpx.engine.steps_ahead import StepsAhead
from lpx.errors import EngineStoppedError, InvalidRequestError, LpxError
from lpx.runtime.step import Executor, SequenceInput, SequenceOutput, StepBatch, StepResult, TokenLogprobs

if TYPE_CHECKING:
    from lpx.engine.structured.position import GrammarPosition
    from lpx.model.chat_template import ChatTemplate
    from lpx.model.in_use import ModelHold
    from lpx.model.pooling import Pooling
    from lpx.model.tokenizer import Tokenizer
    from lpx.options import EngineOptions

logger = logging.getLogger(__name__)


class Engine(RequestIntake):
    """Runs requests on one executor. What it has from `RequestIntake` may be called from any thread, the rest not.

    `add_request` (or `make_request` and `add`), then `step` until `has_work` is false. Every choice of every request
    ends with exactly one delta that has a `finish_reason`, and gives its blocks back before that delta is returned.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer,
        *,
        chat_template: ChatTemplate | None = None,
        model_name: str = "model",
        architecture: str = "",
        pooling: Pooling | None = None,
        dtype: str = "auto",
        vocab_size: int | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
        max_model_len: int,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        max_waiting: int = 1024,
        enable_prefix_caching: bool = True,
        itl_target_ms: float | None = None,
        seed: int | None = None,
        make_speculation: Callable[[KVCache], Speculation] | None = None,
        model_version: str | None = None,
    ) -> None:
        facts = executor.info
        super().__init__(
            tokenizer,
            chat_template,
            model_name=model_name,
            # Padded rows of the embedding have no text, ids beyond the embedding no row: neither can be asked for.
            vocab_size=min(tokenizer.vocab_size, vocab_size or tokenizer.vocab_size),
            eos_token_ids=frozenset(eos_token_ids | tokenizer.eos_ids),
            max_model_len=min(max_model_len, facts.num_blocks * facts.block_size),
            seed=seed,
            pooling=pooling,
            hidden_size=facts.hidden_size,
            logit_rows=vocab_size or tokenizer.vocab_size,
        )
        self.executor = executor
        self.max_waiting = max_waiting
        self.kv_cache = KVCache(facts.num_blocks, facts.block_size)
        self._memory_ahead = MemoryAhead(executor, self.kv_cache)
        # Whatever changes keys and values, so that blocks of different kinds never have the same name.
        identity = f"{model_name}|{architecture}|{facts.quantization}|{facts.kv_cache_dtype}|{facts.device} {facts.isa}"
        self.scheduler = Scheduler(
            self.kv_cache,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            prefix_cache=PrefixCache(self.kv_cache, identity) if enable_prefix_caching else None,
            pace=PrefillPace(itl_target_ms),
        )
        self.speculation = None if make_speculation is None else make_speculation(self.kv_cache)
        self.info = EngineInfo(
            model=model_name,
            architecture=architecture,
            max_model_len=self.max_model_len,
            vocab_size=self.vocab_size,
            quantization=facts.quantization,
            dtype=dtype,
            device=facts.device,
            isa=facts.isa,
            threads=facts.threads,
            kv_cache_dtype=facts.kv_cache_dtype,
            block_size=facts.block_size,
            num_blocks=facts.num_blocks,
            kv_bytes=facts.kv_bytes,
            weight_bytes=facts.weight_bytes,
            work_bytes=facts.work_bytes,
            bytes_per_token=facts.bytes_per_token,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            prefix_caching=enable_prefix_caching,
            itl_target_ms=itl_target_ms,
            speculation="off" if self.speculation is None else self.speculation.name,
            chat_template=chat_template is not None,
            model_version=model_version,
        )
        self._arrivals = itertools.count()
        self._requests: dict[str, Request] = {}
        self._deadlines = Deadlines()
        self.ahead = StepsAhead(self.scheduler, self._deadlines, self.speculation, drafts=facts.drafts)
        self._closed = False
        self.failed: BaseException | None = None
        self.hold: ModelHold | None = None  # on the model's file, if it has one; released by `close`
        self._requests_total = 0
        self._prompt_tokens_total = 0
        self._generation_tokens_total = 0
        self._steps_total = 0
        self.step_times = StepTimes()
        self._ran_ns = 0  # when the executor ended the last step; 0: nothing was left to do
        self._finished_total: dict[str, int] = {
            "stop": 0,
            "length": 0,
            "timeout": 0,
            "abort": 0,
            "error": 0,
        }

    @classmethod
    def load(cls, options: EngineOptions, progress: Callable[[int, int], None] | None = None) -> Engine:
        """Load a model; `progress(done_bytes, total_bytes)` is told how far it is.

        Raises `ModelNotFoundError`, `ModelFileError`, `ConfigError`, and `MemoryLimitError` before anything is loaded
        that does not fit.
        """
        from lpx.engine.loading import load_engine

        return load_engine(options, progress)

    def measure_steps(self) -> None:
        """Measure what decode steps of one and of several rows cost, for speculation: half a second at most.

        To be called before the first request: the KV blocks it writes to must be free.
        """
        if self.speculation is not None and self.speculation.judging:
            self.speculation.measure(self.executor, self.vocab_size, self.max_model_len)

    def use_idle_time(self) -> bool:
        """Do a little of what makes later steps faster, for some milliseconds; False when nothing of it is left.

        For a caller that has no work for the engine, and looks for some between the calls.
        """
        return self._memory_ahead.advance()

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return self.scheduler.has_work

    def add_request(self, prompt: Prompt, params: SamplingParams, request_id: str | None = None) -> str:
        """Validate and queue a request; returns its id."""
        request = self.make_request(prompt, params, request_id)
        self.add(request)
        return request.request_id

    def add(self, request: Request) -> None:
        """Queue a request from `make_request`."""
        self.check_open()
        if request.request_id in self._requests:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use", param="request_id")
        self._requests[request.request_id] = request
        self._deadlines.add(request)
        self._requests_total += 1
        for sequence in request.sequences:
            sequence.arrival = next(self._arrivals)
            if self.speculation is not None and request.params.speculative != "off":
                sequence.speculation = "no_draft"
            self.scheduler.add(sequence)

    def is_open(self, request_id: str) -> bool:
        """Whether a request is queued or running."""
        return request_id in self._requests

    def check_open(self) -> None:
        """Raise `EngineStoppedError` when the engine takes no more requests. May be called from any thread."""
        if self.failed is not None:
            raise _caused(EngineStoppedError(f"the engine failed and has stopped: {self.failed!r}"), self.failed)
        if self._closed:
            raise EngineStoppedError("the engine has shut down")

    def abort_request(self, request_id: str, *, only: Request | None = None) -> list[RequestDelta]:
        """End a request and free its blocks; the deltas say "abort". Unknown and finished requests are no error.

        With `only`, a request of the same id that is another one is left alone.
        """
        request = self._requests.get(request_id)
        if request is None or (only is not None and request is not only):
            return []
        return self._end_request(request, "abort", None)

    def abort_all(self, error: LpxError | None = None) -> list[RequestDelta]:
        """End every request, with `error` if there is one."""
        reason: FinishReason = "abort" if error is None else "error"
        return [
            delta for request in list(self._requests.values()) for delta in self._end_request(request, reason, error)
        ]

    def step(self) -> list[RequestDelta]:
        """Run one step and return what is new.

        An error of one sequence ends its request with an "error" delta. Any other error ends all requests so and sets
        `failed`: nobody knows what state the device is in, so the engine takes no more.
        """
        begin = monotonic_ns()
        late = self._end_overdue() if self._deadlines.next_ns <= begin else []
        try:
            plan = self.scheduler.schedule(self._deadlines.ms_left(begin))
            if not plan:
                return late
            now = monotonic_ns()
            rows = [self._fill_row(sequence, count, now) for sequence, count in plan]
            filled = monotonic_ns()
            batch = self.ahead.drafting(plan)
            drafts = self._draft(plan) if batch is None else None
            drafted = monotonic_ns()
            if batch is None:
                batch = StepBatch(rows, more_steps=0 if drafts is not None else self.ahead.count(plan))
            result = self._run(batch)
            outputs = result.sequences
            if len(outputs) != len(plan):
                raise RuntimeError(f"the executor returned {len(outputs)} results for {len(plan)} sequences")
        except Exception as error:
            self.failed = error
            logger.error("the engine failed in a step and takes no more requests", exc_info=error)
            return late + self.abort_all(_caused(EngineStoppedError(f"the engine failed in a step: {error!r}"), error))
        started, now = now, monotonic_ns()
        # Several ids of a sequence come from as many steps, or from the rows of a draft in one.
        steps = len(result.drafted_steps)
        if not steps:
            steps = 1 if drafts is not None else max([1, *(len(output.sampled_ids) for output in outputs)])
        rows_run = sum(len(row.token_ids) for row in rows) * steps + sum(step.drafted for step in result.drafted_steps)
        self._steps_total += steps
        self.ahead.step_ns = (now - started) // steps
        self.scheduler.pace.observe(self.scheduler.decode_rows, self.scheduler.prompt_rows, 1e-6 * self.ahead.step_ns)
        if self.speculation is not None and _decodes_only(plan):
            costs = self.speculation.costs
            if result.drafted_steps:
                self.speculation.take_in(plan[0][0], result.drafted_steps, result.draft_balance)
            else:
                costs.observe(rows_run // steps, 1e-6 * (now - drafted) / steps, mean_context([s for s, _ in plan]))
            if self._ran_ns:
                costs.observe_between(1e-6 * (drafted - self._ran_ns))
        deltas = late
        for at, ((sequence, count), output) in enumerate(zip(plan, outputs, strict=True)):
            if sequence.state is not SequenceState.RUNNING:
                continue  # ended with its request by an error earlier in this loop
            if drafts is not None and drafts[at] and self.speculation is not None and output.error is None:
                output.sampled_ids = self.speculation.verify(sequence, drafts[at], output.sampled_ids)
            try:
                if output.error is not None:
                    raise LpxError(f"the model failed on this request: {output.error}")
                self.scheduler.advance(sequence, count + max(0, len(output.sampled_ids) - 1))
                if result.drafted_steps:
                    from_draft = [i < step.accepted for step in result.drafted_steps for i in range(step.accepted + 1)]
                else:
                    from_draft = [True] * (len(output.sampled_ids) - 1) if drafts is not None and drafts[at] else []
                delta = self._accept(sequence, output, now, from_draft)
            except Exception as error:
                shown = error if isinstance(error, LpxError) else LpxError(f"the request failed: {error!r}")
                deltas.extend(self._end_request(sequence.request, "error", _caused(shown, error)))
            else:
                if delta is not None:
                    deltas.append(delta)
        self.step_times.note(
            (begin, filled, drafted, now, monotonic_ns()),
            steps,
            rows_run // steps,
            bool(self.scheduler.prompt_rows),
        )
        self._ran_ns = now if self.scheduler.has_work else 0
        return deltas

    def reset(self) -> None:
        """Forget every request without a word, whatever state an interrupt in `step` left it in."""
        for request in self._requests.values():
            request.unfinished = 0
            self._forget_drafts(request)
        self._requests.clear()
        self._deadlines.clear()
        self.scheduler.reset()

    def stats(self) -> EngineStats:
        """Figures of this moment. May be called from any thread: the numbers may then be of neighbouring moments."""
        prefix_cache = self.scheduler.prefix_cache
        return EngineStats(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            free_blocks=self.kv_cache.num_available,
            total_blocks=self.kv_cache.num_blocks,
            requests_total=self._requests_total,
            prompt_tokens_total=self._prompt_tokens_total,
            generation_tokens_total=self._generation_tokens_total,
            preemptions_total=self.scheduler.preemptions,
            prefix_cache_queries_total=prefix_cache.queried_tokens if prefix_cache is not None else 0,
            prefix_cache_hits_total=prefix_cache.hit_tokens if prefix_cache is not None else 0,
            steps_total=self._steps_total,
            finished_total=dict(self._finished_total),
            drafts=DraftCounts() if self.speculation is None else self.speculation.counts,
            step_cost_ms={} if self.speculation is None else self.speculation.costs.shown(),
            step_times=self.step_times,
            drafts_declined={} if self.speculation is None else dict(self.speculation.declined),
        )

    def close(self) -> None:
        """End every request and free the executor. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self.abort_all()
            if self.speculation is not None:
                self.speculation.close()
            self.executor.close()
            if self.hold is not None:
                self.hold.release()

    def _fill_row(self, sequence: Sequence, count: int, now: int) -> SequenceInput:
        """Refresh the sequence's part of the step for its next `count` tokens."""
        request = sequence.request
        if not request.first_scheduled_ns:
            request.first_scheduled_ns = now
            self._prompt_tokens_total += sequence.prompt_length
        row = sequence.row
        start = sequence.num_computed
        end = start + count
        row.token_ids = sequence.tokens[start:end]
        row.start_position = start
        row.block_table = sequence.block_table
        row.sample_rows = 1 if end == len(sequence.tokens) and sequence.wants_tokens else 0
        params = request.params
        row.banned_ids = params.banned_token_ids or ()
        if len(sequence.output_ids) < params.min_tokens:
            row.banned_ids = (*sequence.stop_ids, *row.banned_ids)
        if params.windowed:
            row.output_ids = sequence.output_ids[-params.repeat_last_n :]
            more = params.repeat_last_n - len(row.output_ids)
            row.prompt_ids = request.prompt_ids[-more:] if more else ()
        if sequence.grammar is not None:
            row.masks = sequence.grammar.mask if row.sample_rows else None
            if request.params.ignore_eos:  # which holds as long as the grammar can go on
                row.banned_ids = tuple(self.eos_token_ids.union(row.banned_ids))
        if request.prompt_logprobs is not None:
            self._fill_score_targets(sequence, start, end)
        if request.pooling is not None:
            row.pool_rows = rows_to_pool(request.pooling, start, end, sequence.prompt_length)
            row.pool_sum = None if start == 0 else request.pool_sum  # 0: at the beginning, or preempted
        return row

    def _draft(self, plan: list[tuple[Sequence, int]]) -> list[list[int]] | None:
        """Add drafted tokens to the rows of a step that decodes only; None when there is nothing to verify.

        Beside prompts no row is cheap, so that none is spent on a guess.
        """
        if self.speculation is None or not _decodes_only(plan) or any(s.row.score_targets for s, _ in plan):
            return None
        forced = sum(count for _, count in plan) - len(plan)
        drafts = self.speculation.draft([sequence for sequence, _ in plan], forced)
        if drafts is not None:
            for (sequence, _), draft in zip(plan, drafts, strict=True):
                row = sequence.row
                if sequence.grammar is not None:
                    draft, row.masks = sequence.grammar.check_draft(draft)
                row.token_ids = [*row.token_ids, *draft]
                row.sample_rows = 1 + len(draft)
        return drafts

    def _forget_drafts(self, request: Request) -> None:
        if self.speculation is not None:
            for sequence in request.sequences:
                self.speculation.end(sequence)

    def _run(self, batch: StepBatch) -> StepResult:
        """One step. The executor refuses what it cannot run before it changes anything: then each sequence runs alone,
        and only the one that is at fault gets an error."""
        try:
            return self.executor.step(batch)
        except ValueError as error:
            if len(batch.sequences) == 1:
                logger.error("a request cannot be run", exc_info=error)
                return StepResult([SequenceOutput(sampled_ids=[], logprobs=None, scores=None, error=str(error))])
            return StepResult([self._run(StepBatch([row])).sequences[0] for row in batch.sequences])

    def _fill_score_targets(self, sequence: Sequence, start: int, end: int) -> None:
        """Have each prompt row score the token behind it, once: not again after preemption, not for other choices."""
        request, row = sequence.request, sequence.row
        row.score_targets = ()
        if sequence.must_score and end > request.scored:
            prompt = request.prompt_ids
            row.score_targets = [
                prompt[position + 1] if request.scored <= position < len(prompt) - 1 else -1
                for position in range(start, end)
            ]
            row.score_logprobs = request.params.prompt_logprobs or 0

    def _accept(
        self, sequence: Sequence, output: SequenceOutput, now: int, from_draft: list[bool]
    ) -> RequestDelta | None:
        """Take in the results of one sequence; `from_draft` says which ids were drafted. None while its prompt is
        unfinished."""
        request = sequence.request
        row = sequence.row
        if row.score_targets and output.scores is not None:
            self._accept_scores(request, output.scores)
        if row.pool_rows is not None:
            request.pool_sum = output.pool_sum
        if not row.sample_rows:
            if sequence.wants_tokens or sequence.pending:
                return None
            return self._make_delta(sequence, "", [], None, "length" if request.pooling is None else "stop", None, now)
        if not sequence.first_token_ns:
            sequence.first_token_ns = now
            self._limit_decoding(request, now)
        sequence.last_token_ns = now
        params = request.params
        output_ids = sequence.output_ids
        detokenizer = sequence.detokenizer
        token_ids: list[int] = []
        text = ""
        finish_reason: FinishReason | None = None
        stop_reason: int | str | None = None
        sampled_ids = output.sampled_ids
        if sequence.grammar is not None:
            sampled_ids = self._follow_grammar(sequence, sequence.grammar, sampled_ids)
        for token_id in sampled_ids:
            sequence.tokens.append(token_id)
            output_ids.append(token_id)
            token_ids.append(token_id)
            if token_id in sequence.stop_ids:
                finish_reason = "stop"
                if params.ignore_eos or token_id not in self.eos_token_ids:
                    stop_reason = token_id
                    if params.include_stop_str_in_output:
                        text += detokenizer.push((token_id,), check_stop=False)
                break
            text += detokenizer.push((token_id,), check_stop=len(output_ids) > params.min_tokens)
            if detokenizer.stopped is not None:
                break
            if len(sequence.tokens) >= sequence.max_length:
                finish_reason = "length"
                break
        if sequence.grammar is not None and sequence.grammar.complete and len(token_ids) == len(sampled_ids):
            finish_reason = "stop"
        if finish_reason is not None:
            text += detokenizer.finish()
        if detokenizer.stopped is not None:
            finish_reason, stop_reason = "stop", detokenizer.stopped
        self._generation_tokens_total += len(token_ids)
        logprobs = None
        if output.logprobs is not None:
            logprobs = [describe_logprobs(entry, self.tokenizer) for entry in output.logprobs[: len(token_ids)]]
        return self._make_delta(
            sequence, text, token_ids, logprobs, finish_reason, stop_reason, now, from_draft=from_draft
        )

    def _follow_grammar(self, sequence: Sequence, grammar: GrammarPosition, sampled_ids: list[int]) -> list[int]:
        """Sampled ids with those behind them that the grammar forces."""
        try:
            followed = grammar.accept(sampled_ids)
        except InvalidRequestError:
            self._forget_grammar(grammar.grammar)
            raise
        sequence.forced = len(followed) - len(sampled_ids)
        return followed

    def _accept_scores(self, request: Request, scores: SequenceOf[TokenLogprobs | None]) -> None:
        assert request.prompt_logprobs is not None
        for entry in scores:
            if entry is not None:
                request.prompt_logprobs.append(describe_logprobs(entry, self.tokenizer))
                request.scored += 1

    def _make_delta(
        self,
        sequence: Sequence,
        text: str,
        token_ids: list[int],
        logprobs: list[TokenLogprobDict] | None,
        finish_reason: FinishReason | None,
        stop_reason: int | str | None,
        now: int,
        error: LpxError | None = None,
        from_draft: SequenceOf[bool] = (),
    ) -> RequestDelta:
        """A delta; with a `finish_reason` the sequence ends and its blocks are free."""
        request = sequence.request
        delta = RequestDelta(
            request.request_id,
            sequence.index,
            text,
            token_ids,
            sequence.prompt_length,
            request.cached_tokens or 0,
            logprobs,
            finish_reason,
            stop_reason,
        )
        delta.error = error
        if request.params.return_drafts and isinstance(sequence.detokenizer, PieceDetokenizer):
            pieces = sequence.detokenizer.take_pieces()
            delta.pieces = [(piece, 0 <= at < len(from_draft) and from_draft[at]) for piece, at in pieces]
        is_first = sequence.index == 0 and len(sequence.output_ids) == len(token_ids)
        if is_first and request.prompt_logprobs is not None and request.scoring_done:
            delta.prompt_logprobs = request.prompt_logprobs
        if finish_reason is not None:
            self.scheduler.finish(sequence, sound=finish_reason != "error")
            delta.pooled = request.pool_sum
            delta.timings = make_timings(
                request.arrival_ns,
                request.first_scheduled_ns,
                sequence.first_token_ns,
                sequence.last_token_ns or now,
                sequence.prompt_length,
                request.cached_tokens or 0,
                len(sequence.output_ids),
                sequence.drafts,
                sequence.speculation,
            )
            if self.speculation is not None:
                self.speculation.end(sequence)
            self._finished_total[finish_reason] += 1
            request.unfinished -= 1
            if not request.unfinished:
                del self._requests[request.request_id]
                self._deadlines.remove(request)
        return delta

    def _limit_decoding(self, request: Request, now: int) -> None:
        """The first token is there: from here on `max_decode_ms` counts."""
        if request.params.max_decode_ms is None:
            return
        self._deadlines.remove(request)
        request.deadline_ns = min(request.deadline_ns, now + int(request.params.max_decode_ms * 1e6))
        self._deadlines.add(request)

    def _end_overdue(self) -> list[RequestDelta]:
        overdue = self._deadlines.overdue(monotonic_ns())
        return [delta for request in overdue for delta in self._end_request(request, "timeout", None)]

    def _end_request(self, request: Request, reason: FinishReason, error: LpxError | None) -> list[RequestDelta]:
        """End the unfinished choices of a request; an end that is asked for flushes the text held back."""
        now = monotonic_ns()
        deltas = []
        for sequence in request.sequences:
            if sequence.state is not SequenceState.FINISHED:
                text = sequence.detokenizer.finish() if error is None else ""
                deltas.append(self._make_delta(sequence, text, [], None, reason, None, now, error))
        return deltas


def _decodes_only(plan: list[tuple[Sequence, int]]) -> bool:
    return all(sequence.row.sample_rows and count <= 1 + sequence.forced for sequence, count in plan)


def _caused(error: LpxError, cause: BaseException) -> LpxError:
    if error is not cause:
        error.__cause__ = cause
    return error
