"""Folders that hold texts of users: nobody else on the machine may read them."""

from __future__ import annotations

import os
from pathlib import Path

from lpx.errors import ConfigError


def make_private_folder(folder: Path, what: str) -> None:
    """Make `folder`, or check that the one that is there is private and can be written to.

    Raises `ConfigError`, which calls it `what`.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, ValueError) as exc:
        raise ConfigError(f"the {what} {folder} cannot be made: {getattr(exc, 'strerror', None) or exc}") from None
    if status.st_mode & 0o077:
        raise ConfigError(
            f"others on this machine may read the folder {folder}, and texts of users would go there: "
            f"chmod 700 {folder}, or name another one"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"nothing can be written to the folder {folder}")
