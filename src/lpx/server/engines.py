"""Which engine a request runs on: the one that served when it began, to its end, whatever is loaded meanwhile.

Each request holds a `Use`. It takes the engine of the moment when it first asks for it, or at once where nothing may
come in between, and an engine that has been replaced is freed when its last use ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lpx.engine.async_engine import AsyncEngine


@dataclass(slots=True, eq=False)
class ServedEngine:
    """An engine, and how many requests are on it."""

    engine: AsyncEngine
    users: int = 0
    _unused: asyncio.Event = field(default_factory=asyncio.Event)

    def enter(self) -> None:
        self.users += 1
        self._unused.clear()

    def leave(self) -> None:
        self.users -= 1
        if not self.users:
            self._unused.set()

    async def until_unused(self) -> None:
        """Wait for the last request on it; new ones must not come any more."""
        if self.users:
            await self._unused.wait()


@dataclass(slots=True, eq=False)
class Use:
    """A request's hold on an engine; empty until it needs one."""

    served: ServedEngine | None = None

    def take(self, served: ServedEngine) -> None:
        if self.served is None:
            served.enter()
            self.served = served


_current: ContextVar[Use | None] = ContextVar("lpx_engine_use", default=None)


def current_use() -> Use | None:
    """The running request's; None outside of requests."""
    return _current.get()


@contextlib.contextmanager
def one_use() -> Iterator[Use]:
    """For the time of one request, in its task and those it starts."""
    use = Use()
    token = _current.set(use)
    try:
        yield use
    finally:
        with contextlib.suppress(ValueError):  # ended in another context than it began in
            _current.reset(token)
        if use.served is not None:
            use.served.leave()
