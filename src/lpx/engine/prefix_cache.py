"""Which computed blocks a sequence can take over instead of computing them: by content, not by request.

The name of a full block is a digest chain: blake2b over the name of the block before it and the ids of its own tokens.
The chain begins with a digest of whatever else changes keys and values (the model and the kind of cache), keyed so
that requests with different `cache_salt` never meet. So two blocks have the same name only if every token up to their
end and all else is the same, and then they hold the same bits, whoever computed them and however (row independence).

What is being computed right now counts, too: of sequences that arrive together with the same beginning, the first
computes it and the others wait for as long as it advances.

The scheduler asks here before it admits a sequence and tells what has been computed; `KVCache` owns the blocks.
"""

from __future__ import annotations

import sys
from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lpx.engine.kv_cache import KVCache
    from lpx.engine.sequence import Sequence

_DIGEST_BYTES = 32  # nobody finds two texts with the same digest on purpose
NEVER = sys.maxsize  # a number of tokens that no sequence reaches


class PrefixCache:
    """Names blocks, finds them, and knows which are on their way. `find` and `is_on_its_way`, `begin`, `note`, `end`.

    `identity` stands for everything but tokens and salt that the content of a block depends on.
    """

    def __init__(self, kv_cache: KVCache, identity: str) -> None:
        self.queried_tokens = 0  # of prompts that were looked up, at their first admission
        self.hit_tokens = 0  # of these, tokens that need not be computed
        self._kv_cache = kv_cache
        self._size = kv_cache.block_size
        self._key = blake2b(identity.encode(), digest_size=_DIGEST_BYTES).digest()
        self._in_progress: dict[bytes, Sequence] = {}  # blocks of running sequences that are not computed yet

    def reset(self) -> None:
        self._in_progress.clear()

    def find(self, sequence: Sequence) -> list[int]:
        """Blocks that hold the beginning of `sequence`. At least its last token is left to compute."""
        blocks: list[int] = []
        if sequence.needs_every_row:
            return blocks
        find = self._kv_cache.find
        for index in range(self._most_shared(sequence)):
            block = find(self._name(sequence, index))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def is_on_its_way(self, sequence: Sequence, found: int) -> bool:
        """Whether the block behind the `found` ones is being computed by a running sequence that advances.

        Asked once a step. A sequence that has not advanced since the last time is not waited for.
        """
        if sequence.needs_every_row or found >= self._most_shared(sequence):
            return False
        donor = self._in_progress.get(self._name(sequence, found))
        if donor is None:
            return False
        last_seen, sequence.awaited = sequence.awaited, (donor.arrival, donor.num_computed)
        return last_seen != sequence.awaited

    def expected(self, sequence: Sequence, found: int) -> int:
        """Blocks that `sequence` will share once those on their way are there."""
        most = self._most_shared(sequence)
        find = self._kv_cache.find
        while found < most:
            name = self._name(sequence, found)
            if name not in self._in_progress and find(name) is None:
                break
            found += 1
        return found

    def begin(self, sequence: Sequence) -> None:
        """Note that `sequence`, whose block table begins with `num_computed` shared tokens, computes the others now."""
        shared = sequence.num_computed // self._size
        sequence.num_named = shared
        sequence.name_at = (shared + 1) * self._size
        in_progress = self._in_progress
        for index in range(shared, len(sequence.tokens) // self._size):
            in_progress.setdefault(self._name(sequence, index), sequence)
        request = sequence.request
        if request.cached_tokens is None:  # the other choices find what the first one computes: they do not count
            request.cached_tokens = min(sequence.num_computed, sequence.prompt_length)
            if not sequence.needs_every_row:
                self.queried_tokens += sequence.prompt_length
                self.hit_tokens += request.cached_tokens

    def note(self, sequence: Sequence) -> None:
        """Make the blocks of `sequence` that are full by now findable.

        Steps that follow one another unseen compute tokens which the sequence does not hold yet: their block waits.
        """
        full = min(sequence.num_computed, len(sequence.tokens)) // self._size
        table = sequence.block_table
        for index in range(sequence.num_named, full):
            name = self._name(sequence, index)
            table[index] = self._kv_cache.name(table[index], name)
            if self._in_progress.get(name) is sequence:
                del self._in_progress[name]
            sequence.num_named = index + 1
        sequence.name_at = (sequence.num_named + 1) * self._size

    def end(self, sequence: Sequence, *, sound: bool = True) -> None:
        """Before `sequence` gives its blocks up: note what is full, or forget all when its results are not sound."""
        if sequence.name_at == NEVER:
            return
        if sound:
            self.note(sequence)
        else:
            self._kv_cache.forget(sequence.block_table)
        in_progress = self._in_progress
        for name in sequence.block_names[sequence.num_named :] if sound else sequence.block_names:
            if in_progress.get(name) is sequence:
                del in_progress[name]
        sequence.num_named = 0
        sequence.name_at = NEVER

    def _most_shared(self, sequence: Sequence) -> int:
        return (len(sequence.tokens) - 1) // self._size

    def _name(self, sequence: Sequence, index: int) -> bytes:
        """Worked out once: tokens are only ever appended."""
        names = sequence.block_names
        while len(names) <= index:
            before = names[-1] if names else self._root(sequence.request.params.cache_salt)
            start = len(names) * self._size
            # A token is 4 bytes and a block has always as many: no other tokens give the same text.
            tokens = array("i", sequence.tokens[start : start + self._size]).tobytes()
            names.append(blake2b(before + tokens, digest_size=_DIGEST_BYTES).digest())
        return names[index]

    def _root(self, salt: str | None) -> bytes:
        text = b"" if salt is None else b"salt " + salt.encode("utf-8", "surrogatepass")
        return blake2b(text, key=self._key, digest_size=_DIGEST_BYTES).digest()
