"""This end of engines in processes of their own: start them, ask them, end them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpx.bench.engine_settings import options_from
from lpx.bench.measurement import Subject
from lpx.errors import ConfigError, LpxError
from lpx.store import named_as_stored

if TYPE_CHECKING:
    from typing_extensions import Self

_LAST_LINES = 5
_PATIENCE_S = 10.0  # for a process that has been told to end


class SideError(LpxError):
    """A side of a comparison failed or ended; the message says which and why."""

    help_code = "LPX-E092"


class Worker:
    """A process that sleeps until it is asked, with JSON lines for commands and replies; a context manager.

    Raises ConfigError when it cannot be started, and SideError when it fails.
    """

    def __init__(self, name: str, command: Sequence[str], *, own_python: bool) -> None:
        """With `own_python` the process finds this very LPX, wherever it was imported from; else what it has itself."""
        self.name = name
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed in close
        environment = dict(os.environ)
        root = str(Path(__file__).resolve().parents[3])
        if own_python and not root.endswith("-packages"):  # run from a checkout
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        elif not own_python:
            environment.pop("PYTHONPATH", None)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the command, which then ends its workers
            )
        except OSError as error:
            self._said.close()
            raise ConfigError(f"{name}: {command[0]} cannot be started: {error.strerror}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """The reply to one command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line.endswith(b"\n"):
            raise SideError(f"{self.name}: its process ended with exit code {self._process.wait()}{self._last_words()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            error = (ConfigError if reply.get("config") else SideError)(f"{self.name}: {reply['error']}")
            error.help_code = reply.get("code") or error.help_code  # of the error in that process
            raise error
        return reply

    def close(self) -> None:
        """End the process and wait for it; safe to call twice."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:  # in the middle of a long step
            self._process.kill()
            self._process.wait()
        self._said.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ending: object) -> None:
        self.close()

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
        return ": " + " | ".join(lines) if lines else ""


class EngineWorker(Worker):
    """A loaded engine of LPX.

    `settings` as of `lpx.bench.engine_settings`; `python` is the interpreter of another installation of LPX. Raises
    ConfigError for options that cannot be honoured, and SideError when the process fails.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], python: str | None = None) -> None:
        command = [python or sys.executable, "-m", "lpx.bench.sides.engine_worker"]
        super().__init__(name, command, own_python=python is None)
        try:
            loaded = self.ask("load", settings=dict(settings))
        except BaseException:
            self.close()
            raise
        self.info: dict[str, Any] = loaded["info"]
        # By this end, as for every measurement: another installation may have another rule.
        self.info["model"] = named_as_stored(options_from(settings)).served_model_name or self.info["model"]
        self.version: str = loaded["version"]

    @property
    def subject(self) -> Subject:
        """What is really in use, as the engine says it."""
        names = ("model", "quantization", "kv_cache_dtype", "device", "isa", "threads")
        return Subject(engine="lpx", engine_version=self.version, **{name: self.info[name] for name in names})
