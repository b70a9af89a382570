"""Memory of KV blocks that is there before they are needed.

The system hands memory over when it is first written to, a huge page of 2 MB at a time. That takes a fraction of a
millisecond, but 20 ms in a virtual machine whose host has to find the memory first: longer than a step that streams
wait for. So an engine that has nothing to do lets some of it come ahead of the blocks that were ever taken.
"""

from __future__ import annotations

from lpx.engine.kv_cache import KVCache
from lpx.runtime.step import Executor

AHEAD_BYTES = 256 << 20  # 11,000 tokens of SmolLM2-135M in f16, 2,000 of an 8B model
PIECE_BYTES = 2 << 20  # a request that comes meanwhile waits for one piece at most


class MemoryAhead:
    """`advance` while there is time for it. Blocks are taken from the first one on, see `KVCache`."""

    def __init__(self, executor: Executor, kv_cache: KVCache) -> None:
        block_bytes = max(executor.info.kv_bytes // executor.info.num_blocks, 1)
        self._executor = executor
        self._kv_cache = kv_cache
        self._ahead = AHEAD_BYTES // block_bytes
        self._piece = max(PIECE_BYTES // block_bytes, 1)
        self._populated = 0  # blocks, from the first one on
        self._possible = True

    def advance(self) -> bool:
        """Have one piece more; False: enough is there, or the system cannot do it."""
        cache = self._kv_cache
        first = max(self._populated, cache.first_unused)
        count = min(self._piece, min(cache.first_unused + self._ahead, cache.num_blocks) - first)
        if count <= 0 or not self._possible:
            return False
        self._possible = self._executor.populate_kv(first, count)
        self._populated = first + count
        return self._possible
