"""Which KV block belongs to whom, and what it holds: counts and names only, the executor owns the memory.

A block holds `block_size` positions of every layer. A sequence's block table lists its blocks in order of position.
Blocks are counted by reference, so that sequences with the same beginning can share full blocks; a shared block is
never written to, because a sequence that shares starts to compute behind the shared part.

A full block may have a name, the digest of everything it depends on (see `prefix_cache`). When its last owner is gone
it stays findable by that name, and is free all the same: blocks without content are taken first, then those without
an owner, the least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class KVCache:
    """Allocates blocks to block tables and takes them back. All or nothing: a refused call changes nothing."""

    __slots__ = (
        "_empty",
        "_named",
        "_names",
        "_references",
        "_unowned",
        "block_size",
        "first_unused",
        "num_blocks",
        "num_reserved",
    )

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a KV cache needs blocks and a block size, not {num_blocks} and {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.first_unused = 0  # no block from this one on was ever taken
        self.reset()

    def reset(self) -> None:
        """Take every block back, whoever has it, and forget what all of them hold."""
        self.num_reserved = 0  # free blocks that are promised
        # Last freed, first reused: its memory is the likeliest to be in a processor cache.
        self._empty = list(range(self.num_blocks - 1, -1, -1))
        self._references = [0] * self.num_blocks
        self._names: list[bytes | None] = [None] * self.num_blocks
        self._named: dict[bytes, int] = {}
        self._unowned: OrderedDict[int, None] = OrderedDict()  # named, no owner; the least recently used first

    @property
    def num_free(self) -> int:
        """Blocks without an owner, those with a name included."""
        return len(self._empty) + len(self._unowned)

    @property
    def num_available(self) -> int:
        """Free blocks that nobody was promised."""
        return self.num_free - self.num_reserved

    @property
    def num_named(self) -> int:
        """Blocks that can be found, owned or not."""
        return len(self._named)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` positions need."""
        return -(-tokens // self.block_size)

    def reserve(self, blocks: int) -> bool:
        """Promise free blocks, which `grow` then keeps for whoever gives the promise back with `release` before."""
        if blocks > self.num_available:
            return False
        self.num_reserved += blocks
        return True

    def release(self, blocks: int) -> None:
        """Take a promise back. Raises ValueError for more than was promised."""
        if blocks > self.num_reserved:
            raise ValueError(f"{self.num_reserved} blocks are promised, not {blocks}")
        self.num_reserved -= blocks

    def grow(self, block_table: list[int], tokens: int) -> bool:
        """Make `block_table` cover positions 0 to `tokens` - 1; False when there are not enough available blocks."""
        missing = self.blocks_for(tokens) - len(block_table)
        if missing <= 0:
            return True
        if missing > self.num_available:
            return False
        for _ in range(missing):
            block = self._empty.pop() if self._empty else self._evict()
            self._references[block] = 1
            block_table.append(block)
            if block >= self.first_unused:
                self.first_unused = block + 1
        return True

    def find(self, name: bytes) -> int | None:
        """The block of that name; it may have owners or none."""
        return self._named.get(name)

    def is_owned(self, block: int) -> bool:
        return self._references[block] > 0

    def share(self, blocks: Sequence[int]) -> list[int]:
        """A new block table that begins with `blocks`, which have an owner or a name and now one more owner."""
        for block in blocks:
            if self._references[block] < 1 and block not in self._unowned:
                raise ValueError(f"block {block} is free and cannot be shared")
        for block in blocks:
            self._own(block)
        return list(blocks)

    def name(self, block: int, name: bytes) -> int:
        """Make an owned block findable; returns the block that the owner has from now on.

        That is another one when the same content is cached already: the owner then shares it, and its own block,
        which nobody else may have, is free. So whoever owns a named block owns the named blocks before it as well,
        and a chain of blocks is always evicted from its tail.
        """
        if self._references[block] != 1 or self._names[block] is not None:
            raise ValueError(f"block {block} has {self._references[block]} owners or a name, and cannot be named")
        twin = self._named.get(name)
        if twin is None:
            self._names[block] = name
            self._named[name] = block
            return block
        self._own(twin)
        self._disown(block)
        return twin

    def forget(self, blocks: Sequence[int]) -> None:
        """Take the names of `blocks` away: their content is not to be trusted."""
        for block in blocks:
            if (name := self._names[block]) is not None:
                del self._named[name]
                self._names[block] = None
                if block in self._unowned:
                    del self._unowned[block]
                    self._empty.append(block)

    def free(self, block_table: list[int]) -> None:
        """Give up a whole block table; blocks without another owner are free. Empties the list."""
        for block in reversed(block_table):
            if self._references[block] < 1:
                raise ValueError(f"block {block} is free already")
            self._disown(block)
        block_table.clear()

    def _own(self, block: int) -> None:
        self._references[block] += 1
        if self._references[block] == 1:
            del self._unowned[block]

    def _disown(self, block: int) -> None:
        self._references[block] -= 1
        if self._references[block] == 0:
            if self._names[block] is None:
                self._empty.append(block)
            else:
                self._unowned[block] = None

    def _evict(self) -> int:
        block, _ = self._unowned.popitem(last=False)
        name = self._names[block]
        assert name is not None
        del self._named[name]
        self._names[block] = None
        return block
