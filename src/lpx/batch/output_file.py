"""The output: results in the order in which they came, one whole line after the other, and put in order at the end.

One run owns it at a time, by a lock that ends with its process. A kill at any byte leaves whole lines and at most one
torn one at the end, which the next run cuts off. Order is made by a pass that writes a second file and takes its place
in one step, so that there is never a moment without every result.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from time import sleep

from lpx.batch.errors import BatchFileError, OutputWriteError
from lpx.batch.input_file import InputFile
from lpx.batch.result_line import HEAD, Trace, trace_of
from lpx.regular_file import regular_descriptor
from lpx.store.atomic import sync_folder

_NOWHERE = 2**64 - 1  # of a line that has no result yet


class OutputFile:
    """Owns one output file from `open_output` to `close`."""

    def __init__(self, path: Path, file: int, is_new: bool) -> None:
        self.path = path
        self._is_new = is_new
        self._file = file
        self._size = os.fstat(file).st_size
        self._dirty = False
        self._lock = threading.Lock()  # of the descriptor, for `sync`
        self._places = array("Q")  # by index: where the line begins; eight bytes a line
        self._ordered = True  # so far, lines lie in the order of the input
        self._last_index = -1

    # --- what is there ---

    def load(self, source: InputFile) -> tuple[int, int]:
        """Take over what an earlier run wrote, and cut off what it could not finish; (succeeded, failed).

        Raises `BatchFileError` when that belongs to another input, or is no output of a batch.
        """
        end = 0  # of the last sound line
        stray: int | None = None  # number of the first line that is not one
        succeeded = failed = 0
        for number, (offset, data) in enumerate(self._lines(), 1):
            trace = trace_of(data) if data.endswith(b"\n") else None
            if trace is None:
                stray = stray or number
                if not end and not _may_be_torn(data):
                    raise BatchFileError(
                        f"{self.path} is no output of a batch (line {number}), and stays as it is: name another file"
                    )
                continue
            if stray is not None:
                raise BatchFileError(
                    f"line {stray} of {self.path} is damaged, with sound ones behind it: delete that line, and resume"
                )
            self._check_input(trace, source, number)
            self._note(trace.index, offset)
            failed += trace.failed
            succeeded += not trace.failed
            end = offset + len(data)
        if end < self._size:
            self._cut(end)
        return succeeded, failed

    def _check_input(self, trace: Trace, source: InputFile, number: int) -> None:
        if source.digest_at(trace.offset) != trace.digest:
            raise BatchFileError(
                f"the input {source.path} has changed: line {number} of {self.path} answers a line that is not at byte "
                f"{trace.offset} any more. Lines may be added at the end; for anything else start over with another "
                "output"
            )
        if self.has(trace.index):
            raise BatchFileError(f"{self.path} holds two results of index {trace.index}: delete one, and resume")

    def has(self, index: int) -> bool:
        """Whether the line of the input has its result."""
        return index < len(self._places) and self._places[index] != _NOWHERE

    def traces(self) -> Iterator[tuple[Trace, bytes]]:
        """Every result with what it says about its input."""
        for _, data in self._lines():
            trace = trace_of(data)
            if trace is not None:
                yield trace, data

    # --- writing ---

    def append(self, index: int, data: bytes) -> None:
        """Write one whole line or nothing. Raises `OutputWriteError`."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:] if written else data)
        except OSError as exc:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise _write_error(self.path, exc) from None
        self._note(index, self._size)
        self._size += len(data)
        self._dirty = True

    def sync(self) -> None:
        """Have the disk keep what was written; may be called from another thread. Raises `OutputWriteError`."""
        with self._lock:
            if self._dirty:
                self._dirty = False
                try:
                    os.fsync(self._file)
                except OSError as exc:
                    raise _write_error(self.path, exc) from None

    def put_in_order(self) -> None:
        """Make the order of the lines that of the input. Raises `OutputWriteError`, and then nothing has changed."""
        if not self._ordered:
            self._rewrite([place for place in self._places if place != _NOWHERE])

    def drop_failed(self) -> int:
        """Forget the results that are errors, so that their lines run again; how many there were."""
        kept = [offset for offset, data in self._lines() if (trace := trace_of(data)) is not None and not trace.failed]
        total = sum(place != _NOWHERE for place in self._places)
        if len(kept) < total:
            self._rewrite(kept)
        return total - len(kept)

    def discard_if_new(self) -> None:
        """Take the file away again, if it was made for this run and nothing was written."""
        if self._is_new and not self._size:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def close(self) -> None:
        with self._lock:
            self._dirty = False
            os.close(self._file)

    # --- inside ---

    def _note(self, index: int, offset: int) -> None:
        missing = index + 1 - len(self._places)
        if missing > 0:
            self._places.extend([_NOWHERE] * missing)
        self._places[index] = offset
        self._ordered = self._ordered and index > self._last_index
        self._last_index = index

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """(where it begins, the line with its end if it has one)"""
        offset = 0
        with self.path.open("rb") as file:
            for number, data in enumerate(file):
                if not number % 32:
                    sleep(0)  # beside an engine in this process: it gets the interpreter's lock now
                yield offset, data
                offset += len(data)

    def _cut(self, size: int) -> None:
        try:
            os.ftruncate(self._file, size)
        except OSError as exc:
            raise _write_error(self.path, exc) from None
        self._size = size

    def _rewrite(self, places: list[int]) -> None:
        """Keep the lines that begin at `places`, in that order."""
        beside = self.path.with_name(f"{self.path.name}.ordering")
        status = os.fstat(self._file)
        try:
            with contextlib.suppress(FileNotFoundError):
                beside.unlink()  # of a run that was killed
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(beside, flags, stat.S_IMODE(status.st_mode))
        except OSError as exc:
            raise _write_error(beside, exc) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before it has the name that others open
            with self.path.open("rb") as source, os.fdopen(os.dup(file), "wb", buffering=1 << 20) as target:
                for place in places:
                    source.seek(place)
                    target.write(source.readline())
            os.fsync(file)
            beside.replace(self.path)
        except OSError as exc:
            os.close(file)
            with contextlib.suppress(OSError):
                beside.unlink()
            raise OutputWriteError(
                f"{self.path} holds every result, but there was no way to put them in order: {exc.strerror}. "
                "Make room, and try again"
            ) from None
        with contextlib.suppress(OSError):  # it is whole by either name
            sync_folder(self.path.parent)
        with self._lock:
            os.close(self._file)
            self._file = file
        self._size = os.fstat(file).st_size
        self._places = array("Q")
        self._ordered, self._last_index = True, -1
        for offset, data in self._lines():
            trace = trace_of(data)
            assert trace is not None
            self._note(trace.index, offset)


def open_output(path: Path, *, resume: bool, source: InputFile | None = None, mode: int = 0o666) -> OutputFile:
    """Make the output, or with `resume` go on with the one that is there, and lock it.

    Raises `BatchFileError` when there is one without `resume`, when another run has it, or when it is no file.
    """
    flags = os.O_RDWR | os.O_APPEND
    try:
        path = path.resolve()  # what a link means is written and put in order, not the link
        if path.is_symlink():  # a loop: some versions of Python say so, others leave it as it is
            raise ValueError
    except (OSError, RuntimeError, ValueError):
        raise BatchFileError(f"the output {path} cannot be written: it is no path to a file") from None
    while True:
        is_new = not (resume and path.exists())
        try:
            file = regular_descriptor(path, flags | (os.O_CREAT | os.O_EXCL if is_new else 0), mode)
        except FileExistsError:
            if resume:
                continue  # another run has just made it
            raise BatchFileError(
                f"the output {path} exists: go on with it with --resume, or name another one"
            ) from None
        except OSError as exc:
            raise BatchFileError(f"the output {path} cannot be written: {exc.strerror}") from None
        status = os.fstat(file)
        try:
            if source is not None and (status.st_dev, status.st_ino) == source.identity:
                raise BatchFileError(f"the output {path} is the input: name another file")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == status.st_ino:
                    return OutputFile(path, file, is_new)
        except BlockingIOError:
            os.close(file)
            raise BatchFileError(f"another run writes {path}: wait for it, or name another file") from None
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # it was replaced by an ordered one between the two steps


def _may_be_torn(data: bytes) -> bool:
    """Whether it can be the beginning of one of our lines, or what a lost write leaves."""
    return not data.endswith(b"\n") and (HEAD.startswith(data[: len(HEAD)]) or not data.strip(b"\0"))


def _write_error(path: Path, error: OSError) -> OutputWriteError:
    return OutputWriteError(
        f"{path} cannot be written: {error.strerror}. Every line that is there is whole; make room, and go on"
    )
