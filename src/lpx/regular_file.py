"""Reading files that others name: devices and pipes may have no end, and opening a pipe may wait for ever."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """A regular file, open to be read. Raises OSError, whose `strerror` says what is wrong."""
    file = _open(path)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file")
    return file


def read_regular(path: Path, most_bytes: int) -> bytes:
    """All of a regular file of at most `most_bytes`. Raises OSError, whose `strerror` says what is wrong."""
    with open_regular(path) as file:
        return _read(file, most_bytes)


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """All of a file of at most `most_bytes`, or of what another command writes to a pipe (`<(…)`). Raises OSError.

    A pipe that nobody writes to is empty, and not waited for; devices are refused.
    """
    with _open(path) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise OSError(errno.EINVAL, "it is neither a file nor a pipe")
        os.set_blocking(file.fileno(), True)
        return _read(file, most_bytes)


def _open(path: Path) -> BinaryIO:
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def _read(file: BinaryIO, most_bytes: int) -> bytes:
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes")
    return data
