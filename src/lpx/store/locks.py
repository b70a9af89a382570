"""One change of a model at a time: a lock file for each name, held from before the first byte to the last rename.

The file stays, since removing it would let two holders in. What a killed holder has left can be cleared or gone on with
by whoever holds the lock next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

Progress = Callable[[str, int, int], None]
"""Called with the phase ("waiting", "downloading", "unpacking", "copying", "checking"), bytes done and bytes in all."""


@contextlib.contextmanager
def name_lock(folder: Path, name: str, report: Progress | None = None) -> Iterator[int]:
    """Hold the lock of model `name` in `folder`, which is made; waits, and reports that. Yields its descriptor."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if report is not None:
                report("waiting", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def is_locked(folder: Path, name: str) -> bool:
    """Whether somebody changes model `name` at this moment."""
    try:
        lock = os.open(folder / f".{name}.lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
