"""Opening files that others name: devices and pipes may have no end, and opening a pipe may wait for ever."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_NOT_REGULAR = "it is no regular file"


def open_regular(path: Path) -> BinaryIO:
    """A regular file for reading, never anything else. Raises OSError, whose `strerror` says what is wrong."""
    return os.fdopen(regular_descriptor(path, os.O_RDONLY), "rb")


def regular_descriptor(path: Path, flags: int, mode: int = 0o666) -> int:
    """As `os.open`, for regular files only. Raises OSError, whose `strerror` says what is wrong."""
    try:
        file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, mode)
    except ValueError:  # of Python itself
        raise OSError(errno.EINVAL, "the name holds what no name of a file can") from None
    except OSError as exc:
        if exc.errno in (errno.ENXIO, errno.ENODEV, errno.EISDIR):  # a pipe without a reader, a socket, a folder
            raise OSError(exc.errno, _NOT_REGULAR) from None
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, _NOT_REGULAR)
    return file


def read_regular(path: Path, most_bytes: int) -> bytes:
    """All of a regular file of at most `most_bytes`. Raises OSError, whose `strerror` says what is wrong."""
    with open_regular(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes")
    return data
