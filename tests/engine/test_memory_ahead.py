"""Memory that is there before blocks are taken: how much, in which pieces, and when."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lpx.engine import memory_ahead
from lpx.engine.async_engine import AsyncEngine
from lpx.engine.kv_cache import KVCache
from lpx.engine.memory_ahead import MemoryAhead
from lpx.engine.sampling_params import SamplingParams
from tests.engine.fake_executor import FakeExecutor


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Seven blocks ahead, three at once."""
    monkeypatch.setattr(memory_ahead, "AHEAD_BYTES", 70)
    monkeypatch.setattr(memory_ahead, "PIECE_BYTES", 30)


def make_executor(blocks):
    executor = FakeExecutor(num_blocks=blocks)
    executor.info = replace(executor.info, kv_bytes=10 * blocks)
    return executor


def test_memory_comes_in_pieces_and_stays_ahead_of_what_was_taken():
    executor, cache, table = make_executor(40), KVCache(40, 4), []
    ahead = MemoryAhead(executor, cache)
    assert [ahead.advance() for _ in range(5)] == [True, True, True, False, False]
    assert executor.populated == [(0, 3), (3, 3), (6, 1)]
    cache.grow(table, 4 * 2)
    assert [ahead.advance(), ahead.advance()] == [True, False]
    assert executor.populated[3:] == [(7, 2)]
    cache.free(table)
    cache.grow(table, 4 * 2)
    assert not ahead.advance(), "no new block was taken"
    cache.grow(table, 4 * 30)
    assert [ahead.advance() for _ in range(4)] == [True, True, True, False]
    assert executor.populated[4:] == [(30, 3), (33, 3), (36, 1)], "what was taken is there"


def test_it_ends_with_the_cache():
    executor = make_executor(4)
    ahead = MemoryAhead(executor, KVCache(4, 4))
    assert [ahead.advance() for _ in range(3)] == [True, True, False]
    assert executor.populated == [(0, 3), (3, 1)]


def test_a_system_that_cannot_do_it_is_asked_once():
    executor = make_executor(40)
    executor.populates = False
    ahead = MemoryAhead(executor, KVCache(40, 4))
    assert [ahead.advance(), ahead.advance()] == [False, False]
    assert executor.populated == [(0, 3)]


def test_an_engine_thread_uses_its_idle_time_and_then_answers(make_engine):
    executor = make_executor(64)

    async def main():
        engine = AsyncEngine.start(make_engine(executor))
        for _ in range(200):
            if len(executor.populated) == 3:
                break
            await asyncio.sleep(0.01)
        assert executor.populated == [(0, 3), (3, 3), (6, 1)]
        async for _ in engine.generate("hello there", SamplingParams(max_tokens=9)):
            pass
        for _ in range(200):
            if len(executor.populated) > 3:
                break
            await asyncio.sleep(0.01)
        await engine.shutdown()
        assert executor.populated[3:], "what the answer took is replaced"

    asyncio.run(main())
