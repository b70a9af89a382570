from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lpx.engine.kv_cache import KVCache


def test_table_covers_positions_and_blocks_return() -> None:
    cache = KVCache(num_blocks=5, block_size=4)
    table: list[int] = []
    assert cache.grow(table, 9)
    assert len(set(table)) == 3
    assert cache.num_free == 2
    assert cache.grow(table, 12)
    assert len(table) == 3, "twelve positions still fit three blocks"
    cache.free(table)
    assert (table, cache.num_free) == ([], 5)


def test_refused_growth_changes_nothing() -> None:
    cache = KVCache(num_blocks=3, block_size=4)
    table: list[int] = []
    assert cache.grow(table, 4)
    before = list(table)
    assert not cache.grow(table, 17)
    assert (table, cache.num_free) == (before, 2)


def test_shared_block_returns_with_its_last_owner() -> None:
    cache = KVCache(num_blocks=4, block_size=2)
    first: list[int] = []
    cache.grow(first, 4)
    second = cache.share(first[:1])
    cache.free(first)
    assert cache.num_free == 3
    cache.free(second)
    assert cache.num_free == 4


def test_free_blocks_cannot_be_shared_or_freed_again() -> None:
    cache = KVCache(num_blocks=2, block_size=2)
    with pytest.raises(ValueError, match="free"):
        cache.share([0])
    table: list[int] = []
    cache.grow(table, 2)
    again = list(table)
    cache.free(table)
    with pytest.raises(ValueError, match="free already"):
        cache.free(again)


class BlockAccounting(RuleBasedStateMachine):
    """Any order of calls: no block has two unrelated owners, none is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = KVCache(num_blocks=7, block_size=3)
        self.tables: list[list[int]] = []

    @rule(tokens=st.integers(1, 24))
    def open_table(self, tokens: int) -> None:
        table: list[int] = []
        fits = self.cache.blocks_for(tokens) <= self.cache.num_free
        assert self.cache.grow(table, tokens) == fits
        assert len(table) == (self.cache.blocks_for(tokens) if fits else 0)
        if table:
            self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), more=st.integers(0, 12))
    def grow(self, data: st.DataObject, more: int) -> None:
        table = data.draw(st.sampled_from(self.tables))
        before = list(table)
        if not self.cache.grow(table, len(table) * 3 + more):
            assert table == before
        assert table[: len(before)] == before

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        self.tables.append(self.cache.share(table[: data.draw(st.integers(1, len(table)))]))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.cache.free(table)

    @invariant()
    def blocks_add_up(self) -> None:
        used = {block for table in self.tables for block in table}
        assert len(used) + self.cache.num_free == self.cache.num_blocks
        assert used <= set(range(self.cache.num_blocks))
        for table in self.tables:
            assert len(set(table)) == len(table)


TestBlockAccounting = BlockAccounting.TestCase
