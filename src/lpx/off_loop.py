"""Work on texts of others that may hold up an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

_R = TypeVar("_R")
_LARGE = 32 * 1024  # bytes


async def off_loop(text: bytes, work: Callable[[], _R]) -> _R:
    """`work` on a text: in a thread when it is so large that others would wait for it."""
    return await asyncio.to_thread(work) if len(text) > _LARGE else work()
