"""From the results of a finished batch to the two files that its owner gets: successes, and everything else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lpx.batch.input_file import InputFile
from lpx.batch.line_request import LineError, request_of
from lpx.batch.output_file import OutputFile
from lpx.batch.result_line import Attempts, unanswered_line
from lpx.batch.store import private_file


@dataclass(frozen=True, slots=True)
class Split:
    """How many lines each file has."""

    succeeded: int
    failed: int


def split_results(output: OutputFile, successes: Path, failures: Path, unanswered: Iterator[bytes]) -> Split:
    """Write both files, privately and synced; `unanswered` are lines for the second one. Raises `OSError`."""
    succeeded = failed = 0
    with (
        private_file(successes) as good,
        private_file(failures) as bad,
        os.fdopen(os.dup(good), "wb") as good_file,
        os.fdopen(os.dup(bad), "wb") as bad_file,
    ):
        for trace, data in output.traces():
            if trace.failed:
                bad_file.write(data)
                failed += 1
            else:
                good_file.write(data)
                succeeded += 1
        for data in unanswered:
            bad_file.write(data)
            failed += 1
    return Split(succeeded, failed)


def unanswered_lines(source: InputFile, output: OutputFile, code: str, message: str, now: float) -> Iterator[bytes]:
    """A result for every line that has none."""
    for line in source.lines():
        if not output.has(line.index):
            try:
                custom_id = request_of(line).custom_id
            except LineError as exc:
                custom_id = exc.custom_id
            name = f"batch_req_{line.digest[:8]}{line.index:024x}"
            yield unanswered_line(name, line, custom_id, code, message, Attempts(0, now, 0.0, 0.0))
