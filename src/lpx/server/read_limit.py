"""The read bandwidth of the machine, measured when somebody asks for it and nothing else runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lpx.errors import LpxError
from lpx.server.errors import HttpError

if TYPE_CHECKING:
    from lpx.engine.async_engine import AsyncEngine
    from lpx.engine.outputs import EngineInfo

_SECONDS_PER_PATTERN = 0.12  # of five patterns: long enough for several passes over memory, hardly noticed by a request


class ReadLimit:
    """Owns the best measurement so far: other programs can only take away."""

    def __init__(self) -> None:
        self._bytes_per_second: float | None = None
        self._measuring = False

    def as_json(self, bytes_per_token: int) -> dict[str, Any] | None:
        """With the tokens per second that it allows one stream without drafts, by the weights; None: not measured."""
        if self._bytes_per_second is None:
            return None
        return {
            "bytes_per_second": self._bytes_per_second,
            "tokens_per_second": self._bytes_per_second / bytes_per_token,
        }

    async def measure(self, engine: AsyncEngine) -> None:
        """Read memory for about a second, in a worker thread.

        Raises `HttpError` 409 when requests run or wait, which would be slowed and would spoil the figure, and when it
        is being measured; 503 when there is not enough memory for it.
        """
        stats = engine.stats()
        if self._measuring:
            raise HttpError(409, "The limit is being measured already.", code="busy")
        if stats.running or stats.waiting:
            raise HttpError(409, "Requests are running: the limit can be measured when none is.", code="busy")
        if engine.info.device != "cpu":
            raise HttpError(409, "The limit can be measured for a CPU only.", code="not_available")
        self._measuring = True
        try:
            measured = await asyncio.to_thread(_bandwidth, engine.info)
        except LpxError as exc:
            raise HttpError(503, f"The limit could not be measured: {exc}.", code="not_available") from None
        finally:
            self._measuring = False
        self._bytes_per_second = max(measured, self._bytes_per_second or 0.0)


def _bandwidth(info: EngineInfo) -> float:
    from lpx.bench.roofline import MemoryReader

    return MemoryReader(info.threads, info.isa).bandwidth(_SECONDS_PER_PATTERN).bytes_per_second
