"""What the model folder holds.

Layout: `<models_dir>/<name>/<file>` with a `manifest.json` beside the file for what was pulled; a `.gguf` put there by
hand and a Hugging Face folder count as models too. Names that begin with a dot are the store's own (locks and
unfinished pulls).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One model in the folder; what no manifest tells is None."""

    name: str
    path: Path  # the `.gguf`, or the Hugging Face folder
    format: str  # "gguf" or "safetensors"
    file_bytes: int
    licence: str | None = None
    source: str | None = None
    sha256: str | None = None
    created: str | None = None  # ISO 8601, UTC


def list_models(folder: Path) -> list[StoredModel]:
    """Every model in `folder`, by name; an absent folder holds none. Links that lead out of it are left out."""
    try:
        entries = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    root = folder.resolve()
    found: list[StoredModel] = []
    for entry in entries:
        if entry.name.startswith(".") or not entry.resolve().is_relative_to(root):
            continue
        if entry.is_dir():
            found += _models_in(entry)
        elif entry.suffix == ".gguf":
            found.append(StoredModel(entry.stem, entry, "gguf", entry.stat().st_size))
    return found


def find_stored(name: str, folder: Path) -> StoredModel | None:
    """The model called `name` in `folder`, or None. Nothing is read but the folder's own entries."""
    return next((model for model in list_models(folder) if model.name == name), None)


def _models_in(directory: Path) -> list[StoredModel]:
    files = sorted(directory.glob("*.gguf"))
    if files:
        manifest = _read_manifest(directory)
        several = len(files) > 1
        return [
            StoredModel(
                name=f"{directory.name}/{file.name}" if several else directory.name,
                path=file,
                format="gguf",
                file_bytes=file.stat().st_size,
                **(manifest if manifest.pop("file", file.name) == file.name else {}),
            )
            for file in files
        ]
    weights = list(directory.glob("*.safetensors"))
    if weights and (directory / "config.json").exists():
        return [StoredModel(directory.name, directory, "safetensors", sum(file.stat().st_size for file in weights))]
    return []


def _read_manifest(directory: Path) -> dict[str, Any]:
    """What the manifest says, as far as it can be read: a spoilt manifest does not hide the model beside it."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(manifest, dict):
        return {}
    wanted = ("file", "licence", "source", "sha256", "created")
    return {key: manifest[key] for key in wanted if isinstance(manifest.get(key), str)}
