"""`AsyncEngine`: one engine thread that serves many asyncio streams.

Clients talk to the thread through one queue of commands; it answers through one outbox for each event loop. While
there is work, the thread steps without pause; when there is none, it soon sleeps in the queue. A step costs
at most one wake-up for each event loop, however many streams it feeds, and a slow consumer never holds the engine up:
its deltas wait in its stream, joined into one for each choice when it comes for them.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from lpx.engine.deadlines import check_latency
from lpx.engine.engine import Engine
from lpx.engine.outputs import EngineInfo, EngineStats, RequestDelta, merge_deltas
from lpx.engine.request_intake import Prompt
from lpx.engine.sampling_params import SamplingParams
from lpx.engine.sequence import Request
from lpx.errors import EngineStoppedError, InvalidRequestError, LpxError, QueueFullError

if TYPE_CHECKING:
    from lpx.engine.structured.compiler import CompiledGrammar
    from lpx.model.pooling import Pooling
    from lpx.model.tokenizer import Tokenizer

_Result = TypeVar("_Result")


class RequestStream:
    """Deltas of one request as an async iterator, for one consumer on the event loop that submitted the request.

    A delta joins all that came for its choice since the last look. Ends after every choice has its `finish_reason`;
    an error of the request is raised where its next delta would be. `aclose`, or dropping the stream, aborts the
    request.
    """

    def __init__(self, owner: AsyncEngine, request: Request, is_patient: bool = False) -> None:
        self._closed = True  # until the engine has the request, there is nothing to abort
        self.request_id = request.request_id
        self.prompt_token_ids = request.prompt_ids
        self._owner = owner
        self._request = request
        self._is_patient = is_patient
        self._open_choices = request.params.n
        self._arrived: list[RequestDelta] = []
        self._ready: deque[RequestDelta] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestDelta:
        while not self._ready:
            if self._arrived:
                arrived, self._arrived = self._arrived, []
                if len(arrived) == 1:  # as it is wherever the reader keeps up
                    self._ready.append(arrived[0])
                    break
                self._ready.extend(merge_deltas(delta for delta in arrived if delta.error is None))
                self._ready.extend([delta for delta in arrived if delta.error is not None][:1])
            elif self._closed or self._open_choices == 0:
                raise StopAsyncIteration
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
        delta = self._ready.popleft()
        if delta.finish_reason is not None:
            self._open_choices -= 1
        if delta.error is not None:
            self._finish()
            raise delta.error
        return delta

    async def aclose(self) -> None:
        """End the request if it runs still. Returns at once; its blocks are free after the step that is running."""
        self.abort()

    def abort(self) -> None:
        """As `aclose`, for code that cannot await. The iteration ends without further deltas."""
        self._finish()
        self._wake()

    def __del__(self) -> None:
        self._finish()

    def _finish(self) -> None:
        if not self._closed:
            self._closed = True
            self._arrived.clear()
            self._ready.clear()
            if self._open_choices:
                self._owner._abort(self._request)

    def _push(self, delta: RequestDelta) -> None:
        """Called on the event loop."""
        if not self._closed:
            self._arrived.append(delta)
            if delta.finish_reason is not None or not self._is_patient:
                self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Outbox:
    """Deltas on their way from the engine thread to the streams of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._entries: deque[RequestDelta] = deque()
        self.delivery_due = False  # the loop has been asked for a delivery, or is about to be
        self.patient: set[str] = set()  # requests whose deltas may wait for the end of a choice
        # Weak: a stream that nobody holds any more has aborted its request.
        self.streams: weakref.WeakValueDictionary[str, RequestStream] = weakref.WeakValueDictionary()

    def put(self, delta: RequestDelta) -> None:
        self._entries.append(delta)

    def flush(self) -> bool:
        """Have the loop deliver what was put; False when the loop is gone."""
        loop = self._loop()
        if loop is None:
            return False
        try:
            loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # closed
            return False
        return True

    def _deliver(self) -> None:
        # Cleared first: what is put from now on is not counted below, and asks for a new delivery.
        self.delivery_due = False
        for _ in range(len(self._entries)):
            delta = self._entries.popleft()
            stream = self.streams.get(delta.request_id)
            if stream is not None:
                stream._push(delta)


class AsyncEngine:
    """Serves an engine, which it owns from then on, to any number of asyncio tasks.

    `submit` and `generate` are for the event loop; `abort`, `stats`, `validate` and `info` for any thread. End it with
    `await shutdown()`, or `close()` outside an event loop.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()  # its put may be called from a finalizer
        self._lock = threading.Lock()
        self._outboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Outbox] = weakref.WeakKeyDictionary()
        self._routes: dict[str, _Outbox] = {}  # of unfinished requests; guarded by the lock
        self._in_flight = 0  # unfinished choices; guarded by the lock
        self._on_the_way: list[Request] = []  # that the engine thread has not taken over; guarded by the lock
        self._stopping = False  # no new requests; guarded by the lock
        self._stop_now = False  # of the engine thread
        self._courier_queue: SimpleQueue[_Outbox | None] = SimpleQueue()
        self._courier = threading.Thread(target=self._carry, name="lpx-courier", daemon=True)
        self._encoders = ThreadPoolExecutor(max_workers=2, thread_name_prefix="lpx-encode")
        self._compilers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lpx-grammar")  # texts never wait for it
        self._thread = threading.Thread(target=self._run, name="lpx-engine", daemon=True)

    @classmethod
    def start(cls, engine: Engine) -> AsyncEngine:
        """Start the engine thread."""
        started = cls(engine)
        started._courier.start()
        started._thread.start()
        return started

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; its methods may be called from any thread."""
        return self._engine.tokenizer

    @property
    def chat_template_source(self) -> str | None:
        """The text of the model's chat template; None when it has none."""
        template = self._engine.chat_template
        return None if template is None else template.source

    @property
    def failed(self) -> BaseException | None:
        """What stopped the engine for good; None while it is sound."""
        return self._engine.failed

    def stats(self) -> EngineStats:
        """Figures of this moment; `waiting` counts choices that the engine thread has not taken over yet, too."""
        stats = self._engine.stats()
        return replace(stats, waiting=max(self._in_flight - stats.running, 0))

    def validate(self, prompt: Prompt, params: SamplingParams) -> list[int]:
        """See `Engine.validate`; a long text takes a while to tokenize."""
        return self._engine.validate(prompt, params)

    async def encode_prompt(self, text: str) -> list[int]:
        """See `Engine.encode_prompt`; runs in a worker thread."""
        return await self._in_worker(self._engine.encode_prompt, text)

    async def encode_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """See `Engine.encode_chat`; runs in a worker thread."""
        return await self._in_worker(
            partial(
                self._engine.encode_chat,
                messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                chat_template_kwargs=chat_template_kwargs,
            )
        )

    async def encode_for_embedding(self, text: str) -> list[int]:
        """See `Engine.encode_for_embedding`; runs in a worker thread."""
        return await self._in_worker(self._engine.encode_for_embedding, text)

    async def encode_text(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """See `Engine.encode_text`; runs in a worker thread."""
        return await self._in_worker(
            partial(self._engine.encode_text, text, add_special=add_special, parse_special=parse_special)
        )

    async def decode(self, token_ids: list[int]) -> str:
        """The text of token ids, control tokens as they are spelled; runs in a worker thread."""
        return await self._in_worker(partial(self._engine.tokenizer.decode, token_ids, skip_special=False))

    @property
    def pooling(self) -> Pooling:
        """How the model wants embeddings made."""
        return self._engine.pooling

    @property
    def hidden_size(self) -> int:
        """Numbers of an embedding."""
        return self._engine.hidden_size

    def submit_embedding(
        self, prompt: Prompt, params: SamplingParams | None = None, *, request_id: str | None = None
    ) -> RequestStream:
        """As `submit`, for a request whose only delta has the sum of hidden states in `pooled`."""
        return self._submit(self._engine.make_embedding_request(prompt, params, request_id))

    async def compile_grammar(self, params: SamplingParams) -> CompiledGrammar | None:
        """See `Engine.compile_grammar`, for `submit`; runs in a worker thread, and without one where there is none."""
        if params.structured_outputs is None:
            return None
        return await self._in_worker(self._engine.compile_grammar, params, pool=self._compilers)

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        grammar: CompiledGrammar | None = None,
        is_patient: bool = False,
    ) -> RequestStream:
        """Queue a request from a coroutine. Text is tokenized here and now, and a grammar that is not given compiled:
        give ids and `compile_grammar`'s result, or use `generate`, where these take long. The deltas of a patient
        request come when a choice has ended, or other requests' come: nobody is woken for them.

        Raises `InvalidRequestError` (`ContextLengthError`), `QueueFullError` (`LatencyUnreachableError`) or
        `EngineStoppedError`.
        """
        return self._submit(self._engine.make_request(prompt, params, request_id, grammar), is_patient)

    async def generate(
        self, prompt: Prompt, params: SamplingParams, request_id: str | None = None
    ) -> AsyncGenerator[RequestDelta, None]:
        """Submit a request and yield its deltas. Closing the generator, or cancelling its task, aborts the request."""
        request = await self._in_worker(self._engine.make_request, prompt, params, request_id)
        stream = self._submit(request)
        try:
            async for delta in stream:
                yield delta
        finally:
            stream.abort()

    def abort(self, request_id: str) -> None:
        """End a request after the step that is running; its stream then ends with "abort". Any thread, any time."""
        self._commands.put(lambda: self._deliver(self._engine.abort_request(request_id)))

    def _abort(self, request: Request) -> None:
        """As `abort`, but never hits a later request of the same id. Callable from a finalizer."""
        self._commands.put(lambda: self._deliver(self._engine.abort_request(request.request_id, only=request)))

    async def shutdown(self, *, drain: bool = False, timeout: float | None = None) -> None:
        """Take no more requests, end those that run (with `drain`: let them finish, for `timeout` seconds at most),
        join the engine thread and free the model. Safe to call twice."""
        await asyncio.get_running_loop().run_in_executor(None, partial(self.close, drain=drain, timeout=timeout))

    def close(self, *, drain: bool = False, timeout: float | None = None) -> None:
        """`shutdown` for callers outside an event loop."""
        with self._lock:
            self._stopping = True
        for pool in (self._encoders, self._compilers):
            pool.shutdown(wait=False, cancel_futures=True)
        if drain:
            self._commands.put(lambda: None)  # wakes a sleeping thread
            self._thread.join(timeout)
        self._commands.put(self._stop)
        self._thread.join()
        self._courier.join()

    def _submit(self, request: Request, is_patient: bool = False) -> RequestStream:
        loop = asyncio.get_running_loop()
        engine, count, request_id = self._engine, request.params.n, request.request_id
        stream = RequestStream(self, request, is_patient)
        engine.check_open()
        with self._lock:
            check_latency(request, engine.scheduler, self._on_the_way)
            if self._stopping:
                raise EngineStoppedError("the engine is shutting down")
            limit = engine.scheduler.max_num_seqs + engine.max_waiting
            if self._in_flight and self._in_flight + count > limit:
                raise QueueFullError(
                    f"the engine is busy: {self._in_flight} sequences are running or waiting and at most {limit} may; "
                    "try again later, or raise --max-waiting"
                )
            if request_id in self._routes:
                raise InvalidRequestError(f"request id {request_id!r} is in use", param="request_id")
            outbox = self._outboxes.get(loop)
            if outbox is None:
                outbox = self._outboxes[loop] = _Outbox(loop)
            outbox.streams[request_id] = stream
            if is_patient:
                outbox.patient.add(request_id)
            self._routes[request_id] = outbox
            self._in_flight += count
            stream._closed = False
            self._on_the_way.append(request)
            self._commands.put(lambda: self._add(request))
        return stream

    async def _in_worker(
        self, function: Callable[..., _Result], *arguments: Any, pool: ThreadPoolExecutor | None = None
    ) -> _Result:
        try:
            future = asyncio.get_running_loop().run_in_executor(pool or self._encoders, partial(function, *arguments))
        except RuntimeError as error:  # the pool is closed
            raise EngineStoppedError("the engine is shutting down") from error
        return await future

    # The courier thread. Waking an event loop is a system call that lets another thread take the interpreter lock; done
    # here, it happens while the engine thread computes, not in between its steps.

    def _carry(self) -> None:
        while (outbox := self._courier_queue.get()) is not None:
            if not outbox.flush():
                self._commands.put(partial(self._abandon, outbox))

    # The engine thread.

    def _run(self) -> None:
        engine = self._engine
        try:
            while not self._stop_now:
                if not engine.has_work:
                    if self._stopping and self._commands.empty():
                        break
                    while self._commands.empty() and engine.use_idle_time():
                        pass
                    self._commands.get()()
                while not self._commands.empty():
                    self._commands.get()()
                self._deliver(engine.step())
        except BaseException as error:
            engine.failed = error
        finally:
            with self._lock:
                self._stopping = True
            stopped = engine.failed is not None
            self._deliver(engine.abort_all(EngineStoppedError("the engine failed") if stopped else None))
            engine.close()
            while not self._commands.empty():  # requests that came too late end with an error
                self._commands.get()()
            self._courier_queue.put(None)

    def _stop(self) -> None:
        self._stop_now = True

    def _add(self, request: Request) -> None:
        with self._lock:
            self._on_the_way.remove(request)
        try:
            self._engine.add(request)
        except LpxError as error:
            self._deliver(
                [
                    RequestDelta(
                        request.request_id, index, "", [], len(request.prompt_ids), finish_reason="error", error=error
                    )
                    for index in range(request.params.n)
                ]
            )

    def _deliver(self, deltas: list[RequestDelta]) -> None:
        """Hand deltas to the event loops of their streams, and forget the requests that have ended."""
        if not deltas:
            return
        ended: list[str] = []
        touched: list[_Outbox] = []  # that must deliver now
        for delta in deltas:
            outbox = self._routes.get(delta.request_id)
            if delta.finish_reason is not None:
                ended.append(delta.request_id)
            if outbox is not None:
                outbox.put(delta)
                is_urgent = delta.finish_reason is not None or delta.request_id not in outbox.patient
                if is_urgent and outbox not in touched:
                    touched.append(outbox)
        if ended:
            with self._lock:
                self._in_flight -= len(ended)
                for request_id in ended:
                    if not self._engine.is_open(request_id):
                        outbox = self._routes.pop(request_id, None)
                        if outbox is not None:
                            outbox.patient.discard(request_id)
        for outbox in touched:
            if not outbox.delivery_due:
                outbox.delivery_due = True
                self._courier_queue.put(outbox)

    def _abandon(self, outbox: _Outbox) -> None:
        """End the requests of an event loop that is gone."""
        with self._lock:
            orphans = [request_id for request_id, route in self._routes.items() if route is outbox]
            for request_id in orphans:
                del self._routes[request_id]
        for request_id in orphans:
            self._deliver(self._engine.abort_request(request_id))
