"""Writing that either happens or does not: what is killed or finds the disk full on the way changes nothing."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Replace the file at `path` by one that holds `text`, on the disk before the old one is gone. Raises OSError.

    One writer at a time: what a killed one has left is overwritten by the next.
    """
    scratch = path.with_name(scratch_name(path.name))
    try:
        with scratch.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise
    sync_folder(path.parent)


def scratch_name(name: str) -> str:
    """What a file is called before it gets its name."""
    return f".{name}.new"


def sync_folder(folder: Path) -> None:
    """Have the names in `folder` on the disk, where its file system can tell. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
