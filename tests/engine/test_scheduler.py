"""Order, fairness and blocks: the scheduler alone, and under random load with the engine and the strict fake model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpx.engine.engine import Engine
from lpx.engine.kv_cache import KVCache
from lpx.engine.prefill_pace import FIRST_ROWS
from lpx.engine.sampling_params import SamplingParams, choice_seed
from lpx.engine.scheduler import Scheduler
from lpx.engine.sequence import Request, Sequence, SequenceState
from lpx.errors import ConfigError
from lpx.runtime.step import SequenceInput
from tests.engine.fake_executor import ByteTokenizer, FakeExecutor, expected_scores, expected_tokens


class Clock:
    """Makes sequences in order of arrival, and plays the engine after a step."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.arrivals = 0

    def arrive(self, prompt: int, output: int = 4, priority: int = 0) -> Sequence:
        request = Request(f"r{self.arrivals}", [1] * prompt, SamplingParams(priority=priority), 0)
        undetokenized: Any = None
        sequence = Sequence(
            request,
            0,
            arrival=self.arrivals,
            max_length=prompt + output,
            row=SequenceInput((), 0, ()),
            stop_ids=frozenset(),
            detokenizer=undetokenized,
        )
        request.sequences.append(sequence)
        self.arrivals += 1
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> dict[Sequence, int]:
        plan = self.scheduler.schedule()
        for sequence, rows in plan:
            self.scheduler.advance(sequence, rows)
            if sequence.pending == 0:
                sequence.tokens.append(1)
                if len(sequence.tokens) >= sequence.max_length:
                    self.scheduler.finish(sequence)
        assert len({sequence.arrival for sequence, _ in plan}) == len(plan)
        return dict(plan)


def make_clock(*, blocks: int = 1000, size: int = 4, seqs: int = 8, budget: int = 16) -> Clock:
    return Clock(Scheduler(KVCache(blocks, size), max_num_seqs=seqs, max_num_batched_tokens=budget))


def arrivals(sequences: Iterable[Sequence]) -> list[int]:
    return [sequence.arrival for sequence in sequences]


def test_decode_rows_come_first_and_never_pause_for_a_long_prompt() -> None:
    clock = make_clock(budget=16)
    stream = clock.arrive(4, output=30)
    clock.step()
    long = clock.arrive(100)
    for _ in range(7):
        plan = clock.step()
        assert list(plan) == [stream, long]
        assert plan[stream] == 1
        assert plan[long] <= 15
    assert long.num_computed >= 100


def test_prompt_rows_are_limited_while_streams_decode() -> None:
    clock = make_clock(budget=512)
    assert clock.step() == {}
    long = clock.arrive(400)
    assert clock.step() == {long: 400}, "alone it gets the whole budget"
    other = clock.arrive(200)
    assert clock.step() == {long: 1, other: FIRST_ROWS}
    assert (clock.scheduler.decode_rows, clock.scheduler.prompt_rows) == (1, FIRST_ROWS)
    clock.scheduler.pace.observe(1, 0, 12.0)
    clock.scheduler.pace.observe(1, FIRST_ROWS, 12.0 + FIRST_ROWS * 0.75)
    assert clock.step() == {long: 1, other: 24}, "as many as fit 36 ms with some reserve: 12 + 24 * 0.75"


def test_short_prompt_does_not_wait_for_long_ones() -> None:
    clock = make_clock(budget=16)
    first, second = clock.arrive(200), clock.arrive(150)
    clock.step()
    short = clock.arrive(6)
    plan = clock.step()
    assert plan[short] == 6, "done in its first step"
    assert (plan[first], plan[second]) == (8, 2), "the oldest keeps at least half"


def test_stream_of_short_prompts_does_not_starve_a_long_one() -> None:
    clock = make_clock(budget=16, seqs=8)
    long = clock.arrive(80)
    for step in range(10):
        for _ in range(4):
            clock.arrive(12, output=1)
        assert clock.step()[long] >= 8, f"step {step}"
    assert long.num_computed == 80


def test_equal_prompts_go_one_after_the_other() -> None:
    clock = make_clock(budget=16)
    first, second = clock.arrive(16, output=1), clock.arrive(16, output=1)
    assert clock.step() == {first: 16}
    assert clock.step() == {second: 16}


def test_admission_is_first_come_first_served() -> None:
    clock = make_clock(blocks=8, size=4, budget=32)
    clock.arrive(20)  # five blocks of eight
    big, small = clock.arrive(16), clock.arrive(2)
    clock.step()
    assert arrivals(clock.scheduler.running) == [0]
    assert arrivals(clock.scheduler.waiting) == [big.arrival, small.arrival], "the small one does not overtake"
    while big.state is SequenceState.WAITING:
        clock.step()
    assert clock.scheduler.running[0] is big


def test_slots_limit_the_running() -> None:
    clock = make_clock(seqs=2, budget=64)
    for _ in range(5):
        clock.arrive(3)
    clock.step()
    assert arrivals(clock.scheduler.running) == [0, 1]


def test_latest_arrival_gives_way_and_recomputes_everything() -> None:
    clock = make_clock(blocks=6, size=2, budget=16)
    first, second = clock.arrive(4, output=8), clock.arrive(3, output=8)
    while clock.scheduler.preemptions == 0:
        clock.step()
        assert first.state is SequenceState.RUNNING
    assert second.state is SequenceState.WAITING
    assert (second.block_table, second.num_computed) == ([], 0)
    kept = len(second.tokens)
    assert kept > 3
    while second.state is SequenceState.WAITING:
        plan = clock.step()
    assert plan[second] == kept, "prompt and output, in one chunk here"


def test_preempted_sequence_is_before_later_arrivals() -> None:
    clock = make_clock(blocks=6, size=2, budget=16, seqs=2)
    clock.arrive(4, output=8)
    second = clock.arrive(3, output=8)
    third = clock.arrive(1)
    while clock.scheduler.preemptions == 0:
        clock.step()
    assert arrivals(clock.scheduler.waiting) == [second.arrival, third.arrival]


def test_lower_priority_value_is_admitted_first_and_has_the_rows() -> None:
    clock = make_clock(seqs=2, budget=16)
    late, usual, urgent = clock.arrive(30, priority=7), clock.arrive(30), clock.arrive(30, priority=-1)
    assert clock.step() == {urgent: 16}
    assert clock.scheduler.running == [urgent, usual]
    assert clock.scheduler.waiting == [late]
    assert clock.step() == {urgent: 14, usual: 2}, "what the first does not need is for the next"


def test_shorter_prompt_of_later_priority_does_not_get_in_between() -> None:
    clock = make_clock(budget=16)
    first, second = clock.arrive(40), clock.arrive(3, priority=1)
    assert clock.step() == {first: 16}
    assert clock.step() == {first: 16}
    assert clock.step() == {first: 8, second: 3}


def test_last_by_priority_gives_way_although_it_came_first() -> None:
    clock = make_clock(blocks=6, size=2, budget=16)
    unimportant, important = clock.arrive(4, output=8, priority=1), clock.arrive(3, output=8)
    while clock.scheduler.preemptions == 0:
        clock.step()
    assert unimportant.state is SequenceState.WAITING
    assert important.state is SequenceState.RUNNING
    while important.state is SequenceState.RUNNING:
        assert important in clock.step(), "the first by rank always advances"


def test_finish_twice_is_harmless() -> None:
    clock = make_clock()
    sequence = clock.arrive(3)
    clock.step()
    clock.scheduler.finish(sequence)
    clock.scheduler.finish(sequence)
    assert clock.scheduler.kv_cache.num_free == 1000


def test_budget_must_hold_a_row_for_every_sequence() -> None:
    with pytest.raises(ConfigError, match=r"7.*64"):
        Scheduler(KVCache(4, 4), max_num_seqs=64, max_num_batched_tokens=7)


request_plans = st.fixed_dictionaries(
    {
        "prompt": st.integers(1, 30),
        "max_tokens": st.integers(1, 16),
        "n": st.sampled_from([1, 1, 1, 2, 3]),
        "seed": st.sampled_from([None, 1, 2]),
        "scored": st.booleans(),
        "priority": st.sampled_from([0, 0, 0, 1, -1]),
        "penalized": st.booleans(),  # the fake model checks the history that penalties need
    }
)
actions = st.one_of(
    st.tuples(st.just("add"), request_plans),
    st.tuples(st.just("abort"), st.integers(0, 30)),
    st.tuples(st.just("step"), st.integers(1, 4)),
)


@settings(max_examples=150, deadline=None)
@given(
    script=st.lists(actions, min_size=3, max_size=40),
    blocks=st.integers(12, 40),
    size=st.sampled_from([1, 3, 4]),
    budget=st.integers(4, 24),
    seqs=st.integers(1, 4),
)
def test_random_load_on_a_tiny_pool(
    script: list[tuple[str, Any]], blocks: int, size: int, budget: int, seqs: int
) -> None:
    """Whatever comes and goes: each output equals the one computed without an engine, and no block is lost."""
    executor = FakeExecutor(num_blocks=blocks, block_size=size, budget=budget)
    tokenizer: Any = ByteTokenizer()
    engine = Engine(executor, tokenizer, max_model_len=46, max_num_seqs=seqs, max_num_batched_tokens=budget)
    plans: dict[str, dict[str, Any]] = {}
    outputs: dict[tuple[str, int], list[int]] = {}
    ends: dict[tuple[str, int], list[str]] = {}
    aborted: set[str] = set()
    scores: dict[tuple[str, int], list[Any]] = {}

    def take(deltas: list[Any]) -> None:
        for delta in deltas:
            assert delta.error is None, delta.error
            key = (delta.request_id, delta.index)
            outputs.setdefault(key, []).extend(delta.token_ids)
            if delta.prompt_logprobs is not None:
                assert key not in scores
                scores[key] = delta.prompt_logprobs
            if delta.finish_reason is not None:
                ends.setdefault(key, []).append(delta.finish_reason)

    def step() -> None:
        decoding = [s for s in engine.scheduler.running if s.pending == 1]
        scheduled = {s.arrival for s in engine.scheduler.running}
        take(engine.step())
        still = [s for s in decoding if s.state is SequenceState.RUNNING]
        assert all(s.num_computed == len(s.tokens) - 1 for s in still), "a running stream got no row"
        sizes = [rows for _, rows, _ in executor.steps[-1].rows] if executor.steps else []
        assert sizes[: len(still)] == [1] * len(still), "decode rows come first"
        for queue in (engine.scheduler.waiting, engine.scheduler.running):
            assert [s.rank for s in queue] == sorted(s.rank for s in queue)
        assert all(s.arrival in scheduled or s.block_table or s.num_reserved for s in engine.scheduler.running)
        assert all(not s.block_table and not s.num_reserved for s in engine.scheduler.waiting)
        reserved = sum(s.num_reserved for s in engine.scheduler.running)
        assert reserved == engine.kv_cache.num_reserved <= engine.kv_cache.num_free
        held = {block for s in engine.scheduler.running for block in s.block_table}
        assert len(held) + engine.kv_cache.num_free == blocks

    for action, value in script:
        if action == "add":
            prompt = [33 + len(plans) % 90] * value["prompt"]
            if len(prompt) >= engine.max_model_len:
                continue
            temperature = 0.0 if value["seed"] is None else 1.0
            params = SamplingParams(
                n=value["n"],
                max_tokens=value["max_tokens"],
                seed=value["seed"],
                temperature=temperature,
                prompt_logprobs=0 if value["scored"] else None,
                priority=value["priority"],
                repetition_penalty=1.5 if value["penalized"] else 1.0,
            )
            plans[engine.add_request(prompt, params)] = {**value, "ids": prompt, "temperature": temperature}
        elif action == "abort" and plans:
            victim = list(plans)[value % len(plans)]
            deltas = engine.abort_request(victim)
            if deltas:
                aborted.add(victim)
            take(deltas)
        else:
            for _ in range(value if action == "step" else 0):
                step()
    steps = 0
    while engine.has_work:
        before = len(executor.steps)
        step()
        assert len(executor.steps) == before + 1, "a step with work runs something"
        steps += 1
        assert steps < 20_000, "every request ends"

    assert engine.kv_cache.num_free == engine.kv_cache.num_available == blocks
    for request_id, plan in plans.items():
        for index in range(plan["n"]):
            assert len(ends[request_id, index]) == 1
            produced = outputs[request_id, index]
            count = min(plan["max_tokens"], engine.max_model_len - plan["prompt"])
            wanted = expected_tokens(
                plan["ids"], count, temperature=plan["temperature"], seed=choice_seed(plan["seed"] or 0, index)
            )
            if ends[request_id, index] == ["abort"]:
                assert request_id in aborted
                assert produced == wanted[: len(produced)]
            else:
                assert produced == wanted
        if plan["scored"] and request_id not in aborted:
            first, *rest = scores[request_id, 0]
            assert first is None
            made = [entry[token_id].logprob for entry, token_id in zip(rest, plan["ids"][1:], strict=True)]
            assert made == expected_scores(plan["ids"])
        else:
            assert request_id in aborted or (request_id, 0) not in scores
