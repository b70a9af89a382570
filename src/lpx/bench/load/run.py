"""Puts a load on a server and gathers what comes of it."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from lpx.bearer_key import check_bearer_key
from lpx.bench.load.answer import Answer, answer_steps
from lpx.bench.load.http_client import Clock, Exchange, HttpClient, RequestFailedError
from lpx.bench.load.pace import due_times
from lpx.bench.load.prompt import Job, Message, Prompt, request_body
from lpx.bench.load.prompt_sets import PromptSet, make_prompts
from lpx.bench.load.report import Failure, LoadReport, RecountedTokens, Result
from lpx.bench.load.server_facts import ServerUnreachableError, read_subject
from lpx.bench.load.settings import LoadSettings
from lpx.bench.load.timings import recounted, timings_of
from lpx.bench.load.token_counter import TokenCounter, find_counter
from lpx.bench.load.warnings import load_warnings
from lpx.bench.measurement import Measurement, Subject

_TICK_S = 0.25
_LATE_TICK_S = 0.02
_RECOUNTED_ANSWERS = 64


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Where a load stands."""

    phase: str  # "prompts", "warm-up", "load", "recount"
    done: int = 0
    total: int = 0
    running: int = 0
    failed: int = 0
    output_tokens: int = 0  # of whole answers
    seconds: float = 0.0


Tell = Callable[[LoadProgress], None]


def checked_key(given: str | None) -> str | None:
    """The given key, else that of `LPX_API_KEY` or `OPENAI_API_KEY`. Raises ConfigError for what cannot be one."""
    key = given or os.environ.get("LPX_API_KEY") or os.environ.get("OPENAI_API_KEY") or None
    if key is not None:
        check_bearer_key(key)
    return key


async def measure_load(
    settings: LoadSettings,
    progress: Tell | None = None,
    *,
    api_key: str | None = None,
    clock: Clock = time.perf_counter,
    stopping: asyncio.Event | None = None,
) -> LoadReport:
    """Put the load on the server and report.

    `api_key` None takes `LPX_API_KEY` or `OPENAI_API_KEY` from the environment. `clock` must be monotonic. When
    `stopping` is set, the report tells what was measured until then. Raises ServerUnreachableError when the server
    takes no request at all, ConfigError when the settings do not fit the server or their file cannot be used.
    """
    tell = progress or (lambda state: None)
    stopping = stopping or asyncio.Event()
    client = HttpClient(
        settings.base_url,
        clock,
        api_key=checked_key(api_key),
        insecure=settings.insecure,
        timeout_s=settings.request_timeout_s,
    )
    load = _Load(settings, client, clock, tell)
    try:
        if await _unless(stopping, load.prepare()):
            await _unless(stopping, load.run())
            if not stopping.is_set():
                await _unless(stopping, load.recount())
        return load.report(interrupted=stopping.is_set())
    finally:
        await client.close()


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether `work` came to its end before `stopping` was set."""
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        for each in (task, stop):
            each.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)


@dataclass(slots=True)
class _Load:
    """One load: its state, and what came of it so far."""

    settings: LoadSettings
    client: HttpClient
    clock: Clock
    tell: Tell
    nonce: str = ""
    subject: Subject | None = None
    model: str | None = None
    counter: TokenCounter | None = None
    prompts: PromptSet = field(default_factory=lambda: PromptSet((), (), ""))
    warnings: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    recounted: RecountedTokens | None = None
    started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    began_s: float = 0.0  # of the clock
    began: float = 0.0  # of the loop's time
    ended_s: float = 0.0
    deadline: float = float("inf")  # of the loop's time
    sent: int = 0
    running: int = 0
    peak: int = 0
    output_tokens: int = 0
    ticks: int = 0
    late_ticks: int = 0
    left_out: int = 0
    ran_out: bool = False

    async def prepare(self) -> None:
        """Everything before the load: the server's facts, the prompts, the warm-up."""
        settings = self.settings
        self.subject = await read_subject(self.client, settings)
        self.model = settings.model or (None if self.subject.model == "unknown" else self.subject.model)
        self.counter = await find_counter(self.client, self.model, settings.tokenizer)
        self.nonce = settings.nonce or secrets.token_hex(4)
        try:
            self.prompts = await make_prompts(
                settings, self.counter, self.nonce, lambda done, total: self.tell(LoadProgress("prompts", done, total))
            )
        except RequestFailedError as error:
            raise ServerUnreachableError(f"the server stopped counting tokens: {error.kind}: {error.detail}") from None
        await self._warm_up()

    async def _warm_up(self) -> None:
        warmups = self.prompts.warmups
        self.tell(LoadProgress("warm-up", 0, len(warmups)))
        failed = [error for error in await asyncio.gather(*map(self._warm, warmups)) if error is not None]
        if failed and len(failed) == len(warmups):
            raise ServerUnreachableError(
                f"{self.settings.base_url}{self.settings.path} answers no request; the first one: "
                f"{failed[0].kind}: {failed[0].detail}"
            )
        if failed:
            self.warnings.append(f"{len(failed)} of {len(warmups)} requests of the warm-up failed: {failed[0].kind}")

    async def _warm(self, prompt: Prompt) -> RequestFailedError | None:
        try:
            body = request_body(self.settings, self.model, prompt)
            await _read(await self.client.post(self.settings.path, body))
        except RequestFailedError as error:
            return error
        return None

    async def run(self) -> None:
        """Send all requests; at the end everything is over or cancelled."""
        loop = asyncio.get_running_loop()
        self.began = loop.time()
        if self.settings.duration_s is not None:
            self.deadline = self.began + self.settings.duration_s
        ticker = asyncio.ensure_future(self._tick())
        self.started, self.began_s = datetime.now(timezone.utc), self.clock()
        self.ended_s = self.began_s
        try:
            await (self._open_loop() if self.settings.paced else self._closed_loop())
            self.ran_out = loop.time() < self.deadline < float("inf")
        finally:
            self.left_out = self.sent - len(self.results) - len(self.failures)
            ticker.cancel()

    async def _closed_loop(self) -> None:
        """A new job begins when another one ends."""
        jobs = iter(self.prompts.jobs)
        workers = min(self.settings.max_concurrency or len(self.prompts.jobs), len(self.prompts.jobs))
        await _all(self._worker(jobs) for _ in range(workers))

    async def _worker(self, jobs: Iterator[Job]) -> None:
        loop = asyncio.get_running_loop()
        for job in jobs:
            if loop.time() >= self.deadline:
                return
            await self._job(job, 0.0)

    async def _open_loop(self) -> None:
        """Jobs begin when they are due, whether others have ended or not; `max_concurrency` bounds them."""
        import random

        loop = asyncio.get_running_loop()
        start = loop.time()
        room = asyncio.Semaphore(self.settings.max_concurrency or len(self.prompts.jobs) or 1)
        due = due_times(self.settings, len(self.prompts.jobs), random.Random(f"{self.settings.seed}:pace"))

        async def begin(job: Job, at: float) -> None:
            await asyncio.sleep(at - loop.time())
            async with room:
                if loop.time() < self.deadline:
                    await self._job(job, loop.time() - at)

        await _all(
            begin(job, start + at) for job, at in zip(self.prompts.jobs, due, strict=True) if start + at < self.deadline
        )

    async def _job(self, job: Job, late_s: float) -> None:
        history: list[Message] = []
        loop = asyncio.get_running_loop()
        for turn in job.turns:
            if loop.time() >= self.deadline:
                return
            answer = await self._request(turn, history, late_s)
            if answer is None:
                return  # the rest of the conversation would miss this answer
            late_s = 0.0
            if len(job.turns) > 1:
                assert isinstance(turn.content, str)
                history += [{"role": "user", "content": turn.content}, {"role": "assistant", "content": answer.content}]

    async def _request(self, prompt: Prompt, history: list[Message], late_s: float) -> Answer | None:
        number = self.sent
        self.sent += 1
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            exchange = await self.client.post(
                self.settings.path, request_body(self.settings, self.model, prompt, history)
            )
            self.ended_s = exchange.ended_s
            answer = await _read(exchange)
        except RequestFailedError as error:
            self.ended_s = self.clock()
            self.failures.append(Failure(number, error.kind, self.client.redacted(error.detail)))
            return None
        finally:
            self.running -= 1
        self.output_tokens += answer.output_tokens or 0
        self.results.append(
            Result(
                number=number,
                sent_s=answer.sent_s - self.began_s,
                late_s=late_s,
                wanted_input=prompt.input_len,
                timings=timings_of(answer),
                text=answer.content,
                hidden=answer.hidden,
                finish_reason=answer.finish_reason,
                streamed=answer.streamed,
            )
        )
        return answer

    async def _tick(self) -> None:
        """Tell the progress now and then, and see whether this client keeps up with its own clock."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self.ticks += 1
            self.late_ticks += loop.time() - due > _LATE_TICK_S
            self.tell(
                LoadProgress(
                    "load",
                    len(self.results) + len(self.failures),
                    self.prompts.requests,
                    self.running,
                    len(self.failures),
                    self.output_tokens,
                    loop.time() - self.began,
                )
            )

    async def recount(self) -> None:
        """Encode answers again: those that the server did not count, and some others to see whether it counts right."""
        if self.counter is None:
            return
        checked, counted, recounts = 0, 0, 0
        try:
            for at, result in enumerate(self.results):
                timings = result.timings
                if timings.output_tokens is not None and checked == _RECOUNTED_ANSWERS:
                    continue
                self.tell(LoadProgress("recount", at, len(self.results)))
                tokens = await self._tokens_of(self.counter, result)
                if timings.output_tokens is None:
                    self.results[at] = replace(result, timings=recounted(timings, tokens))
                elif not result.hidden:  # what a template puts around thoughts and calls is not known here
                    checked, counted, recounts = checked + 1, counted + timings.output_tokens, recounts + tokens
        except RequestFailedError as error:
            self.warnings.append(f"answers could not be counted again: {error.kind}: {error.detail}")
        if checked:
            self.recounted = RecountedTokens(checked, counted, recounts)

    async def _tokens_of(self, counter: TokenCounter, result: Result) -> int:
        texts = [text for text in (result.text, result.hidden) if text]
        return sum([await counter.count(text, special=False) for text in texts])

    def report(self, interrupted: bool) -> LoadReport:
        settings = self.settings
        warnings = load_warnings(
            settings,
            self.prompts,
            self.results,
            peak_concurrency=self.peak,
            recounted=self.recounted,
            late_ticks=self.late_ticks / self.ticks if self.ticks else 0.0,
            ran_out=self.ran_out,
        )
        unknown = Subject(model=settings.model or "unknown", engine="unknown", url=settings.base_url)
        return LoadReport(
            settings=settings,
            subject=self.subject or unknown,
            started=self.started,
            seconds=self.ended_s - self.began_s,
            results=tuple(self.results),
            failures=tuple(self.failures),
            left_out=self.left_out,
            interrupted=interrupted,
            warmups=len(self.prompts.warmups),
            lengths=self.prompts.lengths,
            warnings=(*self.warnings, *warnings),
            recounted=self.recounted,
            nonce=self.nonce,
            peak_concurrency=self.peak,
        )


async def _all(work: Iterator[Coroutine[Any, Any, None]]) -> None:
    """Run all of it; the first error, or a cancel, ends the rest."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(exchange: Exchange) -> Answer:
    """The answer, read in pieces between which the loop stamps what arrives for others."""
    steps = answer_steps(exchange)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        await asyncio.sleep(0)


def measure_load_again(settings: Mapping[str, Any]) -> Measurement:
    """Run the load that the settings of a Measurement describe. Raises as `measure_load` does."""
    return asyncio.run(measure_load(LoadSettings.from_json(settings))).measurement()
