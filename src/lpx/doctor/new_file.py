"""Writing a file that was not there before: all of it, or none."""

from __future__ import annotations

import os
from pathlib import Path


def write_new(path: Path, text: str, mode: int = 0o666) -> None:
    """Write `text` into a new file. Raises OSError, FileExistsError among them; what was cut off is removed again."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
