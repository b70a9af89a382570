"""Reading files that others name: devices and pipes may have no end, and opening a pipe may wait for ever."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path, most_bytes: int) -> bytes:
    """All of a regular file of at most `most_bytes`. Raises OSError, whose `strerror` says what is wrong."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes")
    return data
