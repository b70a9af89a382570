"""Whether what lies in the store is still what came: every file hashed and compared with the manifest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lpx.model.models_dir import MANIFEST, ORIGINAL
from lpx.store import manifest
from lpx.store.atomic import scratch_name
from lpx.store.folder import StoredModel


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one version."""

    name: str
    version: str
    problems: tuple[str, ...]  # none: it is sound
    checked_bytes: int
    has_hashes: bool = True  # False: nothing to compare with, so only that it can be opened was seen

    @property
    def sound(self) -> bool:
        return not self.problems


def verify(model: StoredModel, report: Callable[[int, int], None] = lambda done, total: None) -> Verdict:
    """Read all of a version. Files beside those of the manifest are problems in a version that the store brought."""
    if model.version == ORIGINAL:
        return _verify_original(model, report)
    root = model.path if model.path.is_dir() else model.path.parent
    known = manifest.read(root).files
    problems = []
    done, total = 0, sum(record.bytes for record in known)
    for record in known:
        report(done, total)
        problem = _problem(root / record.path, record)
        if problem is not None:
            problems.append(f"{record.path}: {problem}")
        done += record.bytes
    report(total, total)
    expected = {record.path for record in known} | {MANIFEST, scratch_name(MANIFEST)}
    strange = sorted(
        file.relative_to(root).as_posix()
        for file in root.rglob("*")
        if not file.is_dir() and file.relative_to(root).as_posix() not in expected
    )
    problems += [f"{path}: does not belong to this version" for path in strange]
    return Verdict(model.name, model.version, tuple(problems), total)


def _problem(path: Path, record: manifest.FileRecord) -> str | None:
    try:
        if path.is_symlink() or not path.is_file():
            return "is a link" if path.is_symlink() else "is missing"
        size = path.stat().st_size
        if size != record.bytes:
            return f"has {size} bytes, expected {record.bytes}"
        found = manifest.hash_file(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if found == record.sha256 else f"has sha256 {found}, expected {record.sha256}"


def _verify_original(model: StoredModel, report: Callable[[int, int], None]) -> Verdict:
    """By the one hash that there may be; without it, whether the model can be opened."""
    if model.sha256 is not None and model.path.is_file():
        report(0, model.file_bytes)
        problem = _problem(model.path, manifest.FileRecord(model.path.name, model.path.stat().st_size, model.sha256))
        report(model.file_bytes, model.file_bytes)
        problems = () if problem is None else (f"{model.path.name}: {problem}",)
        return Verdict(model.name, model.version, problems, model.file_bytes)
    from lpx.errors import LpxError
    from lpx.model.files import open_model

    try:
        open_model(model.path).close()
    except (LpxError, OSError) as error:
        return Verdict(model.name, model.version, (str(error),), 0, has_hashes=False)
    return Verdict(model.name, model.version, (), 0, has_hashes=False)
