"""One log line for each generating request: ids, counts and times; never text and never keys."""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lpx.server.generation import Generation

logger = logging.getLogger("lpx.server.requests")


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
        timings = generation.timings
        detail = ""
        if timings is not None:
            detail = (
                f" queue_ms={timings.queue_ms:.1f} ttft_ms={timings.ttft_ms:.1f} prefill_ms={timings.prefill_ms:.1f}"
                f" decode_ms={timings.decode_ms:.1f}"
                f" decode_tokens_per_second={timings.decode_tokens_per_second:.1f}"
                f" speculation={timings.speculation} drafted={timings.drafted_tokens}"
                f" accepted={timings.accepted_tokens} mean_accepted_length={timings.mean_accepted_length:.2f}"
            )
        logger.info(
            "request id=%s request_id=%s endpoint=%s model=%s stream=%s status=%d finish=%s prompt_tokens=%d "
            "cached_tokens=%d completion_tokens=%d total_ms=%.1f%s",
            self.id,
            self.request_id,
            self.endpoint,
            self.model,
            "yes" if self.streamed else "no",
            status,
            finish or "none",
            generation.usage.prompt_tokens,
            generation.usage.cached_tokens,
            generation.usage.completion_tokens,
            (time.perf_counter() - self._start) * 1e3,
            detail,
        )
