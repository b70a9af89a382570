"""Thousands of random operations with every feature on: every count right, every text as with every feature off."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from lpx.engine.drafting.draft_model import DraftModelDrafter
from lpx.engine.drafting.speculation import Speculation
from lpx.engine.drafting.step_costs import StepCosts
from lpx.engine.drafting.suffix import SuffixDrafter
from lpx.engine.engine import Engine
from lpx.engine.kv_cache import KVCache
from lpx.engine.sampling_params import SamplingParams
from lpx.engine.sequence import SequenceState
from tests.engine.fake_executor import FakeExecutor

MakeEngine = Callable[..., Engine]
OPERATIONS = 3400  # of each seed
BLOCK, BLOCKS = 4, 26


def mostly_repeats(tokens: list[int]) -> int:
    surprise = sum(tokens[-3:]) % 7 == 0
    return 97 + (len(tokens) * 7) % 13 if surprise or len(tokens) < 6 else tokens[-6]


class FixedCosts(StepCosts):
    """Of an executor for which rows cost something, whatever the steps of the fake one take."""

    def observe(self, rows: int, ms: float, context: float = 0.0) -> None: ...

    def observe_between(self, ms: float) -> None: ...


def make_speculation(kv_cache: KVCache) -> Speculation:
    costs = FixedCosts()
    costs._take_in({rows: 1.0 + 0.1 * rows for rows in (1, 2, 3, 4, 6, 8, 12, 16)})
    draft = FakeExecutor(num_blocks=BLOCKS, block_size=BLOCK, choose=lambda tokens: tokens[-6:][0])
    drafters = [
        SuffixDrafter(20),
        DraftModelDrafter(draft, most=4, max_model_len=50, max_rows=24, vocab_size=259),
    ]
    return Speculation(drafters, most=6, judging=True, costs=costs, kv_cache=kv_cache, max_rows=24)


def check_counts(engine: Engine) -> None:
    kv_cache, scheduler = engine.kv_cache, engine.scheduler
    owners = Counter(block for sequence in scheduler.running for block in sequence.block_table)
    assert [owners[block] for block in range(BLOCKS)] == kv_cache._references
    assert kv_cache.num_free == BLOCKS - len(owners)
    named = [block for block, name in enumerate(kv_cache._names) if name is not None]
    assert sorted(kv_cache._named.values()) == named
    assert sorted([*kv_cache._empty, *kv_cache._unowned, *owners]) == list(range(BLOCKS))
    assert set(kv_cache._unowned) <= set(named)
    for sequence in scheduler.running:
        assert sequence.state is SequenceState.RUNNING
        assert len(set(sequence.block_table)) == len(sequence.block_table)
        assert sequence.num_computed < len(sequence.tokens) or not sequence.wants_tokens
        assert kv_cache.blocks_for(sequence.num_computed) <= len(sequence.block_table)
        held = len(sequence.block_table) + sequence.num_reserved
        assert kv_cache.blocks_for(len(sequence.tokens) - 1) <= held, "what is admitted has blocks for its tokens"
    assert sum(s.num_reserved for s in scheduler.running) == kv_cache.num_reserved <= kv_cache.num_free
    for sequence in scheduler.waiting:
        assert sequence.state is SequenceState.WAITING
        assert not sequence.block_table
        assert not sequence.num_reserved
    assert engine.speculation is not None
    _, draft = engine.speculation.drafters
    assert isinstance(draft, DraftModelDrafter)
    held = [block for state in draft._states.values() for block in state.block_table]
    assert len(held) == len(set(held)) == BLOCKS - draft._kv_cache.num_free
    assert set(draft._states) <= {*scheduler.running, *scheduler.waiting}


def random_request(rng: random.Random, beginnings: list[list[int]]) -> tuple[list[int], SamplingParams]:
    prompt = rng.choice(beginnings)[: rng.randrange(1, 40)] + [97 + rng.randrange(4) for _ in range(rng.randrange(9))]
    params = SamplingParams(
        n=rng.choice([1, 1, 1, 2]),
        temperature=rng.choice([0.0, 1.0]),
        seed=rng.randrange(5),
        max_tokens=rng.randrange(1, 40),
        min_tokens=rng.choice([0, 0, 1]),
        stop_token_ids=rng.choice([None, [99]]),
        logprobs=rng.choice([None, None, 2]),
        priority=rng.choice([0, 0, 0, -1, 2]),
        cache_salt=rng.choice([None, None, "a"]),
        speculative=rng.choice(["auto", "auto", "auto", "off"]),
    )
    return prompt, params


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_operations(make_engine: MakeEngine, seed: int) -> None:
    rng = random.Random(seed)
    beginnings = [[97 + rng.randrange(6) for _ in range(40)] for _ in range(3)]
    engine = make_engine(
        FakeExecutor(num_blocks=BLOCKS, block_size=BLOCK, choose=mostly_repeats),
        max_num_batched_tokens=24,
        make_speculation=make_speculation,
    )
    plain = make_engine(
        FakeExecutor(num_blocks=BLOCKS, block_size=BLOCK, choose=mostly_repeats),
        max_num_batched_tokens=24,
        enable_prefix_caching=False,
    )
    asked: dict[str, tuple[list[int], SamplingParams]] = {}
    answers: dict[tuple[str, int], list[object]] = {}
    for number in range(OPERATIONS):
        chance = rng.random()
        if chance < 0.12 and len(engine._requests) < 14:
            asked[f"r{number}"] = random_request(rng, beginnings)
            engine.add_request(*asked[f"r{number}"], f"r{number}")
        elif chance < 0.14 and engine._requests:
            for delta in engine.abort_request(rng.choice(list(engine._requests))):
                asked.pop(delta.request_id, None)
        else:
            for delta in engine.step():
                assert delta.error is None
                answers.setdefault((delta.request_id, delta.index), []).extend(
                    [*delta.token_ids, *(delta.logprobs or ())]
                )
        check_counts(engine)
    while engine.has_work:
        for delta in engine.step():
            answers.setdefault((delta.request_id, delta.index), []).extend([*delta.token_ids, *(delta.logprobs or ())])
        check_counts(engine)
    stats = engine.stats()
    assert stats.preemptions_total > 20
    assert stats.prefix_cache_hits_total > 500
    assert stats.drafts.accepted > 500
    assert stats.drafts.drafted > stats.drafts.accepted
    assert stats.finished_total["abort"] > 10

    for request_id, (prompt, params) in asked.items():
        plain.add_request(prompt, replace(params, speculative="off"), request_id)
        expected: dict[int, list[object]] = {}
        while plain.has_work:
            for delta in plain.step():
                expected.setdefault(delta.index, []).extend([*delta.token_ids, *(delta.logprobs or ())])
        for index, answer in expected.items():
            got = answers[request_id, index]
            assert [item for item in got if isinstance(item, int)] == [i for i in answer if isinstance(i, int)]
            assert [item for item in got if isinstance(item, dict)] == [i for i in answer if isinstance(i, dict)]
