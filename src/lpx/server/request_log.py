"""One log line for each generating request: ids, counts and times; never text and never keys.

A line has fields, which `--log-format json` shows as they are and the readable format as `name=value`.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.types import Scope

from lpx.server.caller import current_caller

if TYPE_CHECKING:
    from lpx.server.generation import Generation

logger = logging.getLogger("lpx.server.requests")


def _current_key() -> str | None:
    return current_caller().name


@dataclass(slots=True)
class Call:
    """One HTTP request to a generating endpoint."""

    endpoint: str
    model: str
    request_id: str  # the client's if it is a safe token, else ours
    prefix: str  # "cmpl", "chatcmpl", "gen"
    streamed: bool = False
    id: str = ""  # ours, unique: the engine's request id and the id in the answer
    created: int = 0
    failed: str | None = None  # kind of an error after the stream began
    active: set[str] = field(default_factory=set)  # ids of the calls that are being answered, shared by all
    key: str | None = field(default_factory=_current_key)  # name of the client's key
    _start: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())

    @property
    def headers(self) -> dict[str, str]:
        return {"x-request-id": self.request_id}

    def begin(self) -> None:
        """From here on the call counts as active; `end` must follow."""
        self.active.add(self.id)

    def end(self, status: int, generation: Generation) -> None:
        """Write the line. Status 499: the client went away."""
        self.active.discard(self.id)
        if not logger.isEnabledFor(logging.INFO):
            return
        finish = ",".join(f"{reason}:{count}" for reason, count in Counter(generation.finish_reasons).items())
        if self.failed is not None:
            finish = f"failed:{self.failed}"
        elif status == 499:
            finish = "disconnected"
        fields: dict[str, Any] = {
            "id": self.id,
            "request_id": self.request_id,
            "key": self.key,
            "endpoint": self.endpoint,
            "model": self.model,
            "stream": self.streamed,
            "status": status,
            "finish": finish or "none",
            "prompt_tokens": generation.usage.prompt_tokens,
            "cached_tokens": generation.usage.cached_tokens,
            "completion_tokens": generation.usage.completion_tokens,
            "total_ms": round((time.perf_counter() - self._start) * 1e3, 1),
        }
        timings = generation.timings
        if timings is not None:
            fields |= {
                "queue_ms": round(timings.queue_ms, 1),
                "ttft_ms": round(timings.ttft_ms, 1),
                "prefill_ms": round(timings.prefill_ms, 1),
                "decode_ms": round(timings.decode_ms, 1),
                "decode_tokens_per_second": round(timings.decode_tokens_per_second, 1),
                "speculation": timings.speculation,
                "drafted": timings.drafted_tokens,
                "accepted": timings.accepted_tokens,
                "mean_accepted_length": round(timings.mean_accepted_length, 2),
            }
        _write("request", fields)


def log_refusal(
    scope: Scope, key: str | None, status: int, code: str | None = None, paths: Collection[str] = ()
) -> None:
    """A line for a request that was turned away, by the route that it hit, or before that by its path if it is one of
    `paths`; what the client wrote stays out."""
    if logger.isEnabledFor(logging.INFO):
        route = getattr(scope.get("route"), "path", None) or (scope["path"] if scope["path"] in paths else None)
        _write("refused", {"key": key, "endpoint": route or "none", "status": status, "code": code or "none"})


def _write(event: str, fields: dict[str, Any]) -> None:
    logger.info("%s %s", event, _Shown(fields), extra={"fields": {"event": event, **fields}})


class _Shown:
    """Fields as text, made when somebody looks."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __str__(self) -> str:
        return " ".join(f"{name}={_shown(value)}" for name, value in self._fields.items())


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
