"""Options that llama.cpp's users know: windows of penalties, bans, and a limit of the time after the first token."""

from __future__ import annotations

from typing import Any

import pytest

from lpx.engine.engine import Engine
from lpx.engine.outputs import RequestDelta
from lpx.engine.sampling_params import SamplingParams
from lpx.errors import InvalidRequestError
from tests.engine.fake_executor import ByteTokenizer, FakeExecutor, FollowingExecutor


def make(executor: FakeExecutor) -> Engine:
    return Engine(executor, ByteTokenizer(), max_model_len=200, max_num_seqs=4, max_num_batched_tokens=32)


def run(engine: Engine, prompt: list[int], params: SamplingParams) -> list[RequestDelta]:
    engine.add_request(prompt, params)
    deltas = []
    while engine.has_work:
        deltas += engine.step()
    return deltas


@pytest.mark.parametrize("window", [1, 3, 5, 12, 1000])
def test_penalties_look_at_the_latest_tokens_only(window: int) -> None:
    executor = FollowingExecutor(num_blocks=64)
    executor.window = window
    params = SamplingParams(temperature=0, max_tokens=20, repetition_penalty=1.2, repeat_last_n=window)
    deltas = run(make(executor), list(b"a prompt"), params)
    assert deltas[-1].finish_reason == "length", deltas[-1].error


def test_a_window_of_nothing_means_no_penalties() -> None:
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=1, repeat_last_n=0)
    assert not params.sampler_settings(1, 300).needs_history


def test_windows_are_not_drafted_for() -> None:
    assert SamplingParams(repetition_penalty=1.5, repeat_last_n=3).speculative == "off"
    assert SamplingParams(repeat_last_n=3).speculative == "auto"


def test_banned_tokens_never_come() -> None:
    executor = FakeExecutor(num_blocks=64, choose=lambda tokens: "x")
    deltas = run(make(executor), [65], SamplingParams(temperature=0, max_tokens=9, banned_token_ids=[ord("x")]))
    assert "x" not in "".join(delta.text for delta in deltas)


def test_banned_tokens_must_exist() -> None:
    with pytest.raises(InvalidRequestError, match="banned_token_ids"):
        make(FakeExecutor()).make_request([65], SamplingParams(banned_token_ids=[400]))


def test_time_for_decoding_begins_with_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0]
    monkeypatch.setattr("lpx.engine.engine.monotonic_ns", lambda: clock[0])
    monkeypatch.setattr("lpx.engine.request_intake.monotonic_ns", lambda: clock[0])

    def tick(_: int) -> None:
        clock[0] += 10_000_000

    engine = make(FakeExecutor(num_blocks=64, before_step=tick))
    params = SamplingParams(temperature=0, max_tokens=50, max_decode_ms=45.0)
    deltas = run(engine, [65] * 100, params)  # the prompt alone takes four steps
    assert deltas[-1].finish_reason == "timeout"
    assert sum(len(delta.token_ids) for delta in deltas) == 6  # the first, four within the time, and the one running


@pytest.mark.parametrize("change", [{"repeat_last_n": -2}, {"max_decode_ms": 0}, {"banned_token_ids": [-1]}])
def test_values_out_of_range_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**change)
    assert caught.value.param == next(iter(change))
