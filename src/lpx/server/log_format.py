"""How log records look: readable lines, or one JSON object a line for programs that collect them."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import datetime, timezone
from pathlib import PurePath
from types import TracebackType
from typing import Any

_READABLE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def trimmed_frames(frames: TracebackType | None) -> str:
    """Where an error came from, one frame a line, without the folders that tell who runs this and where."""
    return "\n".join(
        f"  {_trimmed(frame.filename)}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(frames)
    )


def _trimmed(path: str) -> str:
    parts = PurePath(path).parts
    for folder in ("site-packages", "src"):
        if folder in parts:
            return "/".join(parts[parts.index(folder) + 1 :])
    return parts[-1] if parts else path


class _TrimmedErrors(logging.Formatter):
    def formatException(self, ei: Any) -> str:  # noqa: N802
        kind, error, frames = ei
        return f"{trimmed_frames(frames)}\n{kind.__name__}: {error}"


class ReadableFormatter(_TrimmedErrors):
    def __init__(self) -> None:
        super().__init__(_READABLE)


class JsonFormatter(_TrimmedErrors):
    """`time`, `level`, `logger` and `message`; records with `fields` have these in place of a message."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, "fields", None)
        if fields is None:
            entry["message"] = record.getMessage()
        else:
            entry.update(fields)
        if record.exc_info and record.exc_info[0] is not None:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=True, default=str)


class _WithoutQuery(logging.Filter):
    """Of access lines: what stands behind the question mark may be a key or a prompt that was put there by mistake."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and len(record.args) == 5:
            client, method, path, version, status = record.args
            record.args = (client, method, str(path).partition("?")[0], version, status)
        return True


def set_up_logging(log_format: str, access_log: bool) -> None:
    """Log to standard error, unless somebody has set logging up already."""
    if not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter() if log_format == "json" else ReadableFormatter())
        logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.raiseExceptions = False  # a log that cannot be written must not cost a second message that cannot either
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    access = logging.getLogger("uvicorn.access")
    access.setLevel(logging.INFO if access_log else logging.CRITICAL)
    access.addFilter(_WithoutQuery())
