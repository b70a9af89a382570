"""Many clients on one engine thread: delivery, cancellation at any moment, faults, shutdown."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lpx.engine.async_engine import AsyncEngine, RequestStream
from lpx.engine.engine import Engine
from lpx.engine.outputs import RequestDelta
from lpx.engine.sampling_params import SamplingParams
from lpx.errors import ContextLengthError, EngineStoppedError, InvalidRequestError, LpxError, QueueFullError
from tests.engine.fake_executor import FakeExecutor, expected_tokens

MakeEngine = Callable[..., Engine]
GREEDY = SamplingParams(temperature=0, max_tokens=12)


class Gate:
    """Holds the engine thread before a step, so that tests meet it at a known place."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._reached = threading.Event()
        self._passes = 0

    def __call__(self, step: int) -> None:
        if self._passes:
            self._passes -= 1
            return
        self._reached.set()
        assert self._open.wait(30)

    def shut(self, passes: int = 0) -> None:
        """Hold the step after the next ``passes``; the engine thread must be idle or held if there are any."""
        self._passes = passes
        self._reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, 30)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[AsyncEngine]:
    server = AsyncEngine.start(engine)
    try:
        yield server
    finally:
        await server.shutdown()
        assert engine.kv_cache.num_free == engine.kv_cache.num_blocks
        assert server.stats().running == server.stats().waiting == 0


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 60)

    asyncio.run(bounded())


async def read(stream: AsyncIterator[RequestDelta]) -> list[RequestDelta]:
    return [delta async for delta in stream]


async def idle(server: AsyncEngine) -> None:
    """Wait until the engine has nothing to do; the marker request is the last in its queue."""
    while server.stats().running or server.stats().waiting:
        await asyncio.sleep(0)


def ids_of(deltas: list[RequestDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def test_streams_get_their_own_deltas(make_engine: MakeEngine) -> None:
    async def test() -> None:
        async with serving(make_engine()) as server:
            prompts = [f"prompt {number}" for number in range(20)]
            results = await asyncio.gather(*[read(server.generate(prompt, GREEDY)) for prompt in prompts])
            for prompt, deltas in zip(prompts, results, strict=True):
                assert ids_of(deltas) == expected_tokens(list(prompt.encode()), 12)
                assert "".join(d.text for d in deltas) == bytes(ids_of(deltas)).decode()
                assert [d.finish_reason for d in deltas if d.finish_reason] == ["length"]
                assert deltas[-1].timings is not None
            stats = server.stats()
            assert (stats.requests_total, stats.generation_tokens_total) == (20, 240)
            assert stats.finished_total["length"] == 20

    run(test)


def test_each_choice_has_one_finish(make_engine: MakeEngine) -> None:
    async def test() -> None:
        async with serving(make_engine()) as server:
            deltas = await read(server.submit("hello", SamplingParams(n=3, seed=1, max_tokens=9, logprobs=1)))
            for index in range(3):
                mine = [d for d in deltas if d.index == index]
                assert [d.finish_reason for d in mine if d.finish_reason] == ["length"]
                assert len(ids_of(mine)) == 9
                assert sum(len(d.logprobs or ()) for d in mine) == 9

    run(test)


def test_slow_consumer_does_not_hold_the_engine(make_engine: MakeEngine, gate: Gate) -> None:
    async def test() -> None:
        async with serving(make_engine(FakeExecutor(before_step=gate))) as server:
            gate.shut(passes=1)
            slow = server.submit("slow", SamplingParams(temperature=0, max_tokens=100))
            first = await anext(slow)
            await gate.reached()  # so that the rest is made while nobody reads
            gate.open()
            await read(server.submit("quick", SamplingParams(temperature=0, max_tokens=110)))
            await idle(server)
            rest = await read(slow)
            assert len(rest) == 1, "what waited is one delta"
            assert ids_of([first, *rest]) == expected_tokens(list(b"slow"), 100)
            assert rest[0].finish_reason == "length"

    run(test)


def test_refusals_come_before_the_queue(make_engine: MakeEngine) -> None:
    async def test() -> None:
        async with serving(make_engine(max_model_len=32)) as server:
            with pytest.raises(ContextLengthError):
                server.submit("x" * 32, GREEDY)
            with pytest.raises(ContextLengthError):
                await anext(server.generate("x" * 32, GREEDY))
            with pytest.raises(InvalidRequestError):
                server.submit([-1], GREEDY)
            assert server.stats().requests_total == 0
            assert ids_of(await read(server.submit("fine", GREEDY))) == expected_tokens(list(b"fine"), 12)

    run(test)


def test_queue_limit(make_engine: MakeEngine, gate: Gate) -> None:
    async def test() -> None:
        engine = make_engine(FakeExecutor(before_step=gate), max_num_seqs=2, max_waiting=3)
        async with serving(engine) as server:
            gate.shut()
            streams = [server.submit("x", GREEDY) for _ in range(5)]
            with pytest.raises(QueueFullError, match="5 "):
                server.submit("x", GREEDY)
            gate.open()
            for stream in streams:
                assert len(ids_of(await read(stream))) == 12
            await idle(server)
            assert ids_of(await read(server.submit("x", GREEDY))) == expected_tokens([ord("x")], 12)

    run(test)


def test_request_id_in_use_is_refused(make_engine: MakeEngine, gate: Gate) -> None:
    async def test() -> None:
        async with serving(make_engine(FakeExecutor(before_step=gate))) as server:
            gate.shut()
            first = server.submit("x", GREEDY, request_id="mine")
            with pytest.raises(InvalidRequestError, match="in use"):
                server.submit("x", GREEDY, request_id="mine")
            gate.open()
            while not first._arrived or first._arrived[-1].finish_reason is None:
                await asyncio.sleep(0)
            second = server.submit("x", GREEDY, request_id="mine")
            await first.aclose()  # it has not been read to its end, but that is not the second one's business
            assert (await read(second))[-1].finish_reason == "length"

    run(test)


async def _aclose(stream: RequestStream) -> None:
    await stream.aclose()


async def _drop(stream: RequestStream) -> None:
    pass  # the caller holds no reference any more


@pytest.mark.parametrize("leave", [_aclose, _drop], ids=["closed", "dropped"])
def test_three_hundred_clients_go_away(
    make_engine: MakeEngine, leave: Callable[[RequestStream], Awaitable[None]]
) -> None:
    """In the queue, in the prompt, in the answer, with several choices: blocks return, and the rest is served."""

    async def test() -> None:
        engine = make_engine(max_model_len=120)
        async with serving(engine) as server:
            for batch in range(10):
                streams = []
                for number in range(30):
                    n = 4 if number % 7 == 0 else 1
                    params = SamplingParams(n=n, seed=1, max_tokens=None)
                    streams.append(server.submit("x" * (1 + 3 * number), params))
                for number, stream in enumerate(streams):
                    if number < 9 and number % 3 == batch % 3:
                        await anext(stream)
                while streams:
                    await leave(streams.pop())
            await idle(server)
            stats = server.stats()
            assert stats.free_blocks == stats.total_blocks
            assert stats.requests_total == 300
            assert sum(stats.finished_total.values()) == 300 + 3 * 50
            assert ids_of(await read(server.submit("later", GREEDY))) == expected_tokens(list(b"later"), 12)

    run(test)


def test_cancelled_task_aborts_its_request(make_engine: MakeEngine) -> None:
    async def test() -> None:
        async with serving(make_engine()) as server:
            started = asyncio.Event()

            async def client() -> None:
                async for _ in server.generate("x", SamplingParams(max_tokens=None)):
                    started.set()

            tasks = [asyncio.create_task(client()) for _ in range(5)]
            await started.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await idle(server)
            assert server.stats().free_blocks == server.stats().total_blocks

    run(test)


def test_abort_ends_the_stream_and_may_come_at_any_time(make_engine: MakeEngine, gate: Gate) -> None:
    async def test() -> None:
        engine = make_engine(FakeExecutor(before_step=gate))
        async with serving(engine) as server:
            server.abort("unknown")
            gate.shut()
            first = server.submit("x", SamplingParams(n=2, max_tokens=100))
            await gate.reached()  # the engine is in a step with the first
            second = server.submit("y", GREEDY)  # and has not seen the second
            for stream in (second, first, second):
                server.abort(stream.request_id)
            gate.open()
            assert [d.finish_reason for d in await read(second)] == ["abort"]
            assert sorted(d.finish_reason for d in await read(first) if d.finish_reason) == ["abort", "abort"]
            done = server.submit("z", GREEDY)
            deltas = await read(done)
            server.abort(done.request_id)
            await done.aclose()
            assert deltas[-1].finish_reason == "length"

    run(test)


def test_error_of_one_request_is_raised_there_alone(make_engine: MakeEngine) -> None:
    async def test() -> None:
        async with serving(make_engine(FakeExecutor(poisoned=200))) as server:
            bad = server.submit([200, 97], SamplingParams(n=2, seed=1))
            good = server.submit("good", GREEDY)
            with pytest.raises(LpxError, match="not a number"):
                await read(bad)
            assert ids_of(await read(good)) == expected_tokens(list(b"good"), 12)
            assert server.failed is None

    run(test)


def test_device_fault_ends_every_stream_and_later_submits(make_engine: MakeEngine, gate: Gate) -> None:
    async def collect(stream: RequestStream, seen: list[RequestDelta]) -> None:
        async for delta in stream:
            seen.append(delta)

    async def test() -> None:
        engine = make_engine(FakeExecutor(fail_at_step=5, before_step=gate), max_num_seqs=2)
        async with serving(engine) as server:
            gate.shut()
            streams = [server.submit("x", SamplingParams(temperature=0, max_tokens=50)) for _ in range(4)]
            gate.open()
            for number, stream in enumerate(streams):
                seen: list[RequestDelta] = []
                with pytest.raises(EngineStoppedError, match="injected"):
                    await collect(stream, seen)
                made = len(ids_of(seen))
                assert made in ((4, 5) if number < 2 else (0,)), "what was made before the fault is delivered"
            assert isinstance(server.failed, RuntimeError)
            with pytest.raises(EngineStoppedError):
                server.submit("x", GREEDY)
            with pytest.raises(EngineStoppedError):
                await anext(server.generate("x", GREEDY))

    run(test)


def test_fault_of_the_thread_itself_is_no_hang(
    make_engine: MakeEngine, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_step() -> list[RequestDelta]:
        gate(0)
        raise ZeroDivisionError

    async def test() -> None:
        engine = make_engine()
        monkeypatch.setattr(engine, "step", broken_step)
        async with serving(engine) as server:
            gate.shut()
            running = server.submit("x", GREEDY)
            await gate.reached()
            late = server.submit("x", GREEDY)  # the thread is about to end and has not seen it
            gate.open()
            for stream in (running, late):
                with pytest.raises(EngineStoppedError):
                    await read(stream)
            assert isinstance(server.failed, ZeroDivisionError)
            with pytest.raises(EngineStoppedError):
                server.submit("x", GREEDY)

    run(test)


@pytest.mark.parametrize("drain", [False, True])
def test_shutdown_ends_streams_joins_and_closes(make_engine: MakeEngine, gate: Gate, drain: bool) -> None:
    async def test() -> None:
        executor = FakeExecutor(before_step=gate)
        engine = make_engine(executor)
        server = AsyncEngine.start(engine)
        gate.shut()
        streams = [server.submit("x", GREEDY) for _ in range(12)]
        await gate.reached()
        ending = asyncio.create_task(server.shutdown(drain=drain))
        while not server._stopping:
            await asyncio.sleep(0)
        with pytest.raises(EngineStoppedError):
            server.submit("x", GREEDY)
        gate.open()
        await ending
        for stream in streams:
            deltas = await read(stream)
            assert deltas[-1].finish_reason == ("length" if drain else "abort")
        assert not server._thread.is_alive()
        assert executor.closed == 1
        await server.shutdown()
        with pytest.raises(EngineStoppedError):
            server.submit("x", GREEDY)
        with pytest.raises(EngineStoppedError):
            await server.encode_prompt("x")

    run(test)


def test_requests_of_a_dead_event_loop_end(make_engine: MakeEngine, gate: Gate) -> None:
    def unhurried(step: int) -> None:
        gate(step)
        time.sleep(0.005)  # the courier meets the closed loop long before the answer is full

    engine = make_engine(FakeExecutor(before_step=unhurried))
    server = AsyncEngine.start(engine)
    kept: list[Any] = []

    async def leave() -> None:
        gate.shut(passes=1)
        kept.append(server.submit("x", SamplingParams(max_tokens=None)))
        await anext(kept[0])
        await gate.reached()

    asyncio.run(leave())
    gate.open()

    async def other() -> None:
        await idle(server)
        assert ids_of(await read(server.submit("y", GREEDY))) == expected_tokens([ord("y")], 12)

    asyncio.run(asyncio.wait_for(other(), 30))
    assert server.stats().finished_total == {"stop": 0, "length": 1, "timeout": 0, "abort": 1, "error": 0}
    assert server.stats().free_blocks == server.stats().total_blocks
    server.close()


def test_idle_thread_sleeps(make_engine: MakeEngine) -> None:
    """While another thread works, an idle engine runs no step and takes no part of the processor."""

    async def test() -> None:
        executor = FakeExecutor()
        async with serving(make_engine(executor)) as server:
            await read(server.submit("x", GREEDY))
            await idle(server)
            steps = len(executor.steps)
            clocks = [time.pthread_getcpuclockid(thread.ident or 0) for thread in (server._thread, server._courier)]
            before = [time.clock_gettime(clock) for clock in clocks]
            worked = time.thread_time()
            for _ in range(20):
                expected_tokens([1] * 100, 200)
                await asyncio.sleep(0)
            worked = time.thread_time() - worked
            taken = sum(time.clock_gettime(clock) for clock in clocks) - sum(before)
            assert len(executor.steps) == steps
            assert taken < worked / 20

    run(test)


def test_encoders_run_beside_the_event_loop(make_engine: MakeEngine) -> None:
    async def test() -> None:
        async with serving(make_engine()) as server:
            assert await server.encode_prompt("hi") == [104, 105]
            assert await server.encode_chat([{"role": "user", "content": "hi"}]) == list(b"user: hi\nassistant: ")
            assert server.validate("hi", GREEDY) == [104, 105]
            assert server.info.model == "model"

    run(test)


def test_a_patient_request_wakes_its_reader_once(make_engine: MakeEngine) -> None:
    """Deltas wait for the end of the choice, and nothing of them is lost."""

    due: list[bool] = []  # before each step: whether a delivery was asked for

    async def test() -> None:
        servers: list[AsyncEngine] = []

        def before_step(_: object) -> None:
            due.extend(outbox.delivery_due for server in servers for outbox in server._outboxes.values())

        engine = make_engine(FakeExecutor(num_blocks=64, block_size=4, before_step=before_step))
        async with serving(engine) as server:
            servers.append(server)
            scored = SamplingParams(temperature=0, max_tokens=12, logprobs=1)  # one token a step
            eager = [delta async for delta in server.submit([1, 2, 3], scored)]
            outbox = next(iter(server._outboxes.values()))
            due.clear()
            patient = [delta async for delta in server.submit([1, 2, 3], scored, is_patient=True)]
            assert len(due) == 12
            assert not any(due)
            assert len(patient) == 1
            assert patient[0].text == "".join(delta.text for delta in eager)
            assert patient[0].token_ids == [token for delta in eager for token in delta.token_ids]
            assert (patient[0].finish_reason, patient[0].timings is not None) == (eager[-1].finish_reason, True)
            both = [server.submit([4, 5], GREEDY, is_patient=patience) for patience in (True, False)]
            first, second = await asyncio.gather(*(read(stream) for stream in both))
            assert ids_of(first) == ids_of(second)
            left = server.submit([6, 7], GREEDY, is_patient=True)
            left.abort()
            for _ in range(10_000):
                if not outbox.patient:
                    break
                await asyncio.sleep(0.001)
            assert outbox.patient == set()

    run(test)
