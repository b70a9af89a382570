"""How far a run is, seen from outside: nothing is changed, locked or cut."""

from __future__ import annotations

import fcntl
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lpx.batch.errors import BatchFileError
from lpx.batch.input_file import InputFile
from lpx.batch.result_line import trace_of
from lpx.regular_file import open_regular


@dataclass(frozen=True, slots=True)
class Standing:
    total: int
    blank: int
    done: int
    failed: int  # of these
    running: bool  # another process writes the output

    @property
    def missing(self) -> int:
        return max(self.total - self.done, 0)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "missing": self.missing}


def read_standing(input_path: Path, output_path: Path) -> Standing:
    """Raises `BatchFileError` when one of the files cannot be read."""
    done = failed = 0
    with InputFile(input_path) as source:
        counted = source.count()
    try:
        with open_regular(output_path) as file:
            for data in file:
                trace = trace_of(data)
                done += trace is not None
                failed += trace is not None and trace.failed
            running = _is_locked(file.fileno())
    except OSError as exc:
        raise BatchFileError(f"the output {output_path} cannot be read: {exc.strerror}") from None
    return Standing(counted.records, counted.blank, done, failed, running)


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False
