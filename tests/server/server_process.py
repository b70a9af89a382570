"""A server process for tests, on the fake model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import httpx

from tests.server.live_server import eventually

ROOT = Path(__file__).parents[2]


class Process:
    """`tests.server.fake_serve` in a process of its own; what it logs is in `log`."""

    def __init__(
        self,
        port: int,
        mode: str,
        *more: str,
        settings: dict[str, Any] | None = None,
        stderr: int | IO[bytes] = subprocess.PIPE,
        limit_file_bytes: int | None = None,
        before_start: Callable[[], object] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.fake_serve", str(port), mode, *more],
            cwd=ROOT,
            stderr=stderr,
            stdout=subprocess.DEVNULL,
            text=True,
            preexec_fn=before_start,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "LPX_TEST_SETTINGS": json.dumps(settings or {}),
                "LPX_TEST_FILE_BYTES": str(limit_file_bytes or ""),
            },
        )
        self.log = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr or ():
            self.log += line

    def wait(self) -> int:
        code = self.process.wait(120)
        self._reader.join(30)
        return code

    @property
    def url(self) -> str:
        def announced() -> str | None:
            found = re.search(r"listening on (https?://[^\s\"]+)", self.log)
            assert self.process.poll() is None or found, self.log
            return found[1] if found else None

        eventually(announced, "the announcement")
        return announced() or ""

    def wait_ready(self, client: httpx.Client | None = None) -> str:
        url = self.url
        get = httpx.get if client is None else client.get
        more: dict[str, Any] = {"trust_env": False} if client is None else {}
        eventually(lambda: get(url + "/health", **more).status_code == 200, "readiness")
        return url
