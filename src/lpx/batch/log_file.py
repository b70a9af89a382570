"""The log of a run: a line for each line of the input, and now and then how far it is. No text of anybody."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from time import monotonic

from lpx.batch.errors import BatchFileError
from lpx.batch.progress import Progress
from lpx.batch.runner import Finished
from lpx.regular_file import regular_descriptor

_PROGRESS_EVERY_S = 10.0


class RunLog:
    """Appends to a file, or does nothing without one. A log that cannot be written ends no run."""

    def __init__(self, path: Path | None) -> None:
        """Raises `BatchFileError`."""
        self._file: int | None = None
        self._next_progress = monotonic() + _PROGRESS_EVERY_S
        if path is not None:
            try:
                self._file = regular_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            except OSError as exc:
                raise BatchFileError(f"the log {path} cannot be written: {exc.strerror}") from None

    def say(self, text: str) -> None:
        if self._file is None:
            return
        now = datetime.now().astimezone().isoformat(timespec="milliseconds")
        try:
            os.write(self._file, f"{now} {text}\n".encode("utf-8", "replace"))
        except OSError as exc:
            print(f"warning: the log is not written any more: {exc.strerror}", file=sys.stderr)
            self.close()

    def finished(self, line: Finished, progress: Progress) -> None:
        if self._file is None:
            return
        named = "" if line.custom_id is None else f" custom_id={line.custom_id[:64]!r}"
        ending = "ok" if line.error is None else f"error={line.error[:64]!r}"
        status = "none" if line.status is None else line.status
        self.say(
            f"line={line.number} index={line.index}{named} status={status} {ending} attempts={line.attempts} "
            f"total_ms={line.total_ms:.1f}"
        )
        if monotonic() >= self._next_progress:
            self._next_progress = monotonic() + _PROGRESS_EVERY_S
            self.say(f"progress: {progress.line()}")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
