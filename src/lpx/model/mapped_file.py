"""One model file, mapped read-only, and where its tensors lie.

Reading a mapped page of a file that was cut short after it was opened kills the process with SIGBUS. So the size is
taken once at open, every range is checked against it, and the file's size is asked for again before each range is
handed out: a file that shrank is an error, not a crash. (A file cut in the very moment that it is read cannot be
caught this way; replace model files by renaming, never in place.)
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from lpx.errors import ModelFileError, ModelNotFoundError
from lpx.model.tensor_types import TensorType

_PAGE = mmap.PAGESIZE


class MappedFile:
    """A read-only mapping of a whole regular file."""

    is_mapped = True  # of views: their memory may be given back

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
        except FileNotFoundError:
            raise ModelNotFoundError(f"{path}: no such file") from None
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be opened: {error.strerror}") from None
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise ModelFileError(f"{path}: not a regular file")
            self.size = status.st_size
            if self.size == 0:
                raise ModelFileError(f"{path}: the file is empty")
            self.map = mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ)
        except OSError as error:
            os.close(self._fd)
            raise ModelFileError(f"{path}: cannot be mapped: {error.strerror}") from None
        except BaseException:
            os.close(self._fd)
            raise
        self._bytes: NDArray[np.uint8] | None = np.frombuffer(self.map, dtype=np.uint8)

    def view(self, offset: int, length: int, what: str) -> NDArray[np.uint8]:
        """Bytes [offset, offset + length) as a view of the mapping; `what` names them in errors.

        Raises ModelFileError when the range is not in the file, or the file has shrunk since it was opened.
        """
        if self._bytes is None:
            raise ModelFileError(f"{self.path}: the model is closed")
        if offset < 0 or length < 0 or offset + length > self.size:
            raise ModelFileError(
                f"{self.path}: {what} ends at byte {offset + length}, but the file has {self.size} bytes"
            )
        now = os.fstat(self._fd).st_size
        if now < self.size:
            raise ModelFileError(f"{self.path}: the file shrank from {self.size} to {now} bytes while it was in use")
        return self._bytes[offset : offset + length]

    def drop(self, offset: int, length: int) -> None:
        """Give back the memory of a range that was read; touching it again reads it from the file again."""
        first = offset // _PAGE * _PAGE
        if self._bytes is not None and length > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self.map.madvise(mmap.MADV_DONTNEED, first, offset + length - first)

    def close(self) -> None:
        """Release the file. Views that are still held stay valid: the mapping goes with the last of them."""
        if self._bytes is None:
            return
        self._bytes = None
        os.close(self._fd)
        with contextlib.suppress(BufferError):  # a view lives on
            self.map.close()

    def __enter__(self) -> MappedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies. `shape` is row-major: [out, in] for a matrix."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    file: MappedFile
    offset: int  # from the start of the file
    nbytes: int

    def view(self) -> NDArray[np.uint8]:
        """The tensor's bytes as a view of the mapping."""
        return self.file.view(self.offset, self.nbytes, f"tensor {self.name!r}")
