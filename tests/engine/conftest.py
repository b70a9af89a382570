from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lpx.engine.engine import Engine
from tests.engine.fake_executor import END_OF_TURN, ByteTokenizer, FakeExecutor, LineTemplate


@pytest.fixture
def make_engine() -> Iterator[Callable[..., Engine]]:
    """Engines on the fake model; at the end each must have all its blocks back."""
    engines: list[Engine] = []

    def make(executor: FakeExecutor | None = None, *, add_bos: bool = False, **options: Any) -> Engine:
        options.setdefault("max_model_len", 128)
        options.setdefault("max_num_seqs", 8)
        options.setdefault("max_num_batched_tokens", 16)
        executor = executor or FakeExecutor(num_blocks=64, block_size=4)
        executor.budget = options["max_num_batched_tokens"]
        engine = Engine(
            executor,
            ByteTokenizer(add_bos),
            chat_template=LineTemplate(),
            eos_token_ids=frozenset({END_OF_TURN}),
            **options,
        )
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        assert engine.kv_cache.num_free == engine.kv_cache.num_blocks or engine.has_work
        engine.close()
        assert engine.kv_cache.num_free == engine.kv_cache.num_blocks
        assert not engine.has_work
