"""Where the model folder lies, and what a pulled model says of itself. Filling it is the store's business."""

from __future__ import annotations

import json
import os
from pathlib import Path

MANIFEST = "manifest.json"


def models_dir(override: str | os.PathLike[str] | None = None) -> Path:
    """The model folder: `override`, else LPX_MODELS_DIR, else `lpx/models` in the user's cache. It need not exist."""
    chosen = os.fspath(override) if override else os.environ.get("LPX_MODELS_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return platformdirs.user_cache_path("lpx") / "models"


def read_manifest(directory: Path) -> dict[str, str]:
    """What the manifest of a pulled model says, as far as it can be read: a spoilt one does not hide the model."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(manifest, dict):
        return {}
    wanted = ("file", "licence", "source", "sha256", "created")
    return {key: manifest[key] for key in wanted if isinstance(manifest.get(key), str)}
