"""Texts of requests and answers, for those who ask for them (`--log-requests-to`): one file for each key.

A thread writes, so that a slow disk holds nobody up. What cannot be written, because the disk is full or the thread
is behind, is dropped and counted; the service goes on.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lpx.private_folder import make_private_folder

logger = logging.getLogger("lpx.server")

MAX_FILE_BYTES = 64 * 1024 * 1024
KEPT_FILES = 4  # of each key, the one that grows included
_MAX_QUEUED = 1000  # requests that wait to be written


@dataclass(slots=True)
class Transcript:
    """The texts of one request, until it has ended."""

    log: TextLog
    key_name: str | None
    request_id: str
    model: str
    prompts: Sequence[Sequence[int]]
    decode: Callable[[Sequence[int]], str]  # ids to text, control tokens shown
    answers: dict[int, list[str]] = field(default_factory=dict)  # by choice
    finish_reasons: dict[int, str] = field(default_factory=dict)

    def add(self, choice: int, text: str, finish_reason: str | None) -> None:
        if text:
            self.answers.setdefault(choice, []).append(text)
        if finish_reason is not None:
            self.finish_reasons[choice] = finish_reason

    def end(self, choices: int) -> None:
        """Hand it over to be written."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")

        def record() -> dict[str, Any]:
            return {
                "time": now,
                "id": self.request_id,
                "key": self.key_name,
                "model": self.model,
                "prompts": [self.decode(list(prompt)) for prompt in self.prompts],
                "answers": [
                    {
                        "index": index,
                        "text": "".join(self.answers.get(index, ())),
                        "finish_reason": self.finish_reasons.get(index, "abort"),
                    }
                    for index in range(choices)
                ],
            }

        self.log.put(self.key_name or "anonymous", record)


class TextLog:
    """Owns the folder and its thread. Raises `ConfigError` when the folder is no private one."""

    def __init__(self, folder: Path, *, max_file_bytes: int = MAX_FILE_BYTES, max_queued: int = _MAX_QUEUED) -> None:
        self.dropped = 0  # requests that were not written
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._failing = False
        self._queue: queue.Queue[tuple[str, Callable[[], dict[str, Any]]] | None] = queue.Queue(max_queued)
        make_private_folder(folder, "folder for requests")
        self._thread = threading.Thread(target=self._run, name="lpx-text-log", daemon=True)
        self._thread.start()

    def put(self, name: str, record: Callable[[], dict[str, Any]]) -> None:
        """Write `record()` to the file of the key `name`, soon and in another thread. Never waits."""
        try:
            self._queue.put_nowait((name, record))
        except queue.Full:
            self._drop("they come faster than they can be written")

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits, for so long at most."""
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            name, record = entry
            try:
                line = json.dumps(record(), ensure_ascii=True, separators=(",", ":")) + "\n"
                self._write(self._folder / f"{name}.jsonl", line.encode("ascii"))
            except OSError as exc:
                self._drop(exc.strerror or type(exc).__name__)
            except Exception as exc:  # whatever it is, the next request is written again
                self._drop(type(exc).__name__)
            else:
                if self._failing:
                    self._failing = False
                    logger.warning("requests are logged again; %d were not", self.dropped)

    def _drop(self, why: str) -> None:
        self.dropped += 1
        if not self._failing:
            self._failing = True
            logger.warning("requests are not logged to %s for now: %s", self._folder.name, why)

    def _write(self, path: Path, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(None, f"{path.name} is not a file")
            if status.st_size and status.st_size + len(line) > self._max_file_bytes:
                os.close(file)
                _rotate(path)
                file = os.open(path, flags, 0o600)
                status = os.fstat(file)
            written = 0
            try:
                while written < len(line):
                    written += os.write(file, line[written:])
            except OSError:
                os.ftruncate(file, status.st_size)  # no half line for the next one to stick to
                raise
        finally:
            os.close(file)


def _rotate(path: Path) -> None:
    """`x.jsonl` becomes `x.jsonl.1`, and so on; the last one goes."""
    for number in range(KEPT_FILES - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        newer = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        if newer.exists():
            newer.replace(older)
