"""Who answers the requests of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from lpx.batch.line_request import LineRequest


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, whatever its status."""

    status: int  # as in HTTP
    body: Any  # parsed JSON
    request_id: str  # as the server names the request, else as we did
    retry_after_s: float | None = None  # what the server asks for


class Target(Protocol):
    """An engine in this process, or a server."""

    async def send(self, request: LineRequest, request_id: str) -> Answer:
        """Raises `TargetUnreachable` when no answer came, and `TargetGone` when none will come any more."""
        ...
