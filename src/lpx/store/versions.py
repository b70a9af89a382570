"""Versions of a model: which is current, and bringing in, taking out and copying them.

Every change happens under the lock of the name and shows in one rename, so that whoever looks, or starts after a kill,
sees the state before it or the one behind it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lpx.errors import ModelNotFoundError, ModelStoreError
from lpx.model.in_use import is_in_use, not_in_use
from lpx.model.models_dir import CURRENT, MANIFEST, ORIGINAL, current_and_earlier, split_version
from lpx.store import manifest
from lpx.store.atomic import sync_folder, write_text
from lpx.store.folder import StoredModel, find_version, list_models, list_versions
from lpx.store.locks import is_locked, name_lock
from lpx.store.names import check_name, shown

_REMEMBERED = 50  # versions that `current` lists
_PARTIAL = ".partial"
_TRASH = ".removed"


# --- which is current ---


def use(folder: Path, name: str, version: str) -> StoredModel:
    """Make `version` current; its beginning will do. Raises ModelNotFoundError."""
    with _changing(folder, name):
        found = find_version(name, version, folder)
        set_current(folder / name, found.version)
        return replace(found, current=True)


def rollback(folder: Path, name: str) -> tuple[StoredModel, StoredModel]:
    """Make the version current that was so before; returns (what was, what is). Raises ModelStoreError without one."""
    with _changing(folder, name):
        list_versions(folder, name)  # which says so when there is no such model
        named = current_and_earlier(folder / name)
        if len(named) < 2:
            raise ModelStoreError(
                f"{name} has no earlier version to go back to; lpx models show {name} lists those there are, and "
                f"lpx models use {name}@VERSION takes one"
            )
        was, now = (find_version(name, version, folder) for version in named[:2])
        _write_current(folder / name, named[1:])
        return replace(was, current=False), replace(now, current=True)


def set_current(directory: Path, version: str) -> None:
    """Note `version` as current, and what was so as the one before it. The caller holds the lock. Raises OSError."""
    named = current_and_earlier(directory)
    if named[:1] != [version]:
        _write_current(directory, [version, *(each for each in named if each != version)])
    elif not (directory / CURRENT).is_file():
        _write_current(directory, named)


def _write_current(directory: Path, versions: Sequence[str]) -> None:
    directory.mkdir(exist_ok=True)
    write_text(directory / CURRENT, "".join(f"{version}\n" for version in versions[:_REMEMBERED]))


# --- in ---


def partial_folder(folder: Path, name: str, key: str) -> Path:
    """Where a version of `name` is put together; `key` tells sources apart."""
    return folder / f".{name}.{key}{_PARTIAL}"


def publish(scratch: Path, folder: Path, described: manifest.Manifest, *, make_current: bool) -> StoredModel:
    """Turn the folder `scratch`, whose files are whole, into a version. The caller holds the lock of the name.

    Where that version is there already its files are replaced, each at once: what a process has open stays as it is.
    Raises ModelStoreError, and OSError for what the disk refuses.
    """
    directory = folder / described.name
    if directory.is_symlink():
        raise ModelStoreError(f"{directory} is a link; remove it or choose another folder with --models-dir")
    _clear(scratch, described)
    described.write(scratch)
    for parent, _, _ in os.walk(scratch):
        sync_folder(Path(parent))
    target = directory / described.version
    directory.mkdir(exist_ok=True)
    if target.exists():
        _check_replaceable(target, described)
        for record in described.files:
            (target / record.path).parent.mkdir(exist_ok=True)
            (scratch / record.path).replace(target / record.path)
        (scratch / MANIFEST).replace(target / MANIFEST)
        shutil.rmtree(scratch, ignore_errors=True)
    else:
        scratch.rename(target)
    sync_folder(directory)
    sync_folder(folder)
    if make_current:
        set_current(directory, described.version)
    return find_version(described.name, described.version, folder)


def _clear(scratch: Path, described: manifest.Manifest) -> None:
    """Take away what killed processes have left beside the files."""
    wanted = {scratch / record.path for record in described.files}
    for entry in list(scratch.rglob("*")):
        if entry not in wanted and not entry.is_dir():
            entry.unlink()


def _check_replaceable(target: Path, described: manifest.Manifest) -> None:
    """A version never becomes another one under the same name."""
    try:
        known = manifest.read(target)
    except ModelStoreError:
        return  # spoilt: mended by this
    if sorted(known.files, key=lambda each: each.path) != sorted(described.files, key=lambda each: each.path):
        raise ModelStoreError(
            f"{described.name}@{described.version} is there already and holds something else; give another --version"
        )


def copy(folder: Path, source: str, name: str) -> StoredModel:
    """Make model `name` of the version that `source` names, sharing its bytes by hard links where the disk can.

    Raises ModelNotFoundError, ModelNameError, ModelStoreError.
    """
    check_name(name)
    found = require(folder, source)
    with name_lock(folder, name):
        if any(model.name == name for model in list_models(folder)):
            raise ModelStoreError(f"{name} is there already; remove it first, or choose another name")
        scratch = partial_folder(folder, name, "copy")
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            described = _description(found)
            scratch.mkdir()
            root = found.path if found.path.is_dir() else found.path.parent
            for record in described.files:
                (scratch / record.path).parent.mkdir(exist_ok=True)
                link_or_copy(root / record.path, scratch / record.path)
            return publish(
                scratch,
                folder,
                replace(described, name=name, derived_from=f"{found.spelled}, copied"),
                make_current=True,
            )
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Raises OSError."""
    try:
        os.link(source, target, follow_symlinks=True)
    except OSError:
        shutil.copyfile(source, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())


def _description(model: StoredModel) -> manifest.Manifest:
    """The manifest of a version, made anew for one that has none."""
    if model.version != ORIGINAL:
        return manifest.read(model.path if model.path.is_dir() else model.path.parent)
    return describe(model.path, name=model.name, licence=model.licence, source=model.source or "")


def describe(
    path: Path, *, name: str, source: str, licence: str | None = None, version: str | None = None, created: str = ""
) -> manifest.Manifest:
    """A manifest for the model at `path`, whose files are hashed for it."""
    root = path if path.is_dir() else path.parent
    files = tuple(
        manifest.FileRecord(file.relative_to(root).as_posix(), file.stat().st_size, manifest.hash_file(file))
        for file in model_files(path)
    )
    return manifest.Manifest(
        name=name,
        version=version or manifest.content_version(files),
        files=files,
        format="safetensors" if path.is_dir() else "gguf",
        source=source,
        licence=licence,
        tokenizer_sha256=manifest.tokenizer_hash(root, files),
        created=created or manifest.now(),
    )


def model_files(path: Path) -> list[Path]:
    """The files of the model at `path`: a .gguf file with its other parts, or what counts in a Hugging Face folder."""
    from lpx.store.sources.plan import HubFile
    from lpx.store.sources.selection import choose

    root = path if path.is_dir() else path.parent
    listed = [
        HubFile(file.relative_to(root).as_posix(), file.stat().st_size)
        for file in [*root.glob("*"), *root.glob("1_Pooling/config.json")]
        if file.is_file()
    ]
    wanted = "safetensors" if path.is_dir() else path.name
    return [root / file.path for file in choose(listed, wanted, str(path))[1]]


# --- out ---


def remove(folder: Path, name: str, version: str | None = None) -> list[StoredModel]:
    """Remove a version, or without one the whole model; returns what was removed.

    Raises ModelInUseError, before anything is removed, when a process uses what is to go; ModelStoreError for the
    current version while there are others.
    """
    with _changing(folder, name):
        versions = list_versions(folder, name)
        if version is not None:
            doomed = [find_version(name, version, folder)]
            if doomed[0].current and len(versions) > 1:
                raise ModelStoreError(
                    f"{doomed[0].spelled} is the current version; choose another first: lpx models use {name}@… or "
                    f"lpx models rollback {name}"
                )
        else:
            doomed = versions
        with contextlib.ExitStack() as held:
            for model in doomed:
                held.enter_context(not_in_use(model.path, model.spelled))
            if len(doomed) == len(versions):
                with contextlib.suppress(FileNotFoundError):
                    (folder / name / CURRENT).unlink()
            for model in doomed:
                _discard(folder, model)
        if len(doomed) == len(versions):
            with contextlib.suppress(OSError):  # something else lies in there
                (folder / name).rmdir()
        else:
            _write_current(folder / name, current_and_earlier(folder / name))
        return doomed


def _discard(folder: Path, model: StoredModel) -> None:
    """Take a version away in one rename, then delete it."""
    if model.version != ORIGINAL:
        directory = folder / model.name / model.version
        trash = folder / f".{model.name}.{model.version}{_TRASH}"
        shutil.rmtree(trash, ignore_errors=True)
        directory.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)
        return
    files = model_files(model.path)
    with contextlib.suppress(FileNotFoundError):
        if model.path.is_dir() or _is_described(model.path):
            (model.path if model.path.is_dir() else model.path.parent).joinpath(MANIFEST).unlink()
    for file in files:
        file.unlink()


def _is_described(path: Path) -> bool:
    """Whether the manifest beside a file speaks of it."""
    from lpx.model.models_dir import read_manifest

    return read_manifest(path.parent).get("file") == path.name


@dataclass(frozen=True, slots=True)
class Pruned:
    """What `prune` takes away."""

    what: str  # NAME@VERSION, or the unfinished pull's folder
    bytes: int


def prune(folder: Path, name: str | None = None, *, keep: int = 1, dry_run: bool = False) -> list[Pruned]:
    """Remove unfinished pulls, and versions older than the current one but the `keep` before it; returns what went.

    What is in use, or being changed at this moment, stays; so does whatever the store did not bring. Raises
    ModelNotFoundError for a name that neither a model nor an unfinished pull has.
    """
    if name is not None and not any(_owner(entry) == name for entry in _leftovers(folder)):
        list_versions(folder, name)
    pruned = _prune_leftovers(folder, name, dry_run)
    for model in list_models(folder):
        if name not in (None, model.name) or "/" in model.name:
            continue
        with _changing(folder, model.name):
            directory = folder / model.name
            named = current_and_earlier(directory)
            kept = set(named[: keep + 1])
            for version in list_versions(folder, model.name):
                if model.current and (version.created or "") > (model.created or ""):
                    continue  # newer than the current one, which was gone back to
                if version.version in kept or version.version == ORIGINAL or not named or is_in_use(version.path):
                    continue
                pruned.append(Pruned(version.spelled, version.file_bytes))
                if not dry_run:
                    with not_in_use(version.path, version.spelled):
                        _discard(folder, version)
            if not dry_run and (directory / CURRENT).is_file():
                _write_current(directory, current_and_earlier(directory))
    return pruned


def _prune_leftovers(folder: Path, name: str | None, dry_run: bool) -> list[Pruned]:
    pruned = []
    for entry in _leftovers(folder):
        owner = _owner(entry)
        if name not in (None, owner) or is_locked(folder, owner):
            continue
        size = sum(file.stat().st_size for file in entry.rglob("*") if file.is_file())
        pruned.append(Pruned(entry.name, size))
        if not dry_run:
            shutil.rmtree(entry, ignore_errors=True)
    return pruned


def _leftovers(folder: Path) -> list[Path]:
    """Folders of unfinished pulls and removals."""
    return [
        entry
        for entry in (sorted(folder.glob(".*")) if folder.is_dir() else [])
        if entry.name.endswith((_PARTIAL, _TRASH)) and not entry.is_symlink() and entry.is_dir()
    ]


def _owner(leftover: Path) -> str:
    """The model that it belongs to: it is called .NAME.KEY.partial, and was .NAME.partial once."""
    stem = leftover.name[1:]
    return stem.rpartition(".")[0].rpartition(".")[0] or stem.partition(".")[0]


def matching(folder: Path, names: Sequence[str]) -> list[StoredModel]:
    """The versions that `NAME` (all of it) and `NAME@VERSION` mean; without any, all there are. ModelNotFoundError."""
    found = []
    for spelled in names or [model.name for model in list_models(folder)]:
        _, version = split_version(spelled)
        found += [require(folder, spelled)] if version is not None else list_versions(folder, spelled)
    return found


def require(folder: Path, spelled: str) -> StoredModel:
    """The version that `NAME` or `NAME@VERSION` means. Raises ModelNotFoundError."""
    from lpx.store.folder import find_stored

    model = find_stored(spelled, folder)
    if model is not None:
        return model
    name, version = split_version(spelled)
    if version is not None and any(each.name == name for each in list_models(folder)):
        return find_version(name, version, folder)  # which lists those there are
    raise ModelNotFoundError(f"no model called {shown(spelled)} in {folder}; `lpx models list` shows what is there")


@contextlib.contextmanager
def _changing(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock of a model that is there. Raises ModelNotFoundError before anything is made."""
    list_versions(folder, name)
    with name_lock(folder, name.partition("/")[0]):
        yield
