"""The state behind the endpoints: the engine once it is loaded, and what may be asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from starlette.requests import HTTPConnection, Request

from lpx.batch.store import BatchStore
from lpx.errors import ConfigError, EngineStoppedError, LpxError
from lpx.server.api_keys import KeyRing
from lpx.server.caller import Callers
from lpx.server.engines import ServedEngine, Use, current_use
from lpx.server.errors import HttpError, clip
from lpx.server.latencies import Latencies
from lpx.server.limits import safe_request_id
from lpx.server.login_throttle import LoginThrottle
from lpx.server.read_limit import ReadLimit
from lpx.server.request_log import Call
from lpx.server.sessions import Sessions
from lpx.server.settings import ServerSettings
from lpx.server.text_log import TextLog

if TYPE_CHECKING:
    from lpx.engine.async_engine import AsyncEngine
    from lpx.server.reload import Reloader

logger = logging.getLogger("lpx.server")

Progress = Callable[[int, int], None]
EngineLoader = Callable[[Progress], "AsyncEngine"]
_REFUSAL_REASONS = ("key", "origin", "queue", "concurrent_requests", "requests_per_minute", "tokens_per_minute")
_LONGEST_HOLD_S = 60.0  # that requests wait for an engine while one is exchanged for another
State = Literal["loading", "warming up", "ok", "reloading", "failed", "stopping"]


class Service:
    """Owns the engine's life in the server: loading in a thread, warm-up, use, shutdown; and who may use it."""

    def __init__(self, settings: ServerSettings) -> None:
        """Raises `ConfigError` for keys that cannot be read and a log or data folder that cannot be used."""
        self.settings = settings
        self.batch_store = None if settings.data_dir is None else BatchStore(settings.data_dir, settings.store_limits)
        try:
            secret = None if self.batch_store is None else self.batch_store.owner_secret
            self.keys = KeyRing(settings.api_keys, settings.api_key_file, settings.admin_api_keys, secret)
        except ConfigError:
            if self.batch_store is not None:
                self.batch_store.close()
            raise
        self.sessions = Sessions(self.keys)
        self.logins = LoginThrottle()
        self.text_log = TextLog(settings.log_requests_to) if settings.log_requests_to is not None else None
        self.callers = Callers(self.keys, settings.limits, self.text_log)
        self.refusals: Counter[str] = Counter(dict.fromkeys(_REFUSAL_REASONS, 0))  # requests that were turned away
        self.started_at = int(time.time())
        self.latencies = Latencies()
        self.loaded_bytes = 0  # of the model's file, so far
        self.total_bytes = 0
        self.warm_up_ms = 0.0  # what the warm-up token took
        self.read_limit = ReadLimit()
        self.load_error: Exception | None = None
        self.active: set[str] = set()  # ids of the generating calls that are being answered
        self.served: ServedEngine | None = None  # what new requests run on
        self.reloader: Reloader | None = None  # None: the engine was given, and no other can be loaded
        self._state: State = "loading"
        self._loading: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._gate: asyncio.Event | None = None  # closed while there is no engine, between two
        self._aborting: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None

    # --- life ---

    def begin_loading(self, load: EngineLoader) -> asyncio.Task[None]:
        """Start `load` in a thread of its own. The task ends when the engine serves or has failed."""
        self._loading = asyncio.get_running_loop().create_task(self._load(load))
        return self._loading

    async def _load(self, load: EngineLoader) -> None:
        try:
            await self.use(await self.in_thread(lambda: load(self._note_progress)))
        except Exception as exc:
            self.fail(exc)
            self.load_error = exc

    async def in_thread(self, load: Callable[[], AsyncEngine]) -> AsyncEngine:
        """`load` in a thread of its own, which may outlive whoever waits."""
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[AsyncEngine] = loop.create_future()

        def work() -> None:
            try:
                engine = load()
            except Exception as exc:
                _post(loop, loaded, error=exc)
            else:
                _post(loop, loaded, engine=engine)

        # Not a pool thread: the interpreter waits for those at exit, and a load cannot be interrupted.
        self._thread = threading.Thread(target=work, name="lpx-load", daemon=True)
        self._thread.start()
        return await loaded

    def fail(self, error: Exception) -> None:
        """Take no more requests: there is no engine."""
        logger.debug("no engine: %s", error)
        self._state = "failed"

    def _note_progress(self, done: int, total: int) -> None:
        self.loaded_bytes, self.total_bytes = done, total

    @property
    def progress(self) -> float:
        """Of loading, 0 to 1."""
        return self.loaded_bytes / self.total_bytes if self.total_bytes else 0.0

    async def use(self, engine: AsyncEngine) -> None:
        """Serve with `engine`, the first one."""
        self.served = ServedEngine(engine)
        self._state = "warming up"
        await self._warm_up(engine)
        self._state = "ok"

    async def install(self, engine: AsyncEngine) -> None:
        """Have new requests run on `engine`, once it has shown that it makes tokens. Frees it if it does not."""
        try:
            await self._warm_up(engine)
        except BaseException:
            await engine.shutdown()
            raise
        if self._state not in ("ok", "reloading"):
            await engine.shutdown()
            raise EngineStoppedError("the server is shutting down")
        self.served = ServedEngine(engine)
        self._state = "ok"

    async def _warm_up(self, engine: AsyncEngine) -> None:
        """One token, which touches every weight and starts the threads."""
        from lpx.engine.sampling_params import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        async for delta in engine.submit([0], params, request_id="warm-up"):
            if delta.timings is not None:
                self.warm_up_ms = delta.timings.ttft_ms

    def take_away(self) -> None:
        """Have no engine until the next `install`; requests that are on the one there was go on."""
        self.served = None
        self._state = "reloading"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let new requests wait meanwhile, instead of being refused."""
        gate = self._gate = asyncio.Event()
        try:
            yield
        finally:
            self._gate = None
            gate.set()

    async def enter(self, use: Use) -> None:
        """Give a request the engine that it will run on; where one is exchanged for another, wait for that."""
        gate = self._gate
        if gate is not None and self._state == "reloading":
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(gate.wait(), _LONGEST_HOLD_S)
        if self.served is not None and self.state == "ok":
            use.take(self.served)

    def stop_accepting(self) -> None:
        self._state = "stopping"

    def abort_running(self) -> None:
        """End what still runs: streams get an error event, others a 503."""
        if self._aborting is None:
            self._aborting = asyncio.get_running_loop().create_task(self._end_engines())

    @property
    def is_loading_thread_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    async def shutdown(self) -> None:
        """End the engine; whatever still runs is aborted."""
        self._state = "stopping"
        if self._loading is not None and not self._loading.done():
            self._loading.cancel()
        await self._end_engines()
        if self.text_log is not None:
            await asyncio.to_thread(self.text_log.close)

    async def _end_engines(self) -> None:
        if self.reloader is not None:
            await self.reloader.shutdown()
        if self.served is not None:
            await self.served.engine.shutdown()

    # --- use ---

    def count_refusal(self, reason: str) -> None:
        """For /metrics; reasons are a fixed few."""
        self.refusals[reason] += 1

    def reload_keys(self) -> None:
        """Read the key file again; what is wrong with it is logged, and the keys stay as they were."""
        if not self.keys.can_reload:
            return
        try:
            self.keys.reload()
        except ConfigError as exc:
            logger.error("the API keys stay as they were: %s", exc)
        else:
            logger.info("%d API keys are accepted now", len(self.keys.keys))

    def reload_model(self) -> None:
        """Serve what the model's name means now; what goes wrong is logged, and what is served stays as it was."""
        if self.reloader is not None and self.state == "ok":
            self._reloading = asyncio.get_running_loop().create_task(self._reload_model(self.reloader))

    async def _reload_model(self, reloader: Reloader) -> None:
        try:
            outcome = await reloader.reload()
        except (HttpError, LpxError) as exc:
            logger.error("the model is not reloaded: %s", exc)
        else:
            if not outcome["changed"]:
                logger.info("the model is the same as before: nothing to reload")

    @property
    def state(self) -> State:
        if self._state == "ok" and self.served is not None and self.served.engine.failed is not None:
            return "failed"
        return self._state

    @property
    def engine(self) -> AsyncEngine:
        """The engine: inside a request the same one to its end. Raises `HttpError` 503 while there is none to use."""
        state, use = self.state, current_use()
        if use is not None and use.served is not None and state in ("ok", "reloading"):
            return use.served.engine
        if self.served is not None and state == "ok":
            if use is not None:
                use.take(self.served)
            return self.served.engine
        raise self._no_engine(state)

    def _no_engine(self, state: State) -> HttpError:
        messages: dict[State, str] = {
            "loading": "The model is still loading. /health tells when it is ready.",
            "warming up": "The model is loaded and warming up. /health tells when it is ready.",
            "reloading": "Another model is being loaded. /health tells when it is ready.",
            "stopping": "The server is shutting down.",
            "failed": "The engine has failed and takes no requests. Restart the server; its log tells the reason.",
        }
        return HttpError(
            503,
            messages.get(state, "The server is not ready."),
            code=state.replace(" ", "_"),
            headers={"retry-after": "1"},
        )

    def check_ready(self) -> None:
        """Raise `HttpError` 503 unless there is an engine to use."""
        self.engine  # noqa: B018

    def check_serving(self) -> None:
        """As `check_ready`, and leaves the request without a hold on the engine."""
        if self.served is None or self.state != "ok":
            raise self._no_engine(self.state)

    @property
    def model_name(self) -> str:
        return self.engine.info.model

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served. No name and "default" mean the one that is."""
        if name is not None and name != "default" and name != self.model_name:
            raise HttpError(
                404,
                f"The model {clip(name, 64)!r} is not served here; this server has {self.model_name!r}.",
                param="model",
                code="model_not_found",
            )

    def shows_timings(self, wanted: bool | None) -> bool:
        """Whether an answer has `timings`: as the request says, else as the server was told."""
        return self.settings.request_timings if wanted is None else wanted

    def call(self, request: HTTPConnection, prefix: str, streamed: bool) -> Call:
        given = safe_request_id(request.headers.get("x-request-id"))
        call = Call(
            endpoint=request.url.path,
            model=self.model_name,
            request_id="",
            prefix=prefix,
            streamed=streamed,
            active=self.active,
        )
        call.request_id = given or call.id
        return call


def _post(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[AsyncEngine],
    *,
    engine: AsyncEngine | None = None,
    error: Exception | None = None,
) -> None:
    """Hand a thread's result to the loop, which may be gone or no longer interested."""

    def deliver() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        elif engine is not None:
            future.set_result(engine)

    try:
        loop.call_soon_threadsafe(deliver)
    except RuntimeError:
        logger.debug("the server ended before the model was loaded")


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service
