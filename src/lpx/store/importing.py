"""Bring a model that is on this machine into the store, as a version with a manifest."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lpx.errors import ModelNotFoundError, ModelStoreError, UnsupportedModelError
from lpx.model.models_dir import ORIGINAL
from lpx.store import manifest
from lpx.store.folder import StoredModel
from lpx.store.locks import Progress, name_lock
from lpx.store.names import check_name, check_version, name_from
from lpx.store.space import check_space, disk_error
from lpx.store.versions import describe, link_or_copy, model_files, partial_folder, publish

_CHUNK = 1 << 20


def import_model(
    path: Path,
    folder: Path,
    progress: Progress | None = None,
    *,
    name: str | None = None,
    version: str | None = None,
    licence: str | None = None,
    link: bool = False,
    make_current: bool = True,
    derived_from: str | None = None,
) -> StoredModel:
    """Copy the .gguf file or Hugging Face folder at `path` into `folder`; with `link`, share its bytes (a hard link).

    The model is opened first, so that what is broken or unknown to LPX never becomes a version. Raises ModelFileError,
    ModelNotFoundError, ModelNameError, DownloadError for what the disk refuses.
    """
    from lpx.model.files import open_model, resolve_model

    path = Path(os.path.abspath(os.path.expanduser(path)))
    if not path.exists():
        raise ModelNotFoundError(f"there is no {path} to import; give a .gguf file or a folder with safetensors")
    model = resolve_model(str(path))
    if model.is_file() and model.suffix.lower() != ".gguf":
        raise UnsupportedModelError(f"{model} is no .gguf file")
    called = check_name(name) if name is not None else name_from(model.name.removesuffix(".gguf"))
    if version is not None:
        check_version(version)
    open_model(model).close()
    report = progress or (lambda phase, done, total: None)
    try:
        with name_lock(folder, called, report):
            scratch = partial_folder(folder, called, "import")
            shutil.rmtree(scratch, ignore_errors=True)
            files = model_files(model)
            total = sum(file.stat().st_size for file in files)
            check_space(folder, 0 if link else total, called)
            try:
                scratch.mkdir()
                root = model if model.is_dir() else model.parent
                done = 0
                for file in files:
                    target = scratch / file.relative_to(root)
                    target.parent.mkdir(exist_ok=True)
                    if link:
                        link_or_copy(file.resolve(), target)
                    else:
                        _copy(file, target, lambda more, done=done: report("copying", done + more, total))  # type: ignore[misc]
                    done += file.stat().st_size
                copied = scratch if model.is_dir() else scratch / model.name
                source = f"file:{model}"
                described = describe(copied, name=called, source=source, licence=licence, version=version)
                return publish(
                    scratch, folder, replace(described, derived_from=derived_from), make_current=make_current
                )
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise disk_error(error)(f"cannot store {called} in {folder}: {error.strerror or error}") from error


def _copy(source: Path, target: Path, report: Callable[[int], None]) -> None:
    done = 0
    with source.open("rb") as read, target.open("xb") as out:
        while chunk := read.read(_CHUNK):
            out.write(chunk)
            done += len(chunk)
            report(done)
        out.flush()
        os.fsync(out.fileno())


def check_has_manifest(model: StoredModel) -> None:
    """Raise ModelStoreError for a model that was put there by hand, whose figures have no place."""
    if model.version == ORIGINAL:
        # Under the same name: what is imported becomes the version that the name means.
        command = shlex.join(["lpx", "models", "import", "--link", "--name", model.name, str(model.path)])
        raise ModelStoreError(f"{model.name} has no manifest to note its speed in; give it one with: {command}")


def note_speed(folder: Path, model: StoredModel, figures: dict[str, object]) -> None:
    """Put a measured speed into the manifest of a version, before earlier ones. Raises OSError, ModelStoreError."""
    root = model.path if model.path.is_dir() else model.path.parent
    with name_lock(folder, model.name):
        described = manifest.read(root)
        replace(described, measured=(figures, *described.measured)[:5]).write(root)
