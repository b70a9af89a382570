"""What is run to compare engines: a small set of real tasks, in English and Chinese, about text and code.

`prompts.jsonl` holds them. Real text matters, because drafting pays by what a text repeats. Every request has an
isolation key of its own, so nothing that a prefix cache or a draft remembers from an earlier round helps a later one.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any

from lpx.errors import ConfigError

if TYPE_CHECKING:
    from lpx.engine.engine import Engine

PROMPTS = Path(__file__).with_name("prompts.jsonl")
LEAST_TOKENS = 16  # of an answer; the time between fewer tokens cannot be told well
_ANSWER_TOKENS = 128  # that the time of an answer is given for, whatever its length was

_salts = itertools.count()


@dataclass(frozen=True, slots=True)
class Workload:
    """How much of the set is run, and how many requests at once."""

    prompts: int = 8  # the first so many of the set
    max_tokens: int = 64  # of each answer, which ends earlier where it ends
    concurrency: int = 1
    requests: int = 8  # of a round; prompts take turns

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Round:
    """All requests once."""

    score: float  # higher is better: answers of 128 tokens a second, or tokens a second of all streams
    seconds: float
    tokens: int
    ttft_ms: tuple[float, ...]  # a request each
    itl_ms: tuple[float, ...]
    answers: tuple[tuple[int, ...], ...]  # token ids, a request each


@functools.cache
def texts() -> tuple[str, ...]:
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line)["text"] for line in lines)


def encode_prompts(engine: Engine, workload: Workload) -> list[list[int]]:
    """The prompts that fit the context, in the model's chat template where it has one. Raises ConfigError for none."""
    room = engine.info.max_model_len - workload.max_tokens
    encoded = [_encode(engine, text) for text in texts()[: workload.prompts]]
    fitting = [ids for ids in encoded if len(ids) <= room]
    if not fitting:
        raise ConfigError(
            f"no prompt of the tuning set fits a context of {engine.info.max_model_len} tokens; raise --max-model-len"
        )
    return fitting


def _encode(engine: Engine, text: str) -> list[int]:
    if engine.chat_template is None:
        return engine.encode_prompt(text)
    return engine.encode_chat([{"role": "user", "content": text}])


def run_round(engine: Engine, prompts: Sequence[list[int]], workload: Workload) -> Round:
    """Answer `workload.requests` requests, so many at once, greedily. The engine must be idle; it is afterwards."""
    requests = iter(range(workload.requests))
    running: dict[str, _Request] = {}
    done: list[_Request] = []
    started = perf_counter()
    try:
        for number in itertools.islice(requests, workload.concurrency):
            _begin(engine, prompts, number, workload, running)
        while running:
            for delta in engine.step():
                request = running[delta.request_id]
                request.take(delta.token_ids, perf_counter())
                if delta.error is not None:
                    raise delta.error
                if delta.finish_reason is not None:
                    done.append(running.pop(delta.request_id))
                    for number in itertools.islice(requests, 1):
                        _begin(engine, prompts, number, workload, running)
    finally:
        engine.abort_all()
    seconds = perf_counter() - started
    done.sort(key=lambda request: request.number)
    tokens = sum(len(request.ids) for request in done)
    ttft = tuple(request.ttft_ms for request in done)
    itl = tuple(request.itl_ms for request in done)
    if workload.concurrency > 1:
        score = tokens / seconds
    else:  # the geometric mean, so that every prompt counts alike
        score = math.exp(-fmean(math.log(1e-3 * _answer_ms(a, b)) for a, b in zip(ttft, itl, strict=True)))
    return Round(score, seconds, tokens, ttft, itl, tuple(tuple(request.ids) for request in done))


def _answer_ms(ttft_ms: float, itl_ms: float) -> float:
    return ttft_ms + (_ANSWER_TOKENS - 1) * itl_ms


def _begin(
    engine: Engine, prompts: Sequence[list[int]], number: int, workload: Workload, running: dict[str, _Request]
) -> None:
    from lpx.engine.sampling_params import SamplingParams

    params = SamplingParams(
        temperature=0.0,
        max_tokens=workload.max_tokens,
        min_tokens=min(LEAST_TOKENS, workload.max_tokens),
        cache_salt=f"tune-{next(_salts)}",
    )
    request_id = engine.add_request(prompts[number % len(prompts)], params)
    running[request_id] = _Request(number, perf_counter())


class _Request:
    """Times of one request."""

    def __init__(self, number: int, started: float) -> None:
        self.number, self._started = number, started
        self.ids: list[int] = []
        self._first = self._last = 0.0
        self._with_first = 0

    def take(self, ids: Sequence[int], now: float) -> None:
        if not ids:
            return
        if not self.ids:
            self._first, self._with_first = now, len(ids)
        self.ids += ids
        self._last = now

    @property
    def ttft_ms(self) -> float:
        return 1e3 * (self._first - self._started)

    @property
    def itl_ms(self) -> float:
        """Mean time between tokens, from the first ones on: what came with the first took no time of its own."""
        later = len(self.ids) - self._with_first
        return 1e3 * (self._last - self._first) / later if later else 0.0


def sized(workload: Workload, seconds: float, wanted_seconds: float) -> Workload:
    """A workload that takes about `wanted_seconds`, where `workload` took `seconds`.

    Answers are made longer or shorter; prompts are left out only when the shortest answers take too long.
    """
    factor = wanted_seconds / max(seconds, 1e-3)
    max_tokens = max(2 * LEAST_TOKENS, min(_ANSWER_TOKENS, int(workload.max_tokens * factor)))
    left = factor * workload.max_tokens / max_tokens  # what shortening the answers leaves to do
    prompts = workload.prompts if left > 0.7 else max(3, round(workload.prompts * left))
    requests = max(workload.concurrency, prompts) if workload.concurrency > 1 else prompts
    return Workload(prompts, max_tokens, workload.concurrency, requests)


def first_workload(concurrency: int) -> Workload:
    """Before anything is known about the speed."""
    prompts = len(texts())
    return Workload(prompts, 48, concurrency, prompts if concurrency == 1 else max(prompts, concurrency))


def joined(rounds: Iterator[tuple[float, ...]] | Sequence[tuple[float, ...]]) -> list[float]:
    return [value for values in rounds for value in values]
