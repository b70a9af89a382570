"""The engine requests behind one HTTP request: submitted together, read together, ended together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from lpx.engine.outputs import RequestDelta, TextPiece, Timings, TokenLogprobDict
from lpx.engine.sampling_params import SamplingParams
from lpx.errors import EngineStoppedError
from lpx.server.caller import current_caller
from lpx.server.latencies import Latencies
from lpx.server.rate_limits import Ticket
from lpx.server.text_log import Transcript

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lpx.engine.async_engine import AsyncEngine, RequestStream
    from lpx.engine.structured.compiler import CompiledGrammar


_AT_ONCE = 32  # prompts of one request that are submitted before others have their turn


class RequestAborted(EngineStoppedError):
    """The engine ended a request before it was done (the server is shutting down)."""


@dataclass(slots=True)
class Choice:
    """One finished answer."""

    index: int  # over all prompts: prompt index * n + choice
    prompt_index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobDict] | None
    finish_reason: str
    stop_reason: int | str | None
    pooled: NDArray[np.float64] | None = None  # of an embedding: the sum of hidden states
    pieces: list[TextPiece] | None = None  # with return_drafts


@dataclass(slots=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_by_prompt: dict[int, int] = field(default_factory=dict)  # tokens, of the prompts that ran

    @property
    def cached_tokens(self) -> int:
        return sum(self.cached_by_prompt.values())

    def as_json(self) -> dict[str, int | dict[str, int]]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(slots=True)
class Generation:
    """Running requests, one per prompt. Use as an async context manager: leaving it aborts whatever still runs."""

    engine: AsyncEngine
    streams: list[RequestStream]
    n: int
    usage: Usage
    prompt_logprobs: list[list[TokenLogprobDict | None] | None]
    latencies: Latencies
    ticket: Ticket
    transcript: Transcript | None = None
    shows_timings: bool = True  # in the answer
    is_patient: bool = False  # deltas come late, so that when they came says nothing
    timings: Timings | None = None  # of the request, when it is a single one
    finish_reasons: list[str] = field(default_factory=list)
    _pumps: list[asyncio.Task[None]] = field(default_factory=list)
    _start: float = field(default_factory=monotonic)
    _first_token: float | None = None  # when the first of any choice came
    _last_token: dict[tuple[int, int], float] = field(default_factory=dict)  # by prompt and choice

    @classmethod
    async def start(
        cls,
        engine: AsyncEngine,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        request_id: str,
        latencies: Latencies,
        grammar: CompiledGrammar | None = None,
        shows_timings: bool = True,
    ) -> Generation:
        """Submit every prompt or none, as the caller's key and limits have it.

        Raises what `Caller.admit` and `AsyncEngine.submit` raise.
        """
        params, ticket, transcript = _admit(engine, prompts, params, request_id)
        is_patient = current_caller().is_patient
        submit = partial(engine.submit, grammar=grammar, is_patient=is_patient)
        streams = await _submit_all(submit, prompts, params, request_id, ticket)
        usage = Usage(prompt_tokens=sum(map(len, prompts)))
        no_logprobs: list[list[TokenLogprobDict | None] | None] = [None] * len(prompts)
        return cls(
            engine,
            streams,
            params.n,
            usage,
            no_logprobs,
            latencies,
            ticket,
            transcript,
            shows_timings,
            is_patient=is_patient,
        )

    @classmethod
    async def start_embeddings(
        cls,
        engine: AsyncEngine,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        request_id: str,
        latencies: Latencies,
    ) -> Generation:
        """As `start`, for prompts to embed: each has one choice, whose `pooled` is the sum of hidden states."""
        params, ticket, transcript = _admit(engine, prompts, params, request_id)
        streams = await _submit_all(engine.submit_embedding, prompts, params, request_id, ticket)
        usage = Usage(prompt_tokens=sum(map(len, prompts)))
        return cls(engine, streams, 1, usage, [None] * len(prompts), latencies, ticket, transcript)

    @property
    def prompt_token_ids(self) -> list[int]:
        """Of the first prompt."""
        return self.streams[0].prompt_token_ids

    def timings_so_far(self) -> dict[str, float | int]:
        """llama.cpp's object, as this process sees it while the request runs."""
        now = monotonic()
        first = self._first_token if self._first_token is not None else now
        return llama_cpp_timings(
            self.usage.prompt_tokens,
            self.usage.cached_tokens,
            1e3 * (first - self._start),
            self.usage.completion_tokens,
            1e3 * (now - first),
        )

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for stream in self.streams:
            stream.abort()
        for pump in self._pumps:
            pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pump
        self.ticket.settle(self.usage.prompt_tokens + self.usage.completion_tokens)
        if self.transcript is not None:
            self.transcript.end(self.n * len(self.streams))

    async def deltas(self) -> AsyncGenerator[tuple[int, RequestDelta], None]:
        """(prompt index, delta) of all requests as they come, until every choice has ended.

        Raises the engine's error when a choice ends by one, and `RequestAborted` when the engine gave it up.
        """
        remaining = self.n * len(self.streams)
        if len(self.streams) == 1:  # as nearly always: one generator less for each delta
            async for delta in self.streams[0]:
                remaining -= self._note(0, delta)
                yield 0, delta
                if not remaining:
                    return
        else:
            async for prompt_index, delta in self._merged():
                remaining -= self._note(prompt_index, delta)
                yield prompt_index, delta
                if not remaining:
                    return
        raise RequestAborted("The request was ended before it was done.")

    def _note(self, prompt_index: int, delta: RequestDelta) -> bool:
        """Count a delta; whether its choice has ended. Raises what `deltas` does."""
        self.usage.completion_tokens += len(delta.token_ids)
        self.usage.cached_by_prompt[prompt_index] = delta.cached_tokens
        self._note_latency((prompt_index, delta.index), delta)
        if self.transcript is not None:
            self.transcript.add(prompt_index * self.n + delta.index, delta.text, delta.finish_reason)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs[prompt_index] = delta.prompt_logprobs
        if delta.finish_reason is None:
            return False
        self.finish_reasons.append(delta.finish_reason)
        if delta.finish_reason == "error":
            raise delta.error or EngineStoppedError("The engine failed.")
        if delta.finish_reason == "abort":
            raise RequestAborted("The request was ended before it was done.")
        if len(self.streams) == 1:
            self.timings = delta.timings
        return True

    def _note_latency(self, choice: tuple[int, int], delta: RequestDelta) -> None:
        now = monotonic()
        if self.is_patient:
            if delta.timings is not None:
                self.latencies.note_late(delta.timings)
        elif count := len(delta.token_ids):
            last = self._last_token.get(choice)
            if last is None:
                self._first_token = self._first_token or now
                self.latencies.time_to_first_token.observe(now - self._start)
            else:
                self.latencies.inter_token.observe((now - last) / count, count)
            self._last_token[choice] = now
        if delta.finish_reason is not None:
            self.latencies.end_to_end.observe(now - self._start)
            if delta.timings is not None:
                self.latencies.note_end(delta.timings)

    async def _merged(self) -> AsyncGenerator[tuple[int, RequestDelta], None]:
        """Of several prompts."""
        queue: asyncio.Queue[tuple[int, RequestDelta] | Exception | None] = asyncio.Queue()

        async def pump(index: int, stream: RequestStream) -> None:
            try:
                async for delta in stream:
                    queue.put_nowait((index, delta))
                queue.put_nowait(None)
            except Exception as exc:
                queue.put_nowait(exc)

        self._pumps += [asyncio.create_task(pump(index, stream)) for index, stream in enumerate(self.streams)]
        running = len(self._pumps)
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item

    async def collect(self) -> list[Choice]:
        """All choices, in order of their index."""
        parts: dict[int, list[RequestDelta]] = {}
        async for prompt_index, delta in self.deltas():
            parts.setdefault(prompt_index * self.n + delta.index, []).append(delta)
        choices = []
        for index, group in sorted(parts.items()):
            logprobs = [entry for delta in group for entry in delta.logprobs or ()]
            choices.append(
                Choice(
                    index=index,
                    prompt_index=index // self.n,
                    text="".join(delta.text for delta in group),
                    token_ids=[token_id for delta in group for token_id in delta.token_ids],
                    logprobs=logprobs if any(delta.logprobs is not None for delta in group) else None,
                    finish_reason=group[-1].finish_reason or "stop",
                    stop_reason=group[-1].stop_reason,
                    pooled=group[-1].pooled,
                    pieces=None if group[0].pieces is None else [p for delta in group for p in delta.pieces or ()],
                )
            )
        return choices


def _admit(
    engine: AsyncEngine, prompts: Sequence[list[int]], params: SamplingParams, request_id: str
) -> tuple[SamplingParams, Ticket, Transcript | None]:
    """What the caller may do, what it has to give back at the end, and where its texts go, if anywhere."""
    caller = current_caller()
    params, ticket = caller.admit(prompts, params, engine.info.max_model_len)
    if caller.text_log is None:
        return params, ticket, None

    def decode(ids: Sequence[int]) -> str:
        return engine.tokenizer.decode(ids, skip_special=False)

    return params, ticket, Transcript(caller.text_log, caller.name, request_id, engine.info.model, prompts, decode)


def llama_cpp_timings(
    prompt_tokens: int, cached_tokens: int, prompt_ms: float, completion_tokens: int, decode_ms: float
) -> dict[str, float | int]:
    """Where the time went, as llama.cpp's clients know it: `predicted` begins behind the first token."""
    computed, predicted = prompt_tokens - cached_tokens, max(completion_tokens - 1, 0)
    return {
        "cache_n": cached_tokens,
        "prompt_n": computed,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": round(prompt_ms / computed, 4) if computed else 0.0,
        "prompt_per_second": round(1e3 * computed / prompt_ms, 2) if prompt_ms else 0.0,
        "predicted_n": completion_tokens,
        "predicted_ms": round(decode_ms, 3),
        "predicted_per_token_ms": round(decode_ms / predicted, 4) if predicted else 0.0,
        "predicted_per_second": round(1e3 * predicted / decode_ms, 2) if decode_ms else 0.0,
    }


async def _submit_all(
    submit: Callable[..., RequestStream],
    prompts: Sequence[list[int]],
    params: SamplingParams,
    request_id: str,
    ticket: Ticket,
) -> list[RequestStream]:
    """Every prompt or none: when one is refused, those before it are taken back."""
    streams: list[RequestStream] = []
    try:
        for index, prompt in enumerate(prompts):
            name = request_id if len(prompts) == 1 else f"{request_id}-{index}"
            streams.append(submit(prompt, params, request_id=name))
            if index % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
    except BaseException:
        for stream in streams:
            stream.abort()
        ticket.settle(0)
        raise
    return streams
