"""Puts a load on a server and gathers what comes of it."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, TypeVar

from lpx.bench.load.answer import Answer, answer_steps
from lpx.bench.load.http_client import Clock, Exchange, HttpClient, RequestFailedError
from lpx.bench.load.kept_answers import KeptAnswers
from lpx.bench.load.pace import due_times
from lpx.bench.load.prompt import Job, Message, Prompt, request_body
from lpx.bench.load.prompt_sets import MOST_WARMUPS_AT_ONCE, PromptSet, make_prompts
from lpx.bench.load.prompt_supply import PromptSupply
from lpx.bench.load.report import Failure, LoadReport, RecountedTokens, Result
from lpx.bench.load.server_facts import ServerUnreachableError, read_facts
from lpx.bench.load.settings import LoadSettings
from lpx.bench.load.timings import recounted, timings_of
from lpx.bench.load.token_counter import TokenCounter, find_counter
from lpx.bench.load.warnings import load_warnings
from lpx.bench.measurement import Measurement, Subject
from lpx.shown_key import check_shown_key

T = TypeVar("T")

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
    return check_shown_key(given or os.environ.get("LPX_API_KEY") or os.environ.get("OPENAI_API_KEY"))


async def measure_load(
    settings: LoadSettings,
    progress: Tell | None = None,
    *,
    api_key: str | None = None,
    clock: Clock = time.perf_counter,
    stopping: asyncio.Event | None = None,
    sent_before: int = 0,
) -> LoadReport:
    """Put the load on the server and report.

    `api_key` None takes `LPX_API_KEY` or `OPENAI_API_KEY` from the environment. `clock` must be monotonic. When
    `stopping` is set, the report tells what was measured until then. `sent_before` are requests of the same set that
    the server was just sent, by loads before this one. Raises ServerUnreachableError when the server
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
    load = _Load(settings, client, clock, tell, sent_before)
    try:
        if await unless(stopping, load.prepare()):
            await unless(stopping, load.run())
            if not stopping.is_set():
                await unless(stopping, load.recount())
        return load.report(interrupted=stopping.is_set())
    finally:
        await client.close()


async def unless(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
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
    sent_before: int = 0
    nonce: str = ""
    subject: Subject | None = None
    model: str | None = None
    counter: TokenCounter | None = None
    prompts: PromptSet | None = None
    warmups: int = 0  # done
    warnings: list[str] = field(default_factory=list)
    kept: KeptAnswers = field(default_factory=KeptAnswers)
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
        facts = await read_facts(self.client, settings)
        self.model, self.subject = facts.model, facts.subject
        self.counter = await find_counter(self.client, self.model, settings.tokenizer)
        self.nonce = settings.nonce or secrets.token_hex(4)
        self.prompts = await _made(
            make_prompts(
                settings, self.counter, self.nonce, lambda done, total: self.tell(LoadProgress("prompts", done, total))
            )
        )
        await self._warm_up()

    async def _warm_up(self) -> None:
        assert self.prompts is not None
        wanted = self.prompts.warmups
        numbers, failed = iter(range(wanted)), list[RequestFailedError]()
        self.warmups = 0

        async def worker() -> None:
            assert self.prompts is not None
            for number in numbers:
                self.tell(LoadProgress("warm-up", self.warmups, wanted, failed=len(failed)))
                error = await self._warm(await _made(self.prompts.warm_up(number)))
                self.warmups += 1
                if error is not None:
                    failed.append(error)
                if len(failed) == self.warmups >= MOST_WARMUPS_AT_ONCE:  # it answers nothing
                    return

        self.tell(LoadProgress("warm-up", 0, wanted))
        at_once = self.settings.max_concurrency or MOST_WARMUPS_AT_ONCE
        await _all(worker() for _ in range(min(wanted, at_once)))
        if failed and len(failed) == self.warmups:
            raise ServerUnreachableError(
                f"{self.settings.base_url}{self.settings.path} answers no request; the first one: "
                f"{failed[0].kind}: {failed[0].detail}"
            )
        if failed:
            self.warnings.append(f"{len(failed)} of {self.warmups} requests of the warm-up failed: {failed[0].kind}")

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
        assert self.prompts is not None
        jobs = self.prompts.supply.count
        await _all(self._worker(self.prompts.supply) for _ in range(min(self.settings.max_concurrency or jobs, jobs)))

    async def _worker(self, supply: PromptSupply) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < self.deadline and (job := await _made(supply.next())) is not None:
            await self._job(job, 0.0)

    async def _open_loop(self) -> None:
        """Jobs begin when they are due, whether others have ended or not; `max_concurrency` bounds them."""
        import random

        assert self.prompts is not None
        loop, supply = asyncio.get_running_loop(), self.prompts.supply
        start = loop.time()
        room = asyncio.Semaphore(self.settings.max_concurrency or supply.count)
        under_way: set[asyncio.Task[None]] = set()
        errors: list[BaseException] = []

        def over(task: asyncio.Task[None]) -> None:
            under_way.discard(task)
            room.release()
            if not task.cancelled() and (error := task.exception()) is not None:
                errors.append(error)

        try:
            for after in due_times(self.settings, supply.count, random.Random(f"{self.settings.seed}:pace")):
                at = start + after
                if at >= self.deadline or (job := await _made(supply.next())) is None:
                    break
                await asyncio.sleep(at - loop.time())
                await room.acquire()
                if errors or loop.time() >= self.deadline:
                    break
                task = asyncio.ensure_future(self._job(job, loop.time() - at))
                under_way.add(task)
                task.add_done_callback(over)
            if under_way:
                await asyncio.wait(under_way)
            if errors:
                raise errors[0]
        finally:
            rest = list(under_way)
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

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
            self.failures.append(Failure(number, error.kind, error.detail))
            return None
        finally:
            self.running -= 1
        self.output_tokens += answer.output_tokens or 0
        self.results.append(
            self.kept.bounded(
                Result(
                    number=number,
                    sent_s=answer.sent_s - self.began_s,
                    late_s=late_s,
                    wanted_input=prompt.input_len,
                    wanted_output=prompt.output_len,
                    timings=timings_of(answer),
                    text=answer.content,
                    hidden=answer.hidden,
                    finish_reason=answer.finish_reason,
                    streamed=answer.streamed,
                )
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
                    0 if self.prompts is None else self.prompts.requests,
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
                if result.text is None or result.hidden is None:  # not kept
                    continue
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
            sent=self.sent,
            sent_before=self.sent_before,
            peak_concurrency=self.peak,
            recounted=self.recounted,
            late_ticks=self.late_ticks / self.ticks if self.ticks else 0.0,
            ran_out=self.ran_out,
            kept=self.kept,
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
            warmups=self.warmups,
            lengths="" if self.prompts is None else self.prompts.lengths(),
            warnings=(*self.warnings, *warnings),
            recounted=self.recounted,
            nonce=self.nonce,
            peak_concurrency=self.peak,
        )


async def _made(making: Awaitable[T]) -> T:
    """A prompt or all of them. Raises ServerUnreachableError where the server was to count its tokens, and failed."""
    try:
        return await making
    except RequestFailedError as error:
        raise ServerUnreachableError(f"the server stopped counting tokens: {error.kind}: {error.detail}") from None


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
