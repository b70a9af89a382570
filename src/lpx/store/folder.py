"""What the model folder holds: models, and the versions of each.

Layout: `<models_dir>/<name>/<version>/` with a `manifest.json` for what the store brought; a `.gguf` put there by
hand, a folder with one and a Hugging Face folder are models too, whose version is called `original` (see
`lpx.model.models_dir`). Names that begin with a dot are the store's own: locks and unfinished pulls.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpx.errors import LpxError, ModelNotFoundError
from lpx.model.gguf_shards import is_later_shard
from lpx.model.models_dir import (
    ORIGINAL,
    current_and_earlier,
    has_original,
    models_dir,
    read_manifest,
    split_version,
    stored_versions,
    version_path,
)
from lpx.store import manifest
from lpx.store.names import shown

if TYPE_CHECKING:
    from lpx.options import EngineOptions


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One version of a model in the folder; what no manifest tells is None."""

    name: str
    path: Path  # the `.gguf`, or the Hugging Face folder: what is opened, and what is locked while it is in use
    format: str  # "gguf" or "safetensors"
    file_bytes: int
    licence: str | None = None
    source: str | None = None
    sha256: str | None = None
    created: str | None = None  # ISO 8601, UTC
    version: str = ORIGINAL
    current: bool = True
    revision: str | None = None
    tokenizer_sha256: str | None = None
    derived_from: str | None = None
    measured: tuple[Mapping[str, Any], ...] = ()  # speeds, latest first

    @property
    def spelled(self) -> str:
        """`NAME@VERSION`."""
        return f"{self.name}@{self.version}"


def list_models(folder: Path) -> list[StoredModel]:
    """The current version of every model in `folder`, by name; an absent folder holds none.

    Of a model without a current version the latest is listed, as not current. Links that lead out are left out.
    """
    found = []
    for name, entry in _entries(folder):
        found += _models_in(name, entry)
    return found


def list_versions(folder: Path, name: str) -> list[StoredModel]:
    """Every version of model `name`, latest first. Raises ModelNotFoundError, where there is no such model."""
    for each, entry in _entries(folder):
        if each == name or name.startswith(f"{each}/"):
            models = _versions_in(each, entry) if each == name else _models_in(each, entry)
            found = [model for model in models if model.name == name]
            if found:
                return sorted(found, key=lambda model: (model.created or "", model.version), reverse=True)
    raise ModelNotFoundError(f"no model called {shown(name)} in {folder}; `lpx models list` shows what is there")


def version_counts(folder: Path) -> dict[str, int]:
    """How many versions each model has."""
    return {name: len(_versions_in(name, entry)) for name, entry in _entries(folder)}


def find_stored(name: str, folder: Path) -> StoredModel | None:
    """The model called `NAME`, or `NAME@VERSION`, in `folder`, or None. Only entries of the folder are looked at."""
    plain, version = split_version(name)
    models = list_models(folder)
    exact = next((model for model in models if model.name == name), None)
    if exact is not None or version is None:
        return exact
    try:
        return find_version(plain, version, folder)
    except ModelNotFoundError:
        return None


def stored_name(model: str, folder: Path) -> str | None:
    """The name that `model` has in `folder`, whether it is that name itself or the path of what lies there."""
    try:
        inside = Path(model).resolve().relative_to(folder.resolve()) if os.path.exists(model) else None
    except (OSError, ValueError):
        return None
    if inside is None:
        stored = find_stored(model, folder)
        return None if stored is None else stored.name
    names = dict(_entries(folder))
    first = Path(*inside.parts[:1])
    return next((name for name in (first.name, first.stem) if name in names), None)


def named_as_stored(options: EngineOptions) -> EngineOptions:
    """`options` with the model's name in the model folder, whatever way it was named by, unless another was chosen.

    So every measurement of a model has the same name for it. What lies elsewhere keeps its file's name.
    """
    if options.served_model_name is not None:
        return options
    return replace(options, served_model_name=stored_name(options.model, models_dir(options.models_dir)))


def find_version(name: str, version: str, folder: Path) -> StoredModel:
    """That version; its beginning will do. Raises ModelNotFoundError, which lists the versions there are."""
    versions = list_versions(folder, name)
    matches = [model for model in versions if model.version == version] or [
        model for model in versions if len(version) >= 4 and model.version.startswith(version)
    ]
    if len(matches) == 1:
        return matches[0]
    listed = ", ".join(model.version for model in versions)
    raise ModelNotFoundError(
        f"{name} has {'more than one' if matches else 'no'} version {shown(version)}; there are: {listed}"
    )


def _entries(folder: Path) -> list[tuple[str, Path]]:
    """(name, the model's folder) of all there may be; the folder need not exist, when the model is a file beside it."""
    try:
        entries = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    root = folder.resolve()
    found: dict[str, Path] = {}
    for entry in entries:
        if entry.name.startswith(".") or not entry.resolve().is_relative_to(root):
            continue
        if entry.is_dir():
            found[entry.name] = entry
        elif _is_model_file(entry):
            found.setdefault(entry.stem, entry.with_suffix(""))
    return sorted(found.items())


def _models_in(name: str, directory: Path) -> list[StoredModel]:
    """The model in a folder: its current version, and .gguf files beside that as models of their own."""
    versions = _versions_in(name, directory)
    chosen = [model for model in versions if model.current]
    if not chosen and versions:
        chosen = [max(versions, key=lambda model: (model.created or "", model.version))]
    others = [model for model in _originals(name, directory) if model.name != name]
    return chosen + others


def _versions_in(name: str, directory: Path) -> list[StoredModel]:
    current = next(iter(current_and_earlier(directory)), None)
    found = [model for model in _originals(name, directory) if model.name == name]
    for version in stored_versions(directory):
        model = _described(name, directory / version)
        if model is not None:
            found.append(model)
    # A single model is current by what it is, whatever has become of the file that says so.
    return [_with_current(model, model.version == current) for model in found]


def _with_current(model: StoredModel, current: bool) -> StoredModel:
    return model if model.current == current else replace(model, current=current)


def _described(name: str, version: Path) -> StoredModel | None:
    """The version in a folder, by its manifest; None where its file is gone."""
    try:
        known = manifest.read(version)
    except LpxError:
        return None
    path = version / known.file if known.file else version
    if not path.exists():
        return None
    return StoredModel(
        name=name,
        path=path,
        format=known.format,
        file_bytes=sum(record.bytes for record in known.files),
        licence=known.licence,
        source=known.source,
        sha256=known.files[0].sha256 if len(known.files) == 1 else None,
        created=known.created,
        version=known.version,
        revision=known.revision,
        tokenizer_sha256=known.tokenizer_sha256,
        derived_from=known.derived_from,
        measured=known.measured,
    )


def _originals(name: str, directory: Path) -> list[StoredModel]:
    """What lies in the model's folder itself, or beside it."""
    if not has_original(directory):
        return []
    files = sorted(file for file in directory.glob("*.gguf") if _is_model_file(file))
    if files:
        described = read_manifest(directory)
        first = described.pop("file", None)
        return [
            StoredModel(
                name=name if len(files) == 1 or file.name == first else f"{name}/{file.name}",
                path=file,
                format="gguf",
                file_bytes=_gguf_bytes(file),
                **(described if first == file.name else {}),  # type: ignore[arg-type]
            )
            for file in files
        ]
    weights = list(directory.glob("*.safetensors"))
    if weights and (directory / "config.json").exists():
        return [StoredModel(name, directory, "safetensors", sum(file.stat().st_size for file in weights))]
    path = version_path(directory, ORIGINAL)
    if path.is_file() and _is_model_file(path):
        return [StoredModel(name, path, "gguf", _gguf_bytes(path))]
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
