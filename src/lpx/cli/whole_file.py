"""Files that commands write for the user: there when they are whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from lpx.errors import ConfigError


def write_whole(file: Path, data: bytes) -> None:
    """Put the file there when all of it is written. Raises ConfigError when it cannot be."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        try:
            part.write_bytes(data)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
