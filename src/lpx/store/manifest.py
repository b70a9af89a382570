"""The manifest of a version: where it comes from, what its files hash to, and what is known of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lpx.errors import LpxError, ModelStoreError
from lpx.model.models_dir import MANIFEST, read_whole_manifest
from lpx.store.atomic import write_text

_SCHEMA = 1
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a version."""

    path: str  # in the folder of the version, with / between
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a version says of itself; None and "" are not known."""

    name: str
    version: str
    files: tuple[FileRecord, ...]
    format: str  # "gguf" or "safetensors"
    source: str = ""  # as it can be pulled again
    revision: str | None = None  # of the source
    licence: str | None = None
    title: str | None = None
    tokenizer_sha256: str | None = None
    created: str = ""  # ISO 8601, UTC
    derived_from: str | None = None  # NAME@VERSION, and how it was made
    measured: tuple[Mapping[str, Any], ...] = ()  # speeds, latest first

    @property
    def file(self) -> str:
        """The file to load of a GGUF model: its only one, or the first of its parts."""
        return next((record.path for record in self.files if record.path.endswith(".gguf")), "")

    def write(self, directory: Path) -> None:
        """Write `manifest.json` into `directory`, whole or not at all."""
        values = {"schema": _SCHEMA, **asdict(self), "file": self.file}
        if len(self.files) == 1:
            values["sha256"] = self.files[0].sha256
        write_text(directory / MANIFEST, json.dumps(values, ensure_ascii=False, indent=2) + "\n")


def read(directory: Path) -> Manifest:
    """The manifest in a version's folder. Raises ModelStoreError when it is missing or makes no sense."""
    values = read_whole_manifest(directory)
    try:
        listed = values["files"]
        if not isinstance(listed, list) or not _is_plain(values):
            raise ValueError(listed)
        files = tuple(FileRecord(_inside(each["path"]), _size(each["bytes"]), str(each["sha256"])) for each in listed)
        measured = values.get("measured")
        measured = measured if isinstance(measured, list) else []
        texts = {key: values.get(key) for key in ("revision", "licence", "title", "tokenizer_sha256", "derived_from")}
        return Manifest(
            name=str(values["name"]),
            version=str(values["version"]),
            files=files,
            format=str(values["format"]),
            source=str(values.get("source") or ""),
            created=str(values.get("created") or ""),
            measured=tuple(each for each in measured if isinstance(each, dict)),
            **{key: value if isinstance(value, str) else None for key, value in texts.items()},
        )
    except (KeyError, TypeError, ValueError):
        raise ModelStoreError(f"{directory / MANIFEST} cannot be understood; pull or import the model again") from None


def _inside(path: Any) -> str:
    """A path below the version's folder as it is written; whoever made the manifest may have meant another place."""
    if not isinstance(path, str) or not path.isprintable() or "\\" in path:
        raise ValueError(path)
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(path)
    return path


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _is_plain(values: Mapping[str, Any]) -> bool:
    """Whether all of it can be written as JSON again, in UTF-8."""
    try:
        json.dumps(values, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def content_version(files: Sequence[FileRecord]) -> str:
    """The name of a version that holds `files`: the beginning of the hash of its file, or of the list of its files."""
    if len(files) == 1:
        return files[0].sha256[:12]
    lines = "".join(f"{record.sha256}  {record.path}\n" for record in sorted(files, key=lambda each: each.path))
    return hashlib.sha256(lines.encode()).hexdigest()[:12]


def hash_file(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def tokenizer_hash(directory: Path, files: Sequence[FileRecord]) -> str | None:
    """A hash of the tokenizer alone, which tells whether two versions have the same; None where it cannot be read.

    Of `tokenizer.json` it is that of the file; of a GGUF file, of its `tokenizer.ggml.*` values.
    """
    for record in files:
        if record.path == "tokenizer.json":
            return record.sha256
    first = next((record.path for record in files if record.path.endswith(".gguf")), None)
    if first is None:
        return None
    from lpx.model.gguf import GgufFile

    try:
        with GgufFile(directory / first) as file:
            values = {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.ggml.")}
    except (LpxError, OSError):
        return None
    digest = hashlib.sha256()
    for key in sorted(values):
        value = values[key]
        as_list = value.tolist() if hasattr(value, "tolist") else value
        digest.update(json.dumps([key, as_list], ensure_ascii=True).encode())
    return digest.hexdigest() if values else None
