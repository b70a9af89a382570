"""Room on the disk: asked for before anything is written, and again while it is."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from lpx.errors import DiskSpaceError, DownloadError

_SPARE_BYTES = 64 << 20  # left free beside what is written, where that is large
_SPARE_PART = 16  # of what is written, where it is small


def check_space(folder: Path, needed: int, what: str) -> None:
    """Raise DiskSpaceError, with the numbers, unless `needed` bytes and some to spare are free at `folder`."""
    wanted = needed + min(_SPARE_BYTES, needed // _SPARE_PART)
    free = shutil.disk_usage(folder).free
    if needed and free < wanted:
        raise DiskSpaceError(
            f"not enough disk space in {folder} for {what}: {_mib(wanted)} needed, {_mib(free)} free; make room (`lpx "
            "models prune` helps) or choose another folder with --models-dir. What was fetched before is kept"
        )


def disk_error(error: OSError) -> type[DownloadError]:
    """The kind of error that a failed write is: a full disk has a page of its own."""
    return DiskSpaceError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else DownloadError


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
