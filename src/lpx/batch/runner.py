"""One run over a file: so many requests at once, each tried again where that helps, each result written when it comes.

Memory does not grow with the file: lines are read when a worker is free, and results leave at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic, perf_counter, time

from lpx.batch.errors import TargetGone, TargetUnreachable
from lpx.batch.input_file import InputFile, Line
from lpx.batch.line_request import LineError, LineRequest, request_of
from lpx.batch.output_file import OutputFile
from lpx.batch.progress import Progress
from lpx.batch.result_line import Attempts, answered_line, error_of, refused_line, unanswered_line
from lpx.batch.retrying import Backoff, is_worth_a_retry
from lpx.batch.target import Answer, Target
from lpx.off_loop import off_loop

SYNC_EVERY_S = 1.0  # what a power cut may cost, at most
_GONE_AFTER = 10  # lines in a row that nobody answered, all attempts used up; or twice as many as run at once


@dataclass(frozen=True, slots=True)
class RunSettings:
    max_inflight: int = 16  # requests at once
    retries: int = 3  # attempts after the first
    # How long one line may wait in all because the server says when to come again; such waits are no retries, unless
    # they are shorter than our own.
    patience_s: float = 600.0
    endpoint: str | None = None  # every line must be for it
    backoff: Backoff = field(default_factory=Backoff)


@dataclass(frozen=True, slots=True)
class Finished:
    """One line that has its result, for logs: no text."""

    index: int
    number: int
    custom_id: str | None
    status: int | None  # None: nobody answered
    error: str | None  # its code
    attempts: int
    total_ms: float


class _StoppedWaiting(Exception):
    """The run was stopped while a line waited for its next attempt: it has no result yet."""


class BatchRun:
    """Runs once. `stop` and `stop_now` may be called on its event loop at any time."""

    def __init__(
        self,
        source: InputFile,
        output: OutputFile,
        target: Target,
        settings: RunSettings,
        progress: Progress,
        on_finished: Callable[[Finished], None] = lambda _: None,
    ) -> None:
        self.progress = progress
        self._stopping = asyncio.Event()
        self._source = source
        self._output = output
        self._target = target
        self._settings = settings
        self._on_finished = on_finished
        self._lines = self._missing_lines()
        self._workers: list[asyncio.Task[None]] = []
        self._not_before = 0.0  # monotonic; the server asked all to wait
        self._unanswered = 0  # lines in a row

    @property
    def stopped(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Begin nothing more; what a target has is finished, and what waits for another attempt is left undone."""
        self._stopping.set()

    def stop_now(self) -> None:
        """End what runs; it has no results, and is done by the next run."""
        self._stopping.set()
        for worker in self._workers:
            worker.cancel()

    async def run(self) -> None:
        """Until every line has its result, or the run was stopped.

        Raises `OutputWriteError`, `BatchFileError` (the input cannot be read any more) and `TargetGone`; what was
        written before is sound, and the rest is for the next run.
        """
        self._workers = [asyncio.create_task(self._work()) for _ in range(self._settings.max_inflight)]
        syncing = asyncio.create_task(self._sync_by_time())
        try:
            done, _ = await asyncio.wait(self._workers, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for worker in self._workers:
                worker.cancel()
            await asyncio.wait(self._workers)
            syncing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await syncing
        for worker in done:
            if not worker.cancelled() and (error := worker.exception()) is not None:
                raise error
        await asyncio.to_thread(self._output.sync)

    def _missing_lines(self) -> Iterator[Line]:
        return (line for line in self._source.lines() if not self._output.has(line.index))

    async def _work(self) -> None:
        while not self.stopped and (line := next(self._lines, None)) is not None:
            self.progress.in_flight += 1
            try:
                await self._do(line)
            except _StoppedWaiting:
                return
            finally:
                self.progress.in_flight -= 1

    async def _do(self, line: Line) -> None:
        name = f"batch_req_{uuid.uuid4().hex}"
        begun, started_at = perf_counter(), time()
        try:
            request = await off_loop(line.data or b"", lambda: request_of(line, self._settings.endpoint))
        except LineError as exc:
            self._write(line, refused_line(name, line, exc, Attempts(0, started_at, 0.0, 0.0)))
            self._note(line, exc.custom_id, 400, exc.code, 0, 0.0)
            await asyncio.sleep(0)  # a file of nothing but bad lines leaves room for others, too
            return
        count, last_ms, result = await self._attempt(request, name)
        total_ms = 1e3 * (perf_counter() - begun)
        attempts = Attempts(count, started_at, last_ms, total_ms)
        if isinstance(result, Answer):
            self._unanswered = 0
            self._write(line, answered_line(name, line, request.custom_id, result, attempts))
            self.progress.note_usage(result.body)
            error = error_of(result)
            code = None if error is None else error["code"]
            self._note(line, request.custom_id, result.status, code, count, total_ms)
            return
        self._unanswered += 1
        if self._unanswered >= max(_GONE_AFTER, 2 * self._settings.max_inflight):
            raise TargetGone(
                f"{self._unanswered} lines in a row had no answer, the last one because: {result}. The run stops; when "
                "the server is there again, go on with --resume (and --retry-failed for those lines)"
            )
        self._write(line, unanswered_line(name, line, request.custom_id, "no_answer", str(result), attempts))
        self._note(line, request.custom_id, None, "no_answer", count, total_ms)

    async def _attempt(self, request: LineRequest, name: str) -> tuple[int, float, Answer | TargetUnreachable]:
        """Attempts made, milliseconds of the last one, and how it ended."""
        backoff = self._settings.backoff
        count = retries = 0
        waited = 0.0
        result: Answer | TargetUnreachable
        while True:
            while (wait := self._not_before - monotonic()) > 0:
                await self._pause(wait)
            count += 1
            begun = perf_counter()
            try:
                result = await self._target.send(request, name)
            except TargetUnreachable as exc:
                result = exc
            last_ms = 1e3 * (perf_counter() - begun)
            if isinstance(result, Answer):
                if not is_worth_a_retry(result.status):
                    return count, last_ms, result
                asked = result.retry_after_s
                if asked is not None and self._is_worth_waiting(asked, waited):
                    self._not_before = max(self._not_before, monotonic() + asked)
                    self.progress.retries += 1
                    pause = asked + backoff.pause_s(1) / 2  # not all at once when the time has come
                    waited += pause
                    await self._pause(pause)
                    continue
            if retries >= self._settings.retries:
                return count, last_ms, result
            retries += 1
            self.progress.retries += 1
            await self._pause(backoff.pause_s(retries))

    def _is_worth_waiting(self, asked: float, waited: float) -> bool:
        """Whether to come again when the server says. A wait of nothing would be no bound on how often."""
        settings = self._settings
        return bool(settings.retries) and settings.backoff.first_s <= asked <= settings.patience_s - waited

    async def _pause(self, seconds: float) -> None:
        """Raises `_StoppedWaiting` when the run is stopped before or meanwhile."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
            raise _StoppedWaiting

    def _write(self, line: Line, data: bytes) -> None:
        self._output.append(line.index, data)

    def _note(
        self, line: Line, custom_id: str | None, status: int | None, error: str | None, attempts: int, total_ms: float
    ) -> None:
        if error is None:
            self.progress.succeeded += 1
        else:
            self.progress.failed += 1
            self.progress.failures.note(error, status, line.number)
        self._on_finished(Finished(line.index, line.number, custom_id, status, error, attempts, total_ms))

    async def _sync_by_time(self) -> None:
        while True:
            await asyncio.sleep(SYNC_EVERY_S)
            await asyncio.to_thread(self._output.sync)
