"""Greedy streams on an idle engine in this process: their prompts together, then decode steps by the clock.

What is decoded may be measured in several pieces, with whatever else is to be measured in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from lpx.errors import ConfigError

if TYPE_CHECKING:
    from lpx.engine.engine import Engine
    from lpx.engine.outputs import RequestDelta


@dataclass(frozen=True, slots=True)
class Pass:
    """Decode steps in which all streams got a token."""

    steps: int
    seconds: float
    mean_context: float


class Streams:
    """One request a prompt (token ids, all equally long), that nothing drafts for; leaving the context aborts them.

    Prompts that are computed in several steps begin to decode one after the other, so the requests are for as many
    tokens as fit (or `max_tokens`) and are aborted when no more are wanted.
    """

    def __init__(self, engine: Engine, prompts: list[list[int]], max_tokens: int | None = None) -> None:
        self._engine, self._prompts = engine, prompts
        self._max_tokens = max_tokens or engine.info.max_model_len - len(prompts[0])
        self._last = max_tokens == 1
        self._ended = False

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *ending: object) -> None:
        self._engine.abort_all()

    def prefill(self) -> float:
        """Seconds until all prompts have their first token."""
        from lpx.engine.sampling_params import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=self._max_tokens, ignore_eos=True, speculative="off")
        started = perf_counter()
        waiting = {self._engine.add_request(prompt, params) for prompt in self._prompts}
        while waiting:
            for delta in self._step():
                if delta.token_ids:
                    waiting.discard(delta.request_id)
                self._ended = self._ended or delta.finish_reason is not None
        seconds = perf_counter() - started
        if self._ended and not self._last:
            raise ConfigError(
                "the first stream was at the end of its context before the last one began to decode; raise "
                "--max-num-batched-tokens or --max-model-len, or lower --batch-size or --input-len"
            )
        return seconds

    def decode(self, steps: int) -> Pass:
        """`steps` steps after `prefill`, fewer when a stream is at the end of its context.

        Raises ConfigError when a stream lost its place to the others.
        """
        running = self._engine.scheduler.running
        context = sum(len(sequence.tokens) for sequence in running) / len(self._prompts)
        done = 0
        started = perf_counter()
        while done < steps and not self._ended:
            deltas = self._step()
            if len(deltas) < len(self._prompts):
                raise ConfigError("the KV cache is too small for all streams at once; raise --kv-cache-memory")
            done += min(len(delta.token_ids) for delta in deltas)  # the engine may run several steps at once
            self._ended = any(delta.finish_reason is not None for delta in deltas)
        return Pass(done, perf_counter() - started, context + (done - 1) / 2)

    def _step(self) -> list[RequestDelta]:
        deltas = self._engine.step()
        for delta in deltas:
            if delta.error is not None:
                raise delta.error
        return deltas
