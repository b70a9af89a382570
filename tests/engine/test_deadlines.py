"""Requests that may last only so long, on a clock that moves with the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lpx.engine.deadlines import NO_DEADLINE, Deadlines, check_latency
from lpx.engine.engine import Engine
from lpx.engine.outputs import RequestDelta
from lpx.engine.sampling_params import SamplingParams
from lpx.engine.sequence import Request
from lpx.errors import InvalidRequestError, LatencyUnreachableError, QueueFullError
from tests.engine.fake_executor import FakeExecutor, FollowingExecutor, expected_tokens

MakeEngine = Callable[..., Engine]
PROMPT = list(b"a prompt of 24 tokens...")


class Clock:
    """Nanoseconds that pass only while the executor computes: `step_ms` for each step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step_ms: float = 1.0) -> None:
        self.now = 10**12
        self.step_ns = int(step_ms * 1e6)
        self.started: list[int] = []
        for module in ("engine", "request_intake", "steps_ahead"):
            monkeypatch.setattr(f"lpx.engine.{module}.monotonic_ns", lambda: self.now)

    def tick(self, _: int) -> None:
        self.started.append(self.now)
        self.now += self.step_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def limited(ms: float, **more: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 1000, "max_latency_ms": ms, **more})


def run(engine: Engine) -> dict[tuple[str, int], list[RequestDelta]]:
    deltas: dict[tuple[str, int], list[RequestDelta]] = {}
    while engine.has_work:
        for delta in engine.step():
            deltas.setdefault((delta.request_id, delta.index), []).append(delta)
    return deltas


def test_decoding_ends_with_what_there_is(make_engine: MakeEngine, clock: Clock) -> None:
    engine = make_engine(FakeExecutor(before_step=clock.tick), max_num_batched_tokens=64)
    engine.add_request(PROMPT, limited(20), "late")
    engine.add_request(PROMPT[:5], SamplingParams(temperature=0, max_tokens=30), "other")
    deltas = run(engine)
    late = deltas["late", 0]
    ids = [token_id for delta in late for token_id in delta.token_ids]
    assert ids == expected_tokens(PROMPT, 20)
    assert "".join(delta.text for delta in late) == bytes(ids).decode(), "text that was held back comes, too"
    assert [delta.finish_reason for delta in late] == [None] * 20 + ["timeout"]
    assert late[-1].timings is not None
    assert late[-1].timings.completion_tokens == 20
    assert deltas["other", 0][-1].finish_reason == "length"
    assert engine.stats().finished_total["timeout"] == 1
    assert engine._deadlines.next_ns == NO_DEADLINE


def test_prompt_ends_in_its_middle_and_can_be_found(make_engine: MakeEngine, clock: Clock) -> None:
    engine = make_engine(FakeExecutor(before_step=clock.tick), max_num_batched_tokens=8)
    engine.add_request(PROMPT, limited(2), "late")
    (delta,) = run(engine)["late", 0]
    assert (delta.finish_reason, delta.token_ids, delta.text) == ("timeout", [], "")
    engine.add_request(PROMPT, limited(1000, max_tokens=1), "again")
    (delta,) = run(engine)["again", 0]
    assert delta.cached_tokens == 16


def test_steps_of_prompts_are_no_longer_than_the_nearest_deadline(make_engine: MakeEngine, clock: Clock) -> None:
    executor = FakeExecutor(num_blocks=200)
    rows: list[int] = []

    def compute(number: int) -> None:  # a millisecond for each row
        if number:
            rows.append(executor.steps[-1].total)
        clock.now += 1_000_000 * (rows[-1] if rows else 100)

    executor.before_step = compute
    engine = make_engine(executor, max_model_len=700, max_num_batched_tokens=300, enable_prefix_caching=False)
    for _ in range(4):
        engine.scheduler.pace.observe(0, 100, 100.0)
    engine.add_request(PROMPT * 20, limited(200), "late")
    engine.add_request(PROMPT * 20, SamplingParams(temperature=0, max_tokens=2), "other")
    deltas = run(engine)
    assert deltas["late", 0][-1].finish_reason == "timeout"
    first = executor.steps[0].total
    assert 150 <= first <= 200  # what fits, not the 300 of the budget
    assert max(step.total for step in executor.steps) == 300  # later nobody is in a hurry


def test_waiting_ends_too(make_engine: MakeEngine, clock: Clock) -> None:
    engine = make_engine(FakeExecutor(before_step=clock.tick), max_num_seqs=1)
    engine.add_request(PROMPT, SamplingParams(temperature=0, max_tokens=30), "runs")
    engine.add_request(PROMPT, limited(5, n=2), "late")
    deltas = run(engine)
    assert [delta.finish_reason for delta in deltas["late", 0] + deltas["late", 1]] == ["timeout"] * 2
    assert clock.started.index(10**12 + 5_000_000) == 5, "it ended while the other one ran"
    assert len(clock.started) > 30


def test_steps_that_nobody_looks_at_stop_at_the_deadline(make_engine: MakeEngine, clock: Clock) -> None:
    executor = FollowingExecutor(before_step=clock.tick)
    engine = make_engine(executor, max_num_batched_tokens=32, max_model_len=250)
    engine.add_request(PROMPT, limited(20.5), "late")
    sizes = []
    while engine.has_work:
        sizes += [len(delta.token_ids) for delta in engine.step()]
    assert max(sizes) == 8, "steps do follow one another"
    assert sum(sizes) == 21
    assert max(clock.started) < 10**12 + 20_500_000


def test_the_next_deadline_is_always_known(make_engine: MakeEngine, clock: Clock) -> None:
    engine = make_engine()
    requests = {ms: engine.make_request(PROMPT, limited(ms)) for ms in (30, 10, 20)}
    free = engine.make_request(PROMPT, SamplingParams())
    deadlines = Deadlines()
    for request in (*requests.values(), free):
        deadlines.add(request)
    start = clock.now
    assert deadlines.next_ns == start + 10_000_000
    assert deadlines.overdue(start + 9_999_999) == []
    assert deadlines.overdue(start + 20_000_000) == [requests[10], requests[20]]
    for request in (free, requests[20], requests[10]):
        deadlines.remove(request)
    assert deadlines.next_ns == start + 30_000_000
    deadlines.remove(requests[30])
    assert deadlines.next_ns == NO_DEADLINE


def test_finished_and_forgotten_requests_leave_no_deadline(make_engine: MakeEngine, clock: Clock) -> None:
    engine = make_engine()
    engine.add_request(PROMPT, limited(1e6, max_tokens=2))
    run(engine)
    assert engine._deadlines.next_ns == NO_DEADLINE
    aborted = engine.add_request(PROMPT, limited(1e6))
    engine.abort_request(aborted)
    assert engine._deadlines.next_ns == NO_DEADLINE
    engine.add_request(PROMPT, limited(1e6))
    engine.reset()
    assert engine._deadlines.next_ns == NO_DEADLINE


@pytest.mark.parametrize("value", [0, -1, True, "5", float("inf"), float("nan"), 1e10])
def test_wrong_latency_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        SamplingParams(max_latency_ms=value)
    assert refusal.value.param == "max_latency_ms"


# What can never be met.


def judge(engine: Engine, ms: float, **more: Any) -> None:
    request: Request = engine.make_request(PROMPT, limited(ms, **more))
    check_latency(request, engine.scheduler)


def test_nothing_is_refused_without_a_measurement_or_without_a_queue(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add_request(PROMPT * 4, SamplingParams())
    judge(engine, 0.001)
    engine.abort_all()
    engine.scheduler.pace.observe(0, 100, 1000.0)
    judge(engine, 0.001)


def test_queue_that_takes_longer_refuses_at_once(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=2, max_num_batched_tokens=8, max_model_len=500)
    engine.scheduler.pace.observe(0, 100, 1000.0)  # 10 ms a row
    for number in range(3):
        prompt = [100 + number, *PROMPT * 4]
        engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=1, n=2, priority=number))
    rows = 3 * 97
    with pytest.raises(LatencyUnreachableError, match=rf"{rows * 10} ms, and max_latency_ms is 500") as refusal:
        judge(engine, 500, priority=2)
    assert isinstance(refusal.value, QueueFullError)
    assert refusal.value.retry_after_s == 3  # 2910 - 500 ms
    judge(engine, rows * 10, priority=2)
    judge(engine, 1000, priority=0)  # goes before two of them
    with pytest.raises(LatencyUnreachableError):
        judge(engine, 1000, priority=1)
    engine.abort_all()


def test_prompts_that_are_mostly_cached_take_less(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for _ in range(2):
        engine.add_request(PROMPT * 4, SamplingParams(max_tokens=1))
        run(engine)
    pace = engine.scheduler.pace
    for _ in range(20):
        pace.observe(0, 100, 1000.0)
    engine.add_request(PROMPT * 4, SamplingParams())
    share = 92 / (2 * 96)  # found so far
    judge(engine, 961 * (1 - share))
    with pytest.raises(LatencyUnreachableError):
        judge(engine, 959 * (1 - share))
    engine.abort_all()
