"""The prompts of a load as they are asked for: those that fit a bounded memory made ahead, the rest on the way.

Making prompts takes the client's time, and the server's where it counts tokens, so as many as possible are made before
the load begins.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable

from lpx.bench.load.prompt import Job

AHEAD_BYTES = 64 * 1024 * 1024
_JOB_COST = 512  # bytes of memory beside the texts
_JOBS_A_TURN = 32


class PromptSupply:
    """`count` jobs, of which `make` gives the one of each number; asked for by any number of tasks."""

    def __init__(self, make: Callable[[int], Awaitable[Job]], count: int, *, ahead_bytes: int = AHEAD_BYTES) -> None:
        self.count = count
        self.made_late = 0  # jobs, while the load was running
        self._make, self._room = make, ahead_bytes
        self._ahead: deque[Job] = deque()
        self._made = 0

    async def make_ahead(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Make jobs until all are there or memory for them is used up; `progress` gets how many, of how many."""
        while self._made < self.count and self._room > 0:
            job = await self._make(self._made)
            self._made += 1
            self._room -= _cost(job)
            self._ahead.append(job)
            if self._made % _JOBS_A_TURN == 1 or self._made == self.count:
                if progress is not None:
                    progress(self._made, self.count)
                await asyncio.sleep(0)  # where nothing is asked of a server, Ctrl-C would wait for the last prompt

    async def next(self) -> Job | None:
        """The next job; None when there is no other."""
        if self._ahead:
            return self._ahead.popleft()
        if self._made >= self.count:
            return None
        number = self._made
        self._made += 1
        self.made_late += 1
        await asyncio.sleep(0)  # every stream asks: Ctrl-C waits for one prompt, not for those of all
        return await self._make(number)

    @property
    def ahead(self) -> tuple[Job, ...]:
        """The jobs that are made and were not asked for yet."""
        return tuple(self._ahead)


def _cost(job: Job) -> int:
    """Bytes of memory, about."""
    texts = 0
    for turn in job.turns:
        contents = [turn.content] if isinstance(turn.content, str) else [str(each) for each in turn.content]
        texts += sum(map(sys.getsizeof, contents))
    return _JOB_COST + texts
