"""Runs the batches of the store, behind what people ask for now.

One batch of each owner runs at a time, the oldest first, and a few owners side by side. Their requests have a low
priority in the engine, a bound on how many run at once, and a lower bound while others are answered. What was asked for
outlives the process: a batch that was running goes on where its results end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpx.batch.checking import check_input
from lpx.batch.errors import OutputWriteError, TargetGone
from lpx.batch.input_file import InputFile, LineCount
from lpx.batch.line_request import LineRequest
from lpx.batch.output_file import OutputFile, open_output
from lpx.batch.progress import Progress
from lpx.batch.results import Split, split_results, unanswered_lines
from lpx.batch.runner import BatchRun, RunSettings
from lpx.batch.store import BatchStore, NotThere, StoredBatch, StoreUnwritable
from lpx.batch.target import Answer
from lpx.errors import LpxError
from lpx.server.caller import Caller
from lpx.server.in_process import EndpointTarget
from lpx.server.log_format import trimmed_frames
from lpx.server.service import Service

if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger("lpx.server")

PRIORITY = 1000  # of requests of batches, at least; those of people have 0 unless they say otherwise
_OWNERS_AT_ONCE = 4
_BESIDE_OTHERS = 4  # requests of batches while others are answered: four rows cost little more than one
_LOOK_S = 0.25  # between looks whether others are answered
_UPKEEP_S = 600.0
_REST_S = 30.0  # after a write that failed
_SAVE_COUNTS_S = 2.0
_KEY_GRACE_S = 600.0  # a key that is missing for longer was taken away
_KEY_LOOK_S = 1.0
_DUPLICATE = "duplicate_custom_id"


class _KeyGone(LpxError):
    """Nobody may ask for a batch's owner any more."""


@dataclass(slots=True)
class _Running:
    batch: StoredBatch
    task: asyncio.Task[None] | None = None
    run: BatchRun | None = None
    progress: Progress = field(default_factory=Progress)
    cancelled: bool = False
    expired: bool = False
    key_was_taken: bool = False  # and not only missing for a moment, as while somebody edits the key file


class BatchQueue:
    """Owns the running batches of one application."""

    def __init__(self, app: FastAPI, service: Service, store: BatchStore, max_inflight: int) -> None:
        self._app = app
        self._service = service
        self._store = store
        self._max_inflight = max_inflight
        self._running: dict[str, _Running] = {}  # by owner
        self._keyless_since: dict[str, float] = {}  # by owner, monotonic: batches that wait for their key
        self._wake = asyncio.Event()
        self._in_flight = 0
        self._freed = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None

    # --- for the endpoints ---

    def notice(self) -> None:
        """There is a new batch."""
        self._wake.set()

    def counts(self, batch: StoredBatch) -> tuple[int, int, int]:
        """Lines in all, answered, failed: of this moment."""
        running = self._running.get(batch.owner)
        if running is None or running.batch.id != batch.id or batch.status != "in_progress":
            return batch.total, batch.completed, batch.failed
        return running.progress.total, *_counts(running.progress)

    def cancel(self, batch: StoredBatch) -> None:
        """What runs of it ends now; the store says "cancelling" already."""
        running = self._running.get(batch.owner)
        if running is not None and running.batch.id == batch.id:
            running.cancelled = True
            if running.run is not None:
                running.run.stop_now()
        self._wake.set()

    # --- life ---

    def start(self) -> None:
        """Begin when the engine serves; from a coroutine."""
        self._loop_task = asyncio.get_running_loop().create_task(self._serve())

    async def close(self) -> None:
        """End what runs, for the next start to go on with."""
        if self._loop_task is not None:
            self._loop_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop_task
        tasks = [running.task for running in self._running.values() if running.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.to_thread(self._store.close)

    async def _serve(self) -> None:
        loaded = getattr(self._app.state, "loaded", None)
        if loaded is not None:
            await asyncio.wait({loaded})
        while True:
            self._wake.clear()
            try:
                if self._service.state == "ok":
                    await self._begin_batches()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), _KEY_LOOK_S if self._keyless_since else _UPKEEP_S)
                await asyncio.to_thread(self._store.expire)
            except (StoreUnwritable, OSError, sqlite3.Error) as exc:  # a full disk: there may be room later
                logger.error("files and batches are looked at again in %g s: %s", _REST_S, exc)
                await asyncio.sleep(_REST_S)

    async def _begin_batches(self) -> None:
        unfinished = await asyncio.to_thread(self._store.unfinished)
        owners = {batch.owner for batch in unfinished}
        self._keyless_since = {owner: since for owner, since in self._keyless_since.items() if owner in owners}
        for batch in unfinished:
            if len(self._running) >= _OWNERS_AT_ONCE or batch.owner in self._running:
                continue
            cancelled, keyless_s = batch.status == "cancelling", self._keyless_s(batch)
            if keyless_s is not None and keyless_s < _KEY_GRACE_S and not cancelled:
                continue
            running = self._running[batch.owner] = _Running(
                batch, cancelled=cancelled, key_was_taken=keyless_s is not None
            )
            running.task = asyncio.create_task(self._carry_out(running))

    def _keyless_s(self, batch: StoredBatch) -> float | None:
        """For how long its key has been missing; None while it is accepted."""
        try:
            self.caller_of(batch)
        except _KeyGone:
            return time.monotonic() - self._keyless_since.setdefault(batch.owner, time.monotonic())
        self._keyless_since.pop(batch.owner, None)
        return None

    async def _carry_out(self, running: _Running) -> None:
        name = running.batch.id
        try:
            await self._do(running)
        except asyncio.CancelledError:
            raise
        except TargetGone:
            logger.info("the batch %s waits for the next start", name)
            return  # keeps its place: nothing more of this owner begins in this process
        except _KeyGone:
            if running.key_was_taken:
                await self._fail(running, "invalid_api_key", "The key that made this batch is not accepted any more.")
            else:
                logger.info("the batch %s waits for its key", name)
        except (OutputWriteError, StoreUnwritable, OSError) as exc:  # a full disk: there may be room later
            logger.error("the batch %s rests for %g s: %s", name, _REST_S, exc)
            await asyncio.sleep(_REST_S)
        except Exception as exc:
            if isinstance(exc, LpxError):
                logger.error("the batch %s has failed: %s", name, exc)
            else:
                logger.error("the batch %s has failed\n%s", name, trimmed_frames(exc.__traceback__))
            await self._fail(running, "internal_error", "The server could not go on with this batch.")
        del self._running[running.batch.owner]
        self._wake.set()

    # --- one batch ---

    async def _do(self, running: _Running) -> None:
        batch = running.batch
        try:
            file = self._store.file(batch.input_file_id, batch.owner)
        except NotThere:
            await self._fail(running, "file_not_found", "The input file is gone.")
            return
        try:
            source = InputFile(self._store.path_of(file))
        except LpxError:
            await self._fail(running, "invalid_file", "The input file is no UTF-8 text.")
            return
        with source:
            if batch.status == "validating" and not await self._is_valid(running, source):
                return
            work = self._store.work_path(batch)
            output = await asyncio.to_thread(_open_work, work, source)
            try:
                await self._answer(running, source, output)
                await self._finish(running, source, output)
            finally:
                output.close()
            work.unlink(missing_ok=True)

    def caller_of(self, batch: StoredBatch) -> Caller:
        """Its key with the limits of this moment, since keys come and go. Raises `_KeyGone`."""
        keys = self._service.keys
        key = keys.with_owner(batch.owner) if batch.owner else None
        if key is None and (batch.owner or keys):
            raise _KeyGone("its key is not accepted any more")
        return self._service.callers.of(key)

    async def _is_valid(self, running: _Running, source: InputFile) -> bool:
        """Count the lines and see that results can be told apart; single bad lines fail by themselves."""
        batch = running.batch
        most = self._store.limits.max_lines
        counted = await asyncio.to_thread(source.count)
        if not counted.records:
            await self._fail(running, "empty_file", "The file has no lines.")
            return False
        if counted.records > most:
            await self._fail(
                running, "too_many_lines", f"The file has {counted.records} lines, and a batch may have {most}."
            )
            return False
        report = await asyncio.to_thread(check_input, source, batch.endpoint)
        if report.duplicates:
            lines = [fault.line for fault in report.faults if fault.code == _DUPLICATE]
            await self._fail(running, _DUPLICATE, "Another line has the same custom_id.", lines or [None])
            return False
        now = int(time.time())
        await self._change(
            running, unless=("cancelling",), status="in_progress", in_progress_at=now, total=report.records
        )
        running.cancelled = running.cancelled or running.batch.status == "cancelling"
        return True

    async def _answer(self, running: _Running, source: InputFile, output: OutputFile) -> None:
        batch, progress = running.batch, running.progress
        counted: LineCount = await asyncio.to_thread(source.count)
        done, failed = await asyncio.to_thread(output.load, source)
        progress.total, progress.done_before, progress.failed_before = counted.records, done + failed, failed
        left_s = batch.expires_at - time.time()
        if running.cancelled or left_s <= 0 or not progress.remaining:
            running.expired = left_s <= 0 and progress.remaining > 0 and not running.cancelled
            return
        most = self._share(self.caller_of(batch))
        run = BatchRun(
            source,
            output,
            _Yielding(self._app, self, batch),
            RunSettings(max_inflight=most, retries=2, patience_s=float("inf"), endpoint=batch.endpoint),
            progress,
        )
        running.run = run
        saving = asyncio.create_task(self._save_counts(running))
        timer = asyncio.get_running_loop().call_later(left_s, self._expire, running)
        try:
            if not running.cancelled:
                await run.run()
        finally:
            timer.cancel()
            saving.cancel()
            running.run = None
            with contextlib.suppress(asyncio.CancelledError):
                await saving

    def _share(self, caller: Caller) -> int:
        """Half of what a key may have under way at once, at most: the other half is for its other requests."""
        allowed = caller.caps.max_concurrent_requests
        return self._max_inflight if allowed is None else max(1, min(self._max_inflight, allowed // 2))

    def _expire(self, running: _Running) -> None:
        running.expired = True
        if running.run is not None:
            running.run.stop_now()

    async def _save_counts(self, running: _Running) -> None:
        saved = (0, 0)
        while True:
            await asyncio.sleep(_SAVE_COUNTS_S)
            counts = _counts(running.progress)
            if counts != saved:
                saved = counts
                with contextlib.suppress(StoreUnwritable):  # there may be room later
                    await self._change(running, completed=counts[0], failed=counts[1])

    async def _finish(self, running: _Running, source: InputFile, output: OutputFile) -> None:
        batch = running.batch
        completed, failed = _counts(running.progress)
        await self._change(
            running,
            unless=("cancelling",),
            status="finalizing",
            finalizing_at=int(time.time()),
            completed=completed,
            failed=failed,
        )
        cancelled = running.batch.status == "cancelling"
        split, output_id, error_id = await asyncio.to_thread(self._write_results, running, source, output)
        now = int(time.time())
        ending = "cancelled" if cancelled else "expired" if running.expired else "completed"
        await self._change(
            running,
            status=ending,
            output_file_id=output_id,
            error_file_id=error_id,
            completed=split.succeeded,
            failed=split.failed,
            **dict[str, Any]({f"{ending}_at": now}),
        )
        logger.info("batch %s %s: %d lines answered, %d failed", batch.id, ending, split.succeeded, split.failed)

    def _write_results(
        self, running: _Running, source: InputFile, output: OutputFile
    ) -> tuple[Split, str | None, str | None]:
        """In a thread. Raises `OSError` and `OutputWriteError`."""
        output.put_in_order()
        unanswered: Iterator[bytes] = iter(())
        if running.expired:
            text = "This line was not answered before the batch's time was over."
            unanswered = unanswered_lines(source, output, "batch_expired", text, time.time())
        batch = running.batch
        parts = {kind: self._store.result_path(batch, kind) for kind in ("output", "error")}
        split = split_results(output, parts["output"][1], parts["error"][1], unanswered)
        ids: dict[str, str | None] = {"output": None, "error": None}
        for kind, count in (("output", split.succeeded), ("error", split.failed)):
            name, part = parts[kind]
            if count:
                filename = f"{batch.id}_{kind}.jsonl"
                self._store.add_file(name, part, owner=batch.owner, purpose="batch_output", filename=filename)
                ids[kind] = name
            else:
                part.unlink()
        return split, ids["output"], ids["error"]

    async def _fail(self, running: _Running, code: str, message: str, lines: Sequence[int | None] = (None,)) -> None:
        param = "custom_id" if code == _DUPLICATE else None
        errors = [{"code": code, "message": message, "param": param, "line": line} for line in lines]
        try:
            await self._change(running, status="failed", failed_at=int(time.time()), errors=errors)
            self._store.work_path(running.batch).unlink(missing_ok=True)
        except Exception as exc:  # a full disk: it is found again at the next start
            logger.error("the end of the batch %s could not be noted: %s", running.batch.id, type(exc).__name__)

    async def _change(self, running: _Running, *, unless: tuple[str, ...] = (), **changes: Any) -> None:
        batch = running.batch
        running.batch = await asyncio.to_thread(
            lambda: self._store.change(batch.id, batch.owner, unless=unless, **changes)
        )

    # --- room beside others ---

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Room for one request; waits for it."""
        while True:
            others = len(self._service.active) > self._in_flight
            if self._in_flight < (min(_BESIDE_OTHERS, self._max_inflight) if others else self._max_inflight):
                break
            self._freed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._freed.wait(), _LOOK_S if others else None)
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._freed.set()


class _Yielding:
    """Sends when there is room beside what people ask for."""

    def __init__(self, app: FastAPI, queue: BatchQueue, batch: StoredBatch) -> None:
        self._app = app
        self._queue = queue
        self._batch = batch

    async def send(self, request: LineRequest, request_id: str) -> Answer:
        async with self._queue.slot():
            target = EndpointTarget(self._app, self._queue.caller_of(self._batch), least_priority=PRIORITY)
            return await target.send(request, request_id)


def _open_work(path: Path, source: InputFile) -> OutputFile:
    return open_output(path, resume=True, source=source, mode=0o600)


def _counts(progress: Progress) -> tuple[int, int]:
    """Answered, failed: with what earlier processes did."""
    failed = progress.failed_before + progress.failed
    return progress.done_before - progress.failed_before + progress.succeeded, failed
