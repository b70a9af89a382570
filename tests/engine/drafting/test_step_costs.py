from __future__ import annotations

import math
from random import Random

import pytest

from lpx.engine.drafting.step_costs import StepCosts
from lpx.runtime.step import StepBatch, StepResult
from tests.engine.fake_executor import FakeExecutor


def test_measured_costs_are_interpolated_and_go_on_beyond() -> None:
    costs = StepCosts("avx2")
    costs._take_in({1: 10.0, 2: 11.0, 3: 12.0, 4: 13.0, 6: 20.0, 8: 24.0, 12: 36.0, 16: 48.0})
    assert costs.known
    assert [costs.ms(rows) for rows in (1, 4, 5, 8, 14)] == pytest.approx([10, 13, 16.5, 24, 42])
    assert costs.ms(20) == pytest.approx(60)


def test_what_was_not_measured_keeps_its_assumed_relation() -> None:
    costs = StepCosts("avx2")
    assumed = [costs.ms(rows) for rows in (8, 16)]
    costs._take_in({1: 100.0, 4: 150.0, 8: 300.0})
    assert costs.ms(16) == pytest.approx(300 * assumed[1] / assumed[0])


def test_a_measurement_that_says_more_rows_are_faster_is_not_believed() -> None:
    costs = StepCosts()
    costs._take_in({1: 10.0, 2: 9.0, 4: 8.0, 16: 30.0})
    assert costs.ms(4) >= costs.ms(2) >= costs.ms(1) == pytest.approx(10)


def test_costs_are_unknown_until_a_step_has_run() -> None:
    costs = StepCosts("avx2")
    assert not costs.known
    costs.observe(1, 4.0)
    assert costs.known
    assert costs.ms(1) == pytest.approx(4.0)
    assert 4.0 < costs.ms(4) < 16.0


def test_steps_correct_the_scale_and_keep_the_relations() -> None:
    costs = StepCosts()
    costs._take_in({1: 10.0, 2: 11.0, 3: 12.0, 4: 13.0, 6: 15.0, 8: 17.0, 12: 25.0, 16: 33.0})
    for _ in range(400):
        costs.observe(1, 20.0)
    assert costs.ms(1) == pytest.approx(20.0, rel=0.02)
    assert costs.ms(4) / costs.ms(1) == pytest.approx(1.3, rel=0.25)


def test_a_class_of_rows_that_is_slower_than_measured_is_noticed() -> None:
    costs = StepCosts()
    costs._take_in({1: 10.0, 2: 11.0, 3: 12.0, 4: 13.0, 6: 15.0, 8: 17.0, 12: 25.0, 16: 33.0})
    before = costs.ms(4) / costs.ms(1)
    for _ in range(200):
        costs.observe(1, 10.0)
        costs.observe(4, 16.0)
    assert costs.ms(4) / costs.ms(1) > before * 1.15


def test_memory_and_arithmetic_may_change_their_pace_apart() -> None:
    costs = StepCosts()
    rows_measured = (1, 2, 3, 4, 6, 8, 12, 16)
    costs._take_in({rows: 10.0 + 0.5 * (rows - 1) for rows in rows_measured})
    # Memory has become faster, and arithmetic slower; steps of one and of four rows show it.
    for _ in range(150):
        for rows in (1, 1, 4):
            costs.observe(rows, 8.0 + 0.7 * (rows - 1))
    for rows in (1, 2, 4, 8, 16):
        assert costs.ms(rows) == pytest.approx(8.0 + 0.7 * (rows - 1), rel=0.1)


def test_slower_arithmetic_has_the_effect_of_more_rows() -> None:
    """As measured where two processors were first two cores and then two threads of one core."""
    cores = {1: 3.71, 2: 3.71, 3: 3.93, 4: 4.08, 6: 5.16, 8: 6.83, 12: 8.90, 16: 12.35}
    one_core = {1: 3.02, 2: 3.41, 3: 3.65, 4: 4.29, 6: 6.07, 8: 8.03, 12: 11.36, 16: 15.5}
    costs = StepCosts()
    costs._take_in(cores)
    for rows in (1, 1, 1, 1, 4) * 4:
        costs.observe(rows, one_core[rows])
    for rows, ms in one_core.items():  # few rows tell about many
        assert costs.ms(rows) / costs.ms(1) == pytest.approx(ms / one_core[1], rel=0.15)
    for rows in (1, 1, 1, 1, 6) * 4:
        costs.observe(rows, cores[rows])
    for rows, ms in cores.items():
        assert costs.ms(rows) / costs.ms(1) == pytest.approx(ms / cores[1], rel=0.15)


def test_noise_of_steps_is_not_taken_for_a_change() -> None:
    random = Random(5)
    truth = {1: 3.71, 2: 3.71, 3: 3.93, 4: 4.08, 6: 5.16, 8: 6.83, 12: 8.90, 16: 12.35}
    costs = StepCosts()
    costs._take_in(truth)
    furthest = 0.0
    for _ in range(300):
        for rows in (1, 1, 4):
            disturbed = 3.0 if random.random() < 0.01 else 1.0
            costs.observe(rows, truth[rows] * math.exp(random.gauss(0.0, 0.06)) * disturbed)
        furthest = max(furthest, abs(math.log(costs.ms(4) / costs.ms(1) * truth[1] / truth[4])))
    assert furthest < 0.12


def test_one_disturbed_step_changes_little() -> None:
    costs = StepCosts()
    costs._take_in({1: 10.0, 4: 13.0, 16: 33.0})
    costs.observe(4, 10_000.0)
    assert costs.ms(4) < 13.0 * 1.3
    costs.observe(4, 0.0)
    assert math.isfinite(costs.ms(4))


def test_measuring_runs_steps_within_the_limits_of_the_executor() -> None:
    executor = FakeExecutor(num_blocks=2, block_size=4)
    costs = StepCosts()
    costs.measure(executor, 259, max_rows=6, max_model_len=8)
    assert costs.known
    assert {record.total for record in executor.steps} == {1, 2, 3, 4, 6}


@pytest.mark.parametrize("context", [512, 200])
def test_what_attention_adds_is_measured_behind_a_context(monkeypatch: pytest.MonkeyPatch, context: int) -> None:
    clock = 0.0
    seen = set()

    class Timed(FakeExecutor):
        """One row takes 2 ms, a further one 0.5 ms; a token before them 1 us, and 2 us for each row."""

        def step(self, batch: StepBatch) -> StepResult:
            nonlocal clock
            (sequence,) = batch.sequences
            rows, behind = len(sequence.token_ids), sequence.start_position
            assert len(sequence.block_table) * self.info.block_size >= behind + rows
            seen.add((rows, behind))
            clock += 1.5e-3 + 0.5e-3 * rows + behind * (1e-6 + 2e-6 * rows)
            return StepResult([])

    monkeypatch.setattr("lpx.engine.drafting.step_costs.perf_counter", lambda: clock)
    costs = StepCosts()
    costs.measure(Timed(num_blocks=1024, block_size=4), 259, max_rows=64, max_model_len=context + 16)
    assert seen >= {(1, context), (16, context), (12, 0)}
    assert costs.ms(1) == pytest.approx(2.0)
    assert costs.ms(1, 1000) == pytest.approx(2.0 + 3.0)
    assert costs.ms(4, 1000) == pytest.approx(3.5 + 9.0)
    assert costs.ms(16, 300) == pytest.approx(9.5 + 9.9)
    costs.observe(4, costs.ms(4, 1000), 1000)  # as expected: nothing to correct
    assert costs.ms(4) == pytest.approx(3.5)


def test_costs_do_without_a_context_where_there_is_no_room() -> None:
    costs = StepCosts()
    costs.measure(FakeExecutor(num_blocks=16, block_size=4), 259, max_rows=64, max_model_len=64)
    assert costs.ms(4, 1000) == costs.ms(4)


def test_the_time_between_steps_is_learned_and_a_pause_is_no_such_time() -> None:
    costs = StepCosts()
    for _ in range(100):
        costs.observe_between(0.5)
    assert costs.between_ms == pytest.approx(0.5, rel=0.01)
    costs.observe_between(1000.0)
    assert costs.between_ms < 0.7
