"""Chunks that keep a step within its target, worked out from steps of an imagined machine."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from lpx.engine.prefill_pace import AIM, FIRST_ROWS, LEAST_DEFAULT_MS, LEAST_ROWS, PrefillPace

MOST = 512


def chunks(
    pace: PrefillPace,
    steps: int,
    *,
    decode_ms: float,
    row_ms: float,
    disturbed: float = 0.0,
    seed: int = 0,
    plain: bool = True,
) -> list[int]:
    """Rows of each chunk, on a machine where a step takes `decode_ms` and `row_ms` for each prompt row, and some steps
    five times as long."""
    rng = random.Random(seed)
    rows = []
    for _ in range(steps):
        if plain:
            pace.observe(1, 0, decode_ms * (5 if rng.random() < disturbed else 1))
        rows.append(pace.rows_beside(1, MOST))
        ms = decode_ms + row_ms * rows[-1]
        pace.observe(1, rows[-1], ms * (5 if rng.random() < disturbed else 1))
    return rows


def test_first_chunk_is_small_and_the_next_ones_grow_to_the_target() -> None:
    pace = PrefillPace(40.0)
    rows = chunks(pace, 10, decode_ms=3.0, row_ms=0.1)
    assert rows[0] == FIRST_ROWS
    assert all(later <= 2 * earlier for earlier, later in pairwise(rows))
    assert rows[-1] == pytest.approx(310, abs=1)  # 3 + 310 * 0.1 = 0.85 * 40


def test_prompt_without_streams_tells_what_a_row_costs() -> None:
    pace = PrefillPace(20.0)
    pace.observe(0, 100, 200.0)
    pace.observe(1, 0, 4.0)
    assert pace.rows_beside(1, MOST) == 6  # (0.85 * 20 - 4) / 2
    pace = PrefillPace(30.0)
    pace.observe(0, 100, 200.0)
    pace.observe(1, 0, 4.0)
    assert pace.rows_beside(1, MOST) == 10


@pytest.mark.parametrize(("decode_ms", "target"), [(3.0, LEAST_DEFAULT_MS), (30.0, 90.0)])
def test_default_target_follows_the_decode_step(decode_ms: float, target: float) -> None:
    pace = PrefillPace()
    rows = chunks(pace, 20, decode_ms=decode_ms, row_ms=0.5)[-1]
    assert pace.target_ms == target
    assert rows == int((AIM * target - decode_ms) / 0.5)


@pytest.mark.parametrize("target", [0.001, 5.0])
def test_prompts_advance_even_if_the_target_cannot_be_met(target: float) -> None:
    assert min(chunks(PrefillPace(target), 30, decode_ms=6.0, row_ms=2.0)) >= LEAST_ROWS
    assert PrefillPace(target).rows_beside(1, 3) == 3


def test_disturbed_steps_change_little() -> None:
    calm = chunks(PrefillPace(30.0), 40, decode_ms=4.0, row_ms=0.5)[-1]
    for seed in range(20):
        rows = chunks(PrefillPace(30.0), 60, decode_ms=4.0, row_ms=0.5, disturbed=0.15, seed=seed)
        assert sorted(rows)[len(rows) // 2] == pytest.approx(calm, rel=0.1)
        assert max(rows) <= 2 * calm


def test_one_slow_step_is_overlooked() -> None:
    pace = PrefillPace(30.0)
    before = chunks(pace, 20, decode_ms=4.0, row_ms=0.5)[-1]
    pace.observe(1, 0, 400.0)
    pace.observe(1, before, 3000.0)
    assert pace.rows_beside(1, MOST) == before


def test_a_slower_machine_is_followed_after_two_slow_steps() -> None:
    pace = PrefillPace(40.0)
    before = chunks(pace, 20, decode_ms=3.0, row_ms=0.1)[-1]
    slower = chunks(pace, 9, decode_ms=3.0, row_ms=0.2)
    assert slower[:2] == [before, before]
    assert slower[2] == pytest.approx(before / 2, abs=1)
    faster = chunks(pace, 12, decode_ms=3.0, row_ms=0.1)
    assert faster[2] == slower[-1], "a few faster steps prove nothing"
    assert faster[-1] == before


def test_more_streams_than_in_the_last_plain_step_are_noticed() -> None:
    pace = PrefillPace(30.0)
    chunks(pace, 20, decode_ms=4.0, row_ms=0.5)
    rows = chunks(pace, 40, decode_ms=14.0, row_ms=0.5, plain=False)[-1]  # no step without prompts any more
    assert 14.0 + 0.5 * rows == pytest.approx(AIM * 30.0, rel=0.05)


def test_default_target_follows_the_streams_when_no_step_is_without_prompts() -> None:
    pace = PrefillPace()
    chunks(pace, 20, decode_ms=4.0, row_ms=0.7)  # one stream
    rows = 0
    for _ in range(30):  # sixteen, and prompts in every step; a step of theirs alone would take 14.5 ms
        rows = pace.rows_beside(16, MOST)
        pace.observe(16, rows, 4.0 + 0.7 * (15 + rows))
    assert pace.target_ms == pytest.approx(3 * 14.5)
    assert 14.5 + 0.7 * rows == pytest.approx(AIM * 3 * 14.5, rel=0.03)


def test_load_from_the_first_step_on_is_learned_from() -> None:
    pace = PrefillPace(60.0)
    pace.observe(0, 512, 256.0)
    rows = chunks(pace, 40, decode_ms=14.0, row_ms=0.5, plain=False)[-1]
    assert 14.0 + 0.5 * rows == pytest.approx(AIM * 60.0, rel=0.05)


def test_rate_is_that_of_the_latest_prompts_without_the_slowest() -> None:
    pace = PrefillPace()
    assert pace.rows_per_second is None
    for ms in (1000.0, 100_000.0, 1000.0):
        pace.observe(0, 500, ms)
    assert pace.rows_per_second == 500.0
    for _ in range(20):
        pace.observe(2, 16, 20.0)
    assert pace.rows_per_second == 800.0
