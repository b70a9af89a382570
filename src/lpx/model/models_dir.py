"""Where models lie in the model folder: names, versions, and which of these is current. Filling it is the store's.

A model has a folder of its name. Its versions are folders in there, each with a `manifest.json`; the file `current`
names the one in use on its first line, and those in use before it on the next ones. What lies in the model's folder
itself (put there by hand, or by an early LPX) is the version `original`, and stays where it is; so is `NAME.gguf`
beside the folders.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from lpx.errors import ModelNotFoundError

MANIFEST = "manifest.json"
CURRENT = "current"
ORIGINAL = "original"

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_LEAST_PREFIX = 4  # characters of a version that stand for all of it


def models_dir(override: str | os.PathLike[str] | None = None) -> Path:
    """The model folder: `override`, else LPX_MODELS_DIR, else `lpx/models` in the user's cache. It need not exist."""
    chosen = os.fspath(override) if override else os.environ.get("LPX_MODELS_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return platformdirs.user_cache_path("lpx") / "models"


def read_manifest(directory: Path) -> dict[str, str]:
    """What the manifest of a pulled model says, as far as it can be read: a spoilt one does not hide the model."""
    manifest = read_whole_manifest(directory)
    wanted = ("file", "licence", "source", "sha256", "created")
    return {key: value for key in wanted if isinstance(value := manifest.get(key), str)}


def read_whole_manifest(directory: Path) -> dict[str, object]:
    """The object in a manifest; {} where there is none to read."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def is_version_name(text: str) -> bool:
    """Whether `text` may name the folder of a version."""
    return bool(_VERSION.fullmatch(text)) and not text.endswith(".") and text != CURRENT


def split_version(name: str) -> tuple[str, str | None]:
    """`NAME@VERSION` in two; a name without version gives None."""
    name, at, version = name.rpartition("@")
    return (name, version) if at and name else (version, None)


def stored_versions(directory: Path) -> list[str]:
    """Versions that are folders of the model's folder, by name; `original` is not among them."""
    try:
        entries = sorted(directory.iterdir())
    except OSError:
        return []
    return [entry.name for entry in entries if is_version_folder(entry)]


def is_version_folder(path: Path) -> bool:
    """Whether a folder is a version, which its manifest says: others have manifests, too."""
    return (
        is_version_name(path.name)
        and path.name != ORIGINAL
        and not path.is_symlink()
        and path.is_dir()
        and read_whole_manifest(path).get("version") == path.name
    )


def version_of(path: Path) -> str | None:
    """The version that a model's file, or folder, is; None for what lies outside of versions."""
    directory = path if path.is_dir() else path.parent
    return directory.name if is_version_folder(directory) else None


def current_and_earlier(directory: Path) -> list[str]:
    """The current version, and behind it those before it, latest first: as far as they are still there.

    Without a file that says so, what lies in the folder itself is current, else the only version there is.
    """
    named: list[str] = []
    try:
        lines = (directory / CURRENT).read_text("utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    for line in lines:
        version = line.strip()
        if version not in named and _is_there(directory, version):
            named.append(version)
    if named:
        return named
    if has_original(directory):
        return [ORIGINAL]
    versions = stored_versions(directory)
    return versions if len(versions) == 1 else []


def has_original(directory: Path) -> bool:
    """Whether the model's folder is a model itself, or has one beside it, without versions."""
    return any(directory.glob("*.gguf")) or any(directory.glob("*.safetensors")) or _beside(directory).is_file()


def version_path(directory: Path, version: str) -> Path:
    """Where a version lies: its folder, or a file beside the model's folder for an `original` that is one.

    `version` may be the beginning of a name that no other version begins with. Raises ModelNotFoundError, which lists
    those there are.
    """
    found = stored_versions(directory) + ([ORIGINAL] if has_original(directory) else [])
    matches = [version] if version in found else []
    if not matches and len(version) >= _LEAST_PREFIX:
        matches = [each for each in found if each.startswith(version)]
    if len(matches) != 1:
        listed = ", ".join(found) or "none"
        raise ModelNotFoundError(
            f"{directory.name} has {'more than one' if matches else 'no'} version {version[:80]!r}; there are: {listed}"
        )
    if matches[0] != ORIGINAL:
        return directory / matches[0]
    holds_one = any(directory.glob("*.gguf")) or any(directory.glob("*.safetensors"))
    return directory if holds_one else _beside(directory)


def current_path(directory: Path) -> Path:
    """Where the current version lies; the folder itself where it has no versions. Raises ModelNotFoundError."""
    versions = current_and_earlier(directory)
    if versions:
        return version_path(directory, versions[0])
    if several := stored_versions(directory):
        raise ModelNotFoundError(
            f"none of the versions of {directory.name} is current; choose one with: lpx models use "
            f"{directory.name}@{several[-1]}"
        )
    return directory


def _is_there(directory: Path, version: str) -> bool:
    return has_original(directory) if version == ORIGINAL else is_version_folder(directory / version)


def _beside(directory: Path) -> Path:
    return directory.parent / f"{directory.name}.gguf"
