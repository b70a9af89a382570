"""What the model folder holds.

Layout: `<models_dir>/<name>/<file>` with a `manifest.json` beside the file for what was pulled; a `.gguf` put there by
hand and a Hugging Face folder count as models too. Names that begin with a dot are the store's own (locks and
unfinished pulls).
"""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path

from lpx.model.gguf_shards import is_later_shard
from lpx.model.models_dir import read_manifest


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
        elif _is_model_file(entry):
            found.append(StoredModel(entry.stem, entry, "gguf", _gguf_bytes(entry)))
    return found


def find_stored(name: str, folder: Path) -> StoredModel | None:
    """The model called `name` in `folder`, or None. Nothing is read but the folder's own entries."""
    return next((model for model in list_models(folder) if model.name == name), None)


def _models_in(directory: Path) -> list[StoredModel]:
    files = sorted(file for file in directory.glob("*.gguf") if _is_model_file(file))
    if files:
        manifest = read_manifest(directory)
        described = manifest.pop("file", None)
        return [
            StoredModel(
                name=directory.name if len(files) == 1 or file.name == described else f"{directory.name}/{file.name}",
                path=file,
                format="gguf",
                file_bytes=_gguf_bytes(file),
                **(manifest if described == file.name else {}),
            )
            for file in files
        ]
    weights = list(directory.glob("*.safetensors"))
    if weights and (directory / "config.json").exists():
        return [StoredModel(directory.name, directory, "safetensors", sum(file.stat().st_size for file in weights))]
    return []


def _is_model_file(file: Path) -> bool:
    return file.suffix == ".gguf" and file.is_file() and not is_later_shard(file)


def _gguf_bytes(file: Path) -> int:
    """Size of a model, with all its parts when it is split."""
    first = "-00001-of-"
    if first not in file.name:
        return file.stat().st_size
    stem, count = file.name.rsplit(first, 1)
    return sum(part.stat().st_size for part in file.parent.glob(f"{glob.escape(stem)}-?????-of-{count}"))
