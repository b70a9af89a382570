"""Making the working folder: all of it, or nothing. Files that are there already are never changed."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lpx.doctor.new_file import write_new
from lpx.errors import ConfigError
from lpx.plain_text import plain_text
from lpx.store import CATALOG
from lpx.store.names import check_name, check_version, shown

_TEMPLATES = Path(__file__).with_name("templates")
_FOLDERS = ("models", "inputs", "outputs", "logs", "scripts", "config")
_ENVIRONMENT = ".venv"
_PLACE = re.compile(r"@LPX_[A-Z_]+@")


class FolderError(ConfigError):
    """The working folder cannot be made; nothing of it is left."""

    help_code = "LPX-E084"


@dataclass(frozen=True, slots=True)
class _File:
    """`template` is called as its target, but for a dot in front: git would obey a template called .gitignore."""

    target: str
    template: str
    mode: int = 0o666  # less what the umask takes


_KEYS = _File("config/keys.txt", "config/keys.txt", 0o600)
_FILES = (
    _File("README.md", "README.md"),
    _File(".gitignore", "gitignore"),
    _File(".dockerignore", "dockerignore"),
    _File("Dockerfile", "Dockerfile"),
    _File("Dockerfile.cuda", "Dockerfile.cuda"),
    _File("compose.yaml", "compose.yaml"),
    _File("config/lpx.toml", "config/lpx.toml"),
    _File("config/lpx.service", "config/lpx.service"),
    _KEYS,
    _File("inputs/example.jsonl", "inputs/example.jsonl"),
    _File("scripts/env.sh", "scripts/env.sh"),
    _File("scripts/start.sh", "scripts/start.sh", 0o777),
    _File("scripts/smoke-test.sh", "scripts/smoke-test.sh", 0o777),
    _File("scripts/smoke_test.py", "scripts/smoke_test.py"),
)


@dataclass(frozen=True, slots=True)
class MadeFolder:
    """What was done. `made` and `kept` are paths in the folder; `environment` is what its `.venv` leads to, if made."""

    path: Path
    made: tuple[str, ...]
    kept: tuple[str, ...]
    environment: Path | None


def make_folder(folder: str, model: str, port: int) -> MadeFolder:
    """Put a working folder at `folder`, for `model` (a name of the store) on `port`.

    What is there already and the same is kept, and a key file always is. Raises FolderError, or ModelNameError, and
    leaves nothing behind then.
    """
    _check_model(model)
    try:
        path = _checked_path(folder)
        texts = _filled_in(path, model, port)
        return _put(path, _missing(path, texts), texts)
    except OSError as error:
        raise FolderError(
            f"the working folder cannot be made: {shown(str(error.filename or folder))}: {error.strerror}"
        ) from None


def _check_model(model: str) -> None:
    """Raises FolderError or ModelNameError for what is not NAME or NAME@VERSION of a store."""
    if ":" in model or "/" in model:
        raise FolderError(
            f"--model takes a name, and {shown(model)} is a place: lpx init … --model NAME, then lpx models pull (or "
            "import) it with --name NAME"
        )
    name, at, version = model.partition("@")
    check_name(name)
    if at:
        check_version(version)


def _checked_path(folder: str) -> Path:
    """Absolute, without links resolved. The unit of systemd has to hold it, and so has a line of a message."""
    if not folder:
        raise FolderError("the name of the folder is empty; name one, or . for the current folder")
    try:
        path = Path(os.path.abspath(os.path.expanduser(folder)))
        path_text = os.fsencode(path).decode("utf-8")
    except UnicodeError:
        raise FolderError(f"the folder {shown(folder)} has a name that is not UTF-8; choose another one") from None
    wrong = next((character for character in path_text if not character.isprintable() or character in "\"'\\:"), None)
    if path_text.endswith(" "):
        wrong = " "
    if wrong is not None:
        raise FolderError(
            f"the folder {shown(path_text)} has {wrong!a} in its path, which systemd or a search path does not bear; "
            "choose another one"
        )
    return path


def _filled_in(path: Path, model: str, port: int) -> Mapping[str, str]:
    """The text of every file, by its target."""
    name, _, version = model.partition("@")
    values = {
        "@LPX_MODEL@": model,
        "@LPX_MODEL_NAME@": name,
        "@LPX_PORT@": str(port),
        "@LPX_PULL@": _pull_command(name, version),
        "@LPX_FOLDER@": str(path).replace("%", "%%"),  # systemd's specifiers begin with it
        "@LPX_KEY@": secrets.token_urlsafe(32),
    }
    texts = {}
    for file in _FILES:
        text = (_TEMPLATES / file.template).read_text(encoding="utf-8")
        texts[file.target] = _PLACE.sub(lambda found: values[found[0]], text)
    return texts


def _pull_command(name: str, version: str) -> str:
    """What fetches the model; where LPX does not know the name, its user does know from where."""
    if name in CATALOG:
        return f"lpx models pull {name}"
    return f"lpx models pull hf:OWNER/REPOSITORY:q4_k_m --name {name}" + (f" --version {version}" if version else "")


def _missing(path: Path, texts: Mapping[str, str]) -> list[_File]:
    """The files that are to be written; raises FolderError, which names all that are there and differ."""
    for folder in (*reversed(path.parents), path, *(path / name for name in _FOLDERS)):
        if os.path.lexists(folder) and not folder.is_dir():
            raise FolderError(
                f"{plain_text(str(folder))!r} is there and no folder; move it away or choose another folder"
            )
    missing = [file for file in _FILES if not os.path.lexists(path / file.target)]
    if _KEYS not in missing and not (path / _KEYS.target).is_file():
        raise FolderError(f"{plain_text(str(path / _KEYS.target))!r} is there and no file; move it away")
    differing = [
        file.target
        for file in _FILES
        if file not in missing and file is not _KEYS and not _holds(path / file.target, texts[file.target])
    ]
    if differing:
        raise FolderError(
            f"{shown(str(path))} has files that differ from what would be written, and nothing was changed: "
            f"{', '.join(differing)}. Keep them as they are, or move them away and run this again"
        )
    return missing


def _holds(file: Path, text: str) -> bool:
    """Whether `file` is a regular one with this text."""
    status = file.lstat()
    data = text.encode()
    return stat.S_ISREG(status.st_mode) and status.st_size == len(data) and file.read_bytes() == data


def _put(path: Path, missing: list[_File], texts: Mapping[str, str]) -> MadeFolder:
    """Write what is missing. Whatever ends this before it is done takes everything back that it has made."""
    undo: list[Callable[[], None]] = []
    try:
        for folder in (path, *(path / name for name in _FOLDERS)):
            _make_folders(folder, undo)
        for file in missing:
            write_new(path / file.target, texts[file.target], file.mode)
            undo.append((path / file.target).unlink)
        environment = _link_environment(path)
    except BaseException:
        for step in reversed(undo):
            with contextlib.suppress(OSError):
                step()
        raise
    made = tuple(file.target for file in missing)
    return MadeFolder(path, made, tuple(file.target for file in _FILES if file.target not in made), environment)


def _make_folders(folder: Path, undo: list[Callable[[], None]]) -> None:
    """`folder` and those above it."""
    if folder.is_dir():
        return
    _make_folders(folder.parent, undo)
    folder.mkdir()
    undo.append(folder.rmdir)


def _link_environment(path: Path) -> Path | None:
    """Make `.venv` lead to the virtual environment that runs this, so that the folder's scripts use the same LPX.

    Not where there is a `.venv`, and not where LPX runs without an environment: then `lpx` is on the path.
    """
    link = path / _ENVIRONMENT
    if sys.prefix == sys.base_prefix or os.path.lexists(link):
        return None
    link.symlink_to(sys.prefix)
    return Path(sys.prefix)
