"""Changing the model of a running server without dropping a request.

The new engine is loaded beside the old one, new requests go to it, and the old one is freed when the last request on it
has ended. Where memory has no room for both, `drain` lets what runs end first; requests that come meanwhile wait.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import time
from typing import TYPE_CHECKING, Any

from lpx.errors import LpxError, MemoryLimitError, ModelInUseError, ModelNotFoundError
from lpx.server.engines import ServedEngine
from lpx.server.errors import HttpError

if TYPE_CHECKING:
    from lpx.engine.async_engine import AsyncEngine
    from lpx.server.model_loader import ModelLoader, Target
    from lpx.server.service import Service

logger = logging.getLogger("lpx.server")


class Reloader:
    """Owns what happens between two engines of a service; one reload at a time."""

    def __init__(self, service: Service, loader: ModelLoader) -> None:
        self._service = service
        self._loader = loader
        self._state = "idle"
        self._progress = 0.0
        self._last: dict[str, Any] | None = None
        self._running: asyncio.Task[dict[str, Any]] | None = None
        self._leaving: set[ServedEngine] = set()  # replaced, and not freed yet
        self._retiring: set[asyncio.Task[None]] = set()

    def status(self) -> dict[str, Any]:
        """For `GET /admin/models/reload`."""
        served = self._service.served
        info = None if served is None else served.engine.info
        return {
            "state": self._state,
            "progress": round(self._progress, 3),
            "model": None if info is None else info.model,
            "version": None if info is None else info.model_version,
            "engines_ending": len(self._leaving),
            "last": self._last,
        }

    async def reload(self, model: str | None = None, *, drain: bool = False, force: bool = False) -> dict[str, Any]:
        """Serve what `model` means now; None: the one that is served. Goes on when the caller leaves.

        Raises `ModelInUseError` while another reload runs, and `HttpError`: 404 for an unknown model, 409 with the
        numbers when both do not fit into memory, 400 when it cannot be loaded. The old engine then serves on.
        """
        if self._running is not None:
            raise ModelInUseError("a reload is under way: GET /admin/models/reload tells how far it is")
        self._service.check_serving()
        self._running = asyncio.get_running_loop().create_task(self._reload(model, drain, force))
        self._running.add_done_callback(self._ended)
        return await asyncio.shield(self._running)

    def _ended(self, task: asyncio.Task[dict[str, Any]]) -> None:
        self._running = None
        self._state, self._progress = "idle", 0.0
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            self._last = task.result()
        elif error is not None:
            message = error.message if isinstance(error, HttpError) else str(error)
            self._last = {"changed": False, "error": message}
            logger.error("the model stays as it was: %s", error)

    async def _reload(self, model: str | None, drain: bool, force: bool) -> dict[str, Any]:
        begin = time.perf_counter()
        service = self._service
        try:
            target = await asyncio.to_thread(self._loader.target, model)
        except (ModelNotFoundError, OSError):
            raise HttpError(
                404, "There is no such model or version in the model folder.", code="model_not_found"
            ) from None
        old = service.served
        assert old is not None
        before = old.engine.info
        if not force and target == self._loader.loaded:
            return _outcome(before, before, False, begin)
        self._state = "draining" if drain else "loading"
        if drain:
            await self._drained(old, target)
        else:
            await service.install(await self._load(target, beside=True))
            self._retire(old)
        self._loader.remember(target, model)
        assert service.served is not None
        after = service.served.engine.info
        logger.info(
            "serving %s (version %s) now; it was %s (version %s)",
            after.model,
            after.model_version or "-",
            before.model,
            before.model_version or "-",
        )
        return _outcome(before, after, True, begin)

    async def _drained(self, old: ServedEngine, target: Target) -> None:
        """End and free the old engine before the new one is loaded, which is opened before for what can be seen so."""
        service = self._service
        try:
            await asyncio.to_thread(self._loader.check, target)
        except LpxError as error:
            raise _not_loadable(error, target) from error
        before = self._loader.loaded
        if before is None:
            before = await asyncio.to_thread(self._loader.target)
        with service.held():
            service.take_away()
            await self._end(old)
            self._state = "loading"
            try:
                await service.install(await self._load(target, beside=False))
            except Exception:
                logger.error("the new model could not be loaded: loading the one from before again")
                try:
                    await service.install(await self._load(before, beside=False))
                except Exception as error:
                    service.fail(error)
                raise

    async def _load(self, target: Target, *, beside: bool) -> AsyncEngine:
        try:
            return await self._service.in_thread(lambda: self._loader.load(target, self._note_progress))
        except MemoryLimitError as error:
            hint = ' Send {"drain": true} to let what runs end, and free the old one, first.' if beside else ""
            raise HttpError(
                409,
                f"The new model does not fit into memory{' beside the old one' if beside else ''}: {error}.{hint}",
                code="not_enough_memory",
            ) from error
        except LpxError as error:
            raise _not_loadable(error, target) from error

    def _note_progress(self, done: int, total: int) -> None:
        self._progress = done / total if total else 0.0

    def _retire(self, old: ServedEngine) -> None:
        """Free an engine as soon as nobody uses it."""
        task = asyncio.get_running_loop().create_task(self._end(old))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _end(self, old: ServedEngine) -> None:
        """Free an engine when the last request on it has ended."""
        self._leaving.add(old)
        try:
            await old.until_unused()
            await old.engine.shutdown()
        finally:
            self._leaving.discard(old)
        await asyncio.to_thread(_give_back)
        logger.info("the engine that served before has been freed")

    async def shutdown(self) -> None:
        """End every engine that has been replaced, with what runs on it."""
        leaving = list(self._leaving)
        for task in (self._running, *self._retiring):
            if task is not None:
                task.cancel()
        for served in leaving:
            await served.engine.shutdown()


def _outcome(before: Any, after: Any, changed: bool, begin: float) -> dict[str, Any]:
    return {
        "changed": changed,
        "model": after.model,
        "version": after.model_version,
        "previous": {"model": before.model, "version": before.model_version},
        "seconds": round(time.perf_counter() - begin, 3),
    }


def _not_loadable(error: LpxError, target: Target) -> HttpError:
    """What is wrong with the model, without where it lies."""
    text = str(error).replace(str(target.path.parent) + "/", "")
    return HttpError(400, f"The model cannot be loaded: {text}", code="model_not_loadable")


def _give_back() -> None:
    """Have the memory of what was freed go back to the system, and not wait for the next allocation."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
