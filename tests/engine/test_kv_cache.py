from __future__ import annotations

import random

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


def test_promised_blocks_are_kept() -> None:
    cache = KVCache(num_blocks=3, block_size=4)
    table: list[int] = []
    assert cache.reserve(2)
    assert (cache.num_free, cache.num_available) == (3, 1)
    assert not cache.reserve(2)
    assert not cache.grow(table, 8)
    assert cache.grow(table, 4)
    cache.release(2)
    assert cache.grow(table, 12)
    with pytest.raises(ValueError, match="0 blocks are promised, not 1"):
        cache.release(1)


def test_blocks_that_were_never_taken_are_the_last_ones() -> None:
    cache = KVCache(num_blocks=6, block_size=4)
    first, second = [], []
    cache.grow(first, 8)
    cache.grow(second, 4)
    assert cache.first_unused == 3
    cache.free(first)
    cache.grow(second, 12)
    assert cache.first_unused == 3, "blocks that came back are taken again first"
    cache.reset()
    assert cache.first_unused == 3


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


def test_named_block_without_an_owner_is_free_and_can_be_shared_again() -> None:
    cache = KVCache(num_blocks=2, block_size=2)
    table: list[int] = []
    cache.grow(table, 2)
    assert cache.name(table[0], b"a") == table[0]
    cache.free(table)
    assert cache.num_free == 2
    found = cache.find(b"a")
    assert found is not None
    table = cache.share([found])
    assert cache.num_free == 1
    cache.forget(table)
    assert cache.find(b"a") is None
    cache.free(table)
    with pytest.raises(ValueError, match="free"):
        cache.share([found])


def test_twin_gives_its_own_block_up_for_the_named_one() -> None:
    cache = KVCache(num_blocks=4, block_size=2)
    first: list[int] = []
    second: list[int] = []
    cache.grow(first, 2)
    cache.grow(second, 2)
    cache.name(first[0], b"a")
    second[0] = cache.name(second[0], b"a")
    assert second == first
    assert cache.num_free == 3
    with pytest.raises(ValueError, match="cannot be named"):
        cache.name(first[0], b"b")
    cache.free(first)
    cache.free(second)
    assert cache.num_free == 4


def test_ten_thousand_random_operations_keep_every_count_right() -> None:
    """Sequences that share beginnings come, grow, are preempted and go, on a pool that is always too small."""
    rng = random.Random(4)
    cache = KVCache(num_blocks=24, block_size=1)
    tables: list[tuple[list[int], list[bytes], int]] = []  # blocks, names of their contents, how many are named
    content: dict[int, bytes] = {}  # what was written to each block
    parent: dict[bytes, bytes] = {}
    crowded = hits = 0

    def named_chain() -> list[bytes]:
        chain = [b""]
        for _ in range(rng.randint(1, 9)):
            chain.append(chain[-1] + bytes([rng.randrange(2)]))
            parent[chain[-1]] = chain[-2]
        return chain[1:]

    for number in range(10_000):
        action = rng.choice(["open", "open", "open", "grow", "free", "free", "free", "forget"])
        if action == "forget" and number < 5000:
            continue
        if action == "open":
            names = named_chain()
            found = []
            for name in names:
                block = cache.find(name)
                if block is None:
                    break
                assert content[block] == name, "a name leads to what it stands for"
                found.append(block)
            hits += len(found)
            table = cache.share(found)
            free = cache.num_free
            if cache.grow(table, len(names)):
                for block, name in zip(table[len(found) :], names[len(found) :], strict=True):
                    content[block] = name
                full = rng.randint(len(found), len(names))
                for index in range(len(found), full):
                    table[index] = cache.name(table[index], names[index])
                    assert content[table[index]] == names[index]
                tables.append((table, names, full))
            else:
                assert free < len(names) - len(found)
                cache.free(table)
        elif action == "grow" and tables:
            table, names, full = rng.choice(tables)
            before = len(table)
            if cache.grow(table, before + 1):
                content[table[-1]] = b"unfinished"
                names.append(b"unfinished")
        elif action == "free" and tables:
            cache.free(tables.pop(rng.randrange(len(tables)))[0])
        elif action == "forget" and tables:
            table, _, _ = tables.pop(rng.randrange(len(tables)))
            cache.forget(table)
            cache.free(table)

        owners: dict[int, int] = {}
        for table, names, _ in tables:
            assert [content[block] for block in table] == names, "nobody writes to a block of another"
            for block in table:
                owners[block] = owners.get(block, 0) + 1
        assert cache._references == [owners.get(block, 0) for block in range(24)]
        assert len(owners) + cache.num_free == 24
        unowned = list(cache._unowned)
        assert sorted([*owners, *unowned, *cache._empty]) == list(range(24)), "each block is in one place"
        assert {block for block in range(24) if cache._names[block] is not None} >= set(unowned)
        assert {name: block for block, name in enumerate(cache._names) if name is not None} == cache._named
        if number < 5000:
            assert all(parent[name] in cache._named for name in cache._named if parent[name]), "tails before heads"
        crowded += not cache._empty
    assert crowded > 1000
    assert hits > 1000


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
