"""A run from file to file: what is opened and checked before a model is loaded, signals, order, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from lpx.batch.errors import BatchFileError
from lpx.batch.input_file import InputFile
from lpx.batch.log_file import RunLog
from lpx.batch.output_file import OutputFile, open_output
from lpx.batch.progress import Progress
from lpx.batch.runner import BatchRun, RunSettings

if TYPE_CHECKING:
    from lpx.batch.job import Order
    from lpx.batch.target import Target

_SHOW_EVERY_S = 0.25
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class FilePlan:
    """Which files, and how they are to be treated."""

    input: Path
    output: Path
    order: Order = "input"
    resume: bool = False
    retry_failed: bool = False  # with resume: results that are errors count as missing
    log_file: Path | None = None


def _same(path: Path, other: Path) -> bool:
    """Whether both names mean one file, now or when they are made."""
    try:
        return path.samefile(other)
    except OSError:
        return path.resolve() == other.resolve()
    except ValueError:  # no name of a file; who opens it says so
        return False


class FileRun:
    """Holds the files of one run open; use as a context manager. `progress` says what is to be done."""

    def __init__(self, plan: FilePlan) -> None:
        """Raises `BatchFileError`, and `OutputWriteError` where the output has to be mended and cannot be."""
        if plan.retry_failed and not plan.resume:
            raise BatchFileError("--retry-failed goes with --resume")
        self.progress = Progress()
        self.stopped_by: int | None = None  # the signal
        self._plan = plan
        with contextlib.ExitStack() as opened:
            self._source = opened.enter_context(InputFile(plan.input))
            if plan.log_file is not None and any(_same(plan.log_file, other) for other in (plan.input, plan.output)):
                raise BatchFileError(f"the log {plan.log_file} is the input or the output: name another file")
            self._log = RunLog(plan.log_file)
            opened.callback(self._log.close)
            self._output: OutputFile = open_output(plan.output, resume=plan.resume, source=self._source)
            opened.callback(self._output.close)
            self._take_stock()
            self._opened = opened.pop_all()

    def _take_stock(self) -> None:
        progress = self.progress
        counted = self._source.count()
        progress.total, progress.blank = counted.records, counted.blank
        succeeded, failed = self._output.load(self._source)
        if self._plan.retry_failed and failed:
            self._output.drop_failed()
            failed = 0
        progress.done_before, progress.failed_before = succeeded + failed, failed

    def __enter__(self) -> FileRun:
        return self

    def __exit__(self, kind: object, *ending: object) -> None:
        if kind is not None:
            self._output.discard_if_new()
        self._opened.close()

    async def run(
        self, target: Target, settings: RunSettings, on_progress: Callable[[Progress], None] = lambda _: None
    ) -> None:
        """Do what is missing. The first SIGINT or SIGTERM finishes what runs, the second ends it.

        Raises what `BatchRun.run` raises; the results that are there are then in the order in which they came.
        """
        self.progress.started = monotonic()
        run = BatchRun(
            self._source,
            self._output,
            target,
            settings,
            self.progress,
            lambda finished: self._log.finished(finished, self.progress),
        )
        self._log.say(f"begin: {self.progress.line()}")
        showing = asyncio.create_task(self._show(on_progress))
        try:
            with self._signals(run):
                await run.run()
        except BaseException as exc:
            self._log.say(f"stopped: {type(exc).__name__}: {self.progress.line()}")
            raise
        finally:
            showing.cancel()
            on_progress(self.progress)
        self.finish()
        self._log.say(f"end: {self.progress.line()}")

    def finish(self) -> None:
        """Put the results in order, if that is wanted. Raises `OutputWriteError`."""
        if self._plan.order == "input":
            self._output.put_in_order()

    async def _show(self, on_progress: Callable[[Progress], None]) -> None:
        while True:
            on_progress(self.progress)
            await asyncio.sleep(_SHOW_EVERY_S)

    @contextlib.contextmanager
    def _signals(self, run: BatchRun) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            name = signal.Signals(number).name
            if self.stopped_by is not None:
                self._log.say(f"{name} again: what runs ends now")
                run.stop_now()
                return
            self.stopped_by = number
            running = self.progress.in_flight
            print(
                f"{name}: finishing the {running} requests that run; once more ends them (--resume does them again)",
                file=sys.stderr,
                flush=True,
            )
            self._log.say(f"{name}: {running} requests are finished, no new ones")
            run.stop()

        for number in _SIGNALS:
            loop.add_signal_handler(number, stop, number)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
