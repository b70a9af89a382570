"""Which models are in use: a process that runs one holds a shared lock on it, and what is held is not removed.

The lock is `flock` on the folder of the version, or on the model itself where it has none. So it needs no file beside
it, works in a folder that may only be read, and ends with the process however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from lpx.errors import ModelInUseError, ModelNotFoundError
from lpx.model.models_dir import is_version_folder


class ModelHold:
    """Keeps the model at a path from being removed, until `release`."""

    def __init__(self, path: Path) -> None:
        """Raises ModelNotFoundError when the model is gone, or about to be."""
        target = _target(path)
        try:
            self._lock = os.open(target, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise ModelNotFoundError(f"the model {path} cannot be opened: {error.strerror}") from None
        try:
            with contextlib.suppress(BlockingIOError):
                _share(self._lock)
                opened, found = os.fstat(self._lock), os.stat(target)
                if (opened.st_dev, opened.st_ino) == (found.st_dev, found.st_ino):
                    return
        except FileNotFoundError:
            pass
        except BaseException:
            self.release()
            raise
        self.release()
        raise ModelNotFoundError(f"the model {path} is being removed")

    def release(self) -> None:
        """Safe to call twice."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@contextlib.contextmanager
def not_in_use(path: Path, what: str) -> Iterator[None]:
    """Hold the model at `path` alone while it is removed; raises ModelInUseError, which names processes that use it."""
    lock = os.open(_target(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pids = holders(path)
            by = f" by process {', '.join(map(str, pids))}" if pids else ""
            raise ModelInUseError(f"{what} is in use{by}; end that first, or let it reload another version") from None
        yield
    finally:
        os.close(lock)


def is_in_use(path: Path) -> bool:
    """Whether some process holds the model at `path`; False where it cannot be told."""
    try:
        with not_in_use(path, ""):
            return False
    except ModelInUseError:
        return True
    except OSError:
        return False


def holders(path: Path) -> list[int]:
    """Processes that hold the model at `path`, as far as this one may see them."""
    with contextlib.suppress(OSError, ValueError):
        status = os.stat(_target(path))
        wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        return sorted({int(line[4]) for line in lines if len(line) > 5 and line[1] == "FLOCK" and line[5] == wanted})
    return []


def _target(path: Path) -> Path:
    """What is locked: copies of a version share the file's bytes, and are in use each by itself."""
    return path.parent if is_version_folder(path.parent) else path


def _share(lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass  # a file system without such locks: then nobody can be kept from anything
