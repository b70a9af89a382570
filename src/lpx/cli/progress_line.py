"""A progress bar for work that counts: on stderr, only on a terminal, and only when it takes longer than a second."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_QUIET_SECONDS = 1.0


class ProgressLine:
    """Shows one thing after the other in the same place, and leaves nothing behind."""

    def __init__(self) -> None:
        self._show_after = time.monotonic() + _QUIET_SECONDS if sys.stderr.isatty() else float("inf")
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *ending: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, what: str, done: int, total: int) -> None:
        if self._bar is None:
            if time.monotonic() < self._show_after:
                return
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(what, total=total)
            self._bar.start()
        assert self._task is not None
        if self._bar.tasks[0].description != what:
            self._bar.reset(self._task, total=total, description=what)
        self._bar.update(self._task, completed=done, total=total)
