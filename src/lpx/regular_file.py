"""Reading files that others name: devices and pipes may have no end, and opening a pipe may wait for ever."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_NOT_REGULAR, _DIRECTORY = "it is no regular file", "Is a directory"


def open_regular(path: Path) -> BinaryIO:
    """A regular file for reading, never anything else. Raises OSError, whose `strerror` says what is wrong."""
    return os.fdopen(regular_descriptor(path, os.O_RDONLY), "rb")


def regular_descriptor(path: Path, flags: int, mode: int = 0o666) -> int:
    """As `os.open`, for regular files only. Raises OSError, whose `strerror` says what is wrong."""
    file = _open(path, flags, mode)
    kind = os.fstat(file).st_mode
    if not stat.S_ISREG(kind):
        os.close(file)
        raise OSError(errno.EISDIR, _DIRECTORY) if stat.S_ISDIR(kind) else OSError(errno.EINVAL, _NOT_REGULAR)
    return file


def read_regular(path: Path, most_bytes: int) -> bytes:
    """All of a regular file of at most `most_bytes`. Raises OSError, whose `strerror` says what is wrong."""
    with open_regular(path) as file:
        return _read(file, most_bytes)


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """All of a file of at most `most_bytes`, or of what another command writes to a pipe (`<(…)`). Raises OSError.

    A pipe that nobody writes to is empty, and not waited for; devices are refused.
    """
    descriptor = _open(path, os.O_RDONLY)
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, _DIRECTORY)
        raise OSError(errno.EINVAL, "it is neither a file nor a pipe")
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "rb") as file:
        return _read(file, most_bytes)


def _open(path: Path, flags: int, mode: int = 0o666) -> int:
    try:
        return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, mode)
    except ValueError:  # of Python itself
        raise OSError(errno.EINVAL, "the name holds what no name of a file can") from None
    except OSError as exc:
        if exc.errno == errno.EISDIR:
            raise OSError(exc.errno, _DIRECTORY) from None
        if exc.errno in (errno.ENXIO, errno.ENODEV):  # a pipe without a reader, a socket
            raise OSError(exc.errno, _NOT_REGULAR) from None
        raise


def _read(file: BinaryIO, most_bytes: int) -> bytes:
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes")
    return data
