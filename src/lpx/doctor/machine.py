"""What checks may ask of a machine: commands with a time limit, files, disks. Tests give captured texts instead.

Nothing here raises for what the machine says: a command that is missing, hangs or fails is an `Output` that says so,
and a file that cannot be read is None.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")

_MOST_FILE_BYTES = 1 << 20  # of /proc and /sys; the rest says nothing new
_MORE_FOLDERS = ("/usr/sbin", "/sbin", "/usr/lib/wsl/lib")  # not on the path of every user
DEFAULT_LIMIT_S = 1.5
ALL_LIMIT_S = 75.0  # from the first command on: what hangs one after the other does not add up beyond it
MOST_OUTPUT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Output:
    """What a command said. `problem` is why it has no exit code: "missing", "timeout", "too much output", others."""

    code: int | None
    stdout: str = ""
    stderr: str = ""
    problem: str = ""

    @property
    def text(self) -> str:
        """Both streams: which one a message is on differs between versions of the same tool."""
        return "\n".join(part for part in (self.stdout, self.stderr) if part.strip())

    @property
    def missing(self) -> bool:
        return self.problem == "missing"

    @property
    def ok(self) -> bool:
        return self.code == 0


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Of the file system that a folder lies on; `free_bytes` is what this user may take."""

    total_bytes: int
    free_bytes: int
    free_inodes: int | None  # None where the file system has no fixed number


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that runs LPX."""

    version: tuple[int, int, int] = sys.version_info[:3]
    executable: str = sys.executable
    prefix: str = sys.prefix
    base_prefix: str = sys.base_prefix
    is_64_bit: bool = sys.maxsize > 2**32


class Machine:
    """One machine as the checks see it. `root` is where `/proc`, `/sys` and `/etc` lie."""

    def __init__(
        self,
        root: Path = Path("/"),
        environment: Mapping[str, str] | None = None,
        *,
        run: Callable[[tuple[str, ...], float], Output] | None = None,
        which: Callable[[str], str | None] | None = None,
        disk: Callable[[Path], DiskSpace | None] | None = None,
        interpreter: Interpreter | None = None,
        affinity: frozenset[int] | None = None,
        site_packages: Path | None = None,
        all_limit_s: float = ALL_LIMIT_S,
    ) -> None:
        self.root = root
        self.environment = os.environ if environment is None else environment
        self.interpreter = interpreter or Interpreter()
        self.affinity = affinity
        self.site_packages = site_packages or Path(sysconfig.get_path("purelib"))
        self._run = run or run_command
        self._which = which or find_command
        self._disk = disk or disk_space
        self._known: dict[Any, Any] = {}
        self._locks: dict[Any, threading.Lock] = {}
        self._lock = threading.Lock()
        self._all_limit_s = all_limit_s

    def once(self, key: Any, find: Callable[[], T]) -> T:
        """What `find` returns, found at most once: checks run in threads and share what they read."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._known:
                self._known[key] = find()
            known: T = self._known[key]
            return known

    def run(self, *command: str, limit_s: float = DEFAULT_LIMIT_S) -> Output:
        """The command's output; it is killed with its children after `limit_s` seconds, or when all have had theirs."""
        return self.once(("run", command), lambda: self._run_in_time(command, limit_s))

    def _run_in_time(self, command: tuple[str, ...], limit_s: float) -> Output:
        deadline = self.once("deadline of all commands", lambda: monotonic() + self._all_limit_s)
        left = deadline - monotonic()
        return self._run(command, min(limit_s, left)) if left > 0 else Output(None, problem="timeout")

    def which(self, name: str) -> str | None:
        """Path of a command, or None."""
        return self._which(name)

    def read(self, path: str) -> str | None:
        """The file's text without surrounding space; None when it cannot be read."""
        try:
            with open(self.path(path), "rb") as file:
                return file.read(_MOST_FILE_BYTES).decode("utf-8", "replace").strip("\0 \t\r\n")
        except OSError:
            return None

    def read_bytes(self, path: str) -> bytes | None:
        try:
            with open(self.path(path), "rb") as file:
                return file.read(_MOST_FILE_BYTES)
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        try:
            return self.path(path).exists()
        except OSError:
            return False

    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted; none when it cannot be read."""
        try:
            return sorted(os.listdir(self.path(folder)))
        except OSError:
            return []

    def names_at(self, folder: Path) -> list[str]:
        """As `names`, of a folder that is not looked for under `root`."""
        try:
            return sorted(os.listdir(folder))
        except OSError:
            return []

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def disk(self, folder: Path) -> DiskSpace | None:
        return self._disk(folder)


def run_command(command: tuple[str, ...], limit_s: float) -> Output:
    """Run a command of this machine in the C locale, with nothing on its input."""
    program = find_command(command[0])
    if program is None:
        return Output(None, problem="missing")
    try:
        process = subprocess.Popen(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C", "LANG": "C"},
            start_new_session=True,
        )
    except OSError as error:
        return Output(None, problem=error.strerror or "cannot be started")
    found, problem = _read_output(process, limit_s)
    if problem is not None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        # One that a driver holds inside the kernel cannot even be killed: it is left behind, not waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        return Output(None, problem=problem)
    return Output(process.returncode, *(data.decode("utf-8", "replace") for data in found))


def _read_output(process: subprocess.Popen[bytes], limit_s: float) -> tuple[list[bytes], str | None]:
    """What a command writes to its two streams until it ends, or the problem that it does not end well."""
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = monotonic() + limit_s
    found = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as waiting:
        for stream in found:
            waiting.register(stream, selectors.EVENT_READ)
        while waiting.get_map():
            ready = waiting.select(max(deadline - monotonic(), 0))
            if not ready:
                return [], "timeout"
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    waiting.unregister(key.fileobj)
                found[key.fileobj] += data  # type: ignore[index]
            if sum(map(len, found.values())) > MOST_OUTPUT_BYTES:
                return [], "too much output"
    try:
        process.wait(max(deadline - monotonic(), 0))
    except subprocess.TimeoutExpired:
        return [], "timeout"
    for stream in found:
        stream.close()
    return [bytes(data) for data in found.values()], None


def find_command(name: str) -> str | None:
    if os.path.isabs(name):
        return name if os.access(name, os.X_OK) else None
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_MORE_FOLDERS]))


def disk_space(folder: Path) -> DiskSpace | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return DiskSpace(
        total_bytes=found.f_blocks * found.f_frsize,
        free_bytes=found.f_bavail * found.f_frsize,
        free_inodes=found.f_favail if found.f_files else None,
    )
