"""Files that commands write for the user: there when they are whole, or not at all."""

from __future__ import annotations

import os
import stat
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


def check_target(option: str, file: Path, example: str) -> None:
    """Raise ConfigError where `option` names no place for a file, before hours go into what is to be written there.

    `example` is the name of a file that the message proposes for a folder.
    """
    try:
        if _is_folder(file):
            raise ConfigError(f"{option} {file} is a folder; name a file in it, such as {file / example}")
        if not _is_folder(file.absolute().parent):
            raise ConfigError(f"{option} {file}: there is no folder {file.absolute().parent}; make it first")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{option} {str(file)[:100]} cannot be written: {reason}") from None


def _is_folder(path: Path) -> bool:
    """OSError when that cannot be told, such as for a name that is too long."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
