"""One line of the output: OpenAI's batch result with an `lpx` object that traces it to its input.

    {"id", "custom_id", "response": {"status_code", "request_id", "body"} or null, "error": {"code", "message"} or null,
     "lpx": {"index", "line", "offset", "input_sha256", "attempts", "started_at", "request_ms", "total_ms"}}

Whatever is not a success has an `error`, also where the server's own error is in `response`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from lpx.batch.input_file import Line
from lpx.batch.json_text import json_line
from lpx.batch.line_request import LineError
from lpx.batch.target import Answer

HEAD = b'{"id":"batch_req_'  # of every line


@dataclass(frozen=True, slots=True)
class Attempts:
    """How an answer came about."""

    count: int  # 0: nothing was sent
    started_at: float  # time.time()
    request_ms: float  # of the last attempt
    total_ms: float  # with all attempts and pauses


def answered_line(name: str, line: Line, custom_id: str | None, answer: Answer, attempts: Attempts) -> bytes:
    """Of a request that was answered, for good or ill."""
    response = {"status_code": answer.status, "request_id": answer.request_id, "body": answer.body}
    return _line(name, line, custom_id, response, error_of(answer), attempts)


def unanswered_line(name: str, line: Line, custom_id: str | None, code: str, message: str, attempts: Attempts) -> bytes:
    """Of a request that nobody answered."""
    return _line(name, line, custom_id, None, {"code": code, "message": message}, attempts)


def refused_line(name: str, line: Line, error: LineError, attempts: Attempts) -> bytes:
    """Of a line that is no request; in the shape that a server would have refused it in."""
    body = {"error": {"message": str(error), "type": "invalid_request_error", "param": error.param, "code": error.code}}
    return answered_line(name, line, error.custom_id, Answer(400, body, name), attempts)


def error_of(answer: Answer) -> dict[str, str] | None:
    """None for a success: a status of 200 and no error in the body."""
    given = answer.body.get("error") if isinstance(answer.body, dict) else None
    if answer.status == 200 and isinstance(answer.body, dict) and not given:
        return None
    if isinstance(given, dict):
        code, message = given.get("code") or given.get("type"), given.get("message")
    else:
        code, message = None, given
    return {
        "code": code if isinstance(code, str) else f"http_{answer.status}",
        "message": message if isinstance(message, str) else f"The server answered with status {answer.status}.",
    }


@dataclass(frozen=True, slots=True)
class Trace:
    """What a written line says about its input."""

    index: int
    offset: int
    digest: str
    failed: bool
    custom_id: str | None


def trace_of(data: bytes) -> Trace | None:
    """Of a written line; None when it is not one of ours."""
    try:
        value = json.loads(data)
        traced = value["lpx"]
        trace = Trace(
            traced["index"], traced["offset"], traced["input_sha256"], value["error"] is not None, value["custom_id"]
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    sound = type(trace.index) is int and type(trace.offset) is int and isinstance(trace.digest, str)
    return trace if sound and trace.index >= 0 and trace.offset >= 0 else None


def _line(
    name: str,
    line: Line,
    custom_id: str | None,
    response: dict[str, Any] | None,
    error: dict[str, str] | None,
    attempts: Attempts,
) -> bytes:
    started = datetime.fromtimestamp(attempts.started_at, timezone.utc)
    return (
        json_line(
            {
                "id": name,
                "custom_id": custom_id,
                "response": response,
                "error": error,
                "lpx": {
                    "index": line.index,
                    "line": line.number,
                    "offset": line.offset,
                    "input_sha256": line.digest,
                    "attempts": attempts.count,
                    "started_at": started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                    "request_ms": round(attempts.request_ms, 3),
                    "total_ms": round(attempts.total_ms, 3),
                },
            }
        )
        + b"\n"
    )
