"""Where the model folder lies. What is in it is the store's business; the readers only look names up there."""

from __future__ import annotations

import os
from pathlib import Path


def models_dir(override: str | os.PathLike[str] | None = None) -> Path:
    """The model folder: `override`, else LPX_MODELS_DIR, else `lpx/models` in the user's cache. It need not exist."""
    chosen = os.fspath(override) if override else os.environ.get("LPX_MODELS_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return platformdirs.user_cache_path("lpx") / "models"
