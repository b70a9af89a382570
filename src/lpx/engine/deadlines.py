"""Which open requests have a deadline (`max_latency_ms`), which of them is next, and which can never be met."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lpx.errors import LatencyUnreachableError

if TYPE_CHECKING:
    from lpx.engine.scheduler import Scheduler
    from lpx.engine.sequence import Request

NO_DEADLINE = sys.maxsize


class Deadlines:
    """`next_ns` costs nothing to ask; adding is cheap, and removing the next one looks at all others."""

    def __init__(self) -> None:
        self.next_ns = NO_DEADLINE  # monotonic
        self._requests: set[Request] = set()

    def ms_left(self, now_ns: int) -> float | None:
        """Until the next deadline, not below 0; None without one."""
        return None if self.next_ns == NO_DEADLINE else max(self.next_ns - now_ns, 0) / 1e6

    def add(self, request: Request) -> None:
        if request.deadline_ns != NO_DEADLINE:
            self._requests.add(request)
            self.next_ns = min(self.next_ns, request.deadline_ns)

    def remove(self, request: Request) -> None:
        """No error when it has no deadline."""
        if request.deadline_ns == NO_DEADLINE:
            return
        self._requests.discard(request)
        if request.deadline_ns == self.next_ns:
            self.next_ns = min((other.deadline_ns for other in self._requests), default=NO_DEADLINE)

    def clear(self) -> None:
        self._requests.clear()
        self.next_ns = NO_DEADLINE

    def overdue(self, now_ns: int) -> list[Request]:
        """Requests whose deadline has passed, the earliest first."""
        if now_ns < self.next_ns:
            return []
        return sorted((r for r in self._requests if r.deadline_ns <= now_ns), key=lambda request: request.deadline_ns)


def check_latency(request: Request, scheduler: Scheduler, on_the_way: Iterable[Request] = ()) -> None:
    """Raise `LatencyUnreachableError` when what waits before `request` takes longer than it may last.

    `on_the_way` are requests that the scheduler does not know yet. May be called from any thread. An estimate, from the
    pace of the latest prompts and from the part of prompts that was found in the cache so far; before the first prompt
    there is none, and nothing is refused.
    """
    allowed_ms, rate = request.params.max_latency_ms, scheduler.pace.rows_per_second
    if allowed_ms is None or rate is None:
        return
    # Choices of a request share its prompt.
    prompts = [s for s in (*scheduler.running, *scheduler.waiting) if s.pending > 1 and s.index == 0]
    rows = sum(sequence.pending for sequence in prompts if sequence.priority <= request.params.priority)
    rows += sum(len(other.prompt_ids) for other in on_the_way if other.params.priority <= request.params.priority)
    computed = 1.0
    prefix_cache = scheduler.prefix_cache
    if prefix_cache is not None and prefix_cache.queried_tokens:
        computed -= prefix_cache.hit_tokens / prefix_cache.queried_tokens
    wait_ms = 1e3 * computed * rows / rate
    if wait_ms > allowed_ms:
        raise LatencyUnreachableError(wait_ms, allowed_ms)
