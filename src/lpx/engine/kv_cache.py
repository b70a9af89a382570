"""Which KV block belongs to whom: counts only, the executor owns the memory.

A block holds `block_size` positions of every layer. A sequence's block table lists its blocks in order of position.
Blocks are counted by reference, so that sequences with the same prompt can share its full blocks; a shared block is
never written to, because a sequence that shares starts to compute behind the shared part.
"""

from __future__ import annotations

from collections.abc import Sequence


class KVCache:
    """Allocates blocks to block tables and takes them back. All or nothing: a refused call changes nothing."""

    __slots__ = ("_free", "_references", "block_size", "num_blocks")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a KV cache needs blocks and a block size, not {num_blocks} and {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.reset()

    def reset(self) -> None:
        """Take every block back, whoever has it."""
        # Last freed, first reused: its memory is the likeliest to be in a processor cache.
        self._free = list(range(self.num_blocks - 1, -1, -1))
        self._references = [0] * self.num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` positions need."""
        return -(-tokens // self.block_size)

    def grow(self, block_table: list[int], tokens: int) -> bool:
        """Make `block_table` cover positions 0 to `tokens` - 1; False when there are not enough free blocks."""
        missing = self.blocks_for(tokens) - len(block_table)
        if missing <= 0:
            return True
        if missing > len(self._free):
            return False
        for _ in range(missing):
            block = self._free.pop()
            self._references[block] = 1
            block_table.append(block)
        return True

    def share(self, blocks: Sequence[int]) -> list[int]:
        """A new block table that begins with `blocks`, which are in use already and now have one more owner."""
        for block in blocks:
            if self._references[block] < 1:
                raise ValueError(f"block {block} is free and cannot be shared")
        for block in blocks:
            self._references[block] += 1
        return list(blocks)

    def free(self, block_table: list[int]) -> None:
        """Give up a whole block table; blocks without another owner return to the pool. Empties the list."""
        for block in reversed(block_table):
            if self._references[block] < 1:
                raise ValueError(f"block {block} is free already")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)
        block_table.clear()
