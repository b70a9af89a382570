"""The way through the variables on a machine whose speed is made up, with real engines of a tiny model."""

from __future__ import annotations

import json

import pytest

from lpx.bench.tune import Goal, Slo, Tuner, TuneState
from lpx.bench.tune.measurement import measure_tune_again
from lpx.bench.tune.state import identity, load_state, save_state, state_path
from lpx.bench.tune.tuner import CHECK
from lpx.bench.workloads import measure_again
from lpx.errors import ConfigError

LATENCY = Goal("latency")


def tune(options, goal=LATENCY, state=None, **more):
    return Tuner(options, goal, state or TuneState({}), **more).run()


def steps_of(outcome, option):
    return [step for step in outcome.steps if step.option == option]


def test_what_is_faster_is_kept_and_later_values_meet_the_best_so_far(options, machine):
    machine.speed = lambda info: (
        {1: 0.5, 2: 1.0, 3: 0.7, 4: 1.3}[info.threads] * (1.1 if info.speculation.startswith("suffix") else 1.0)
    )
    outcome = tune(options)
    assert outcome.values == {"threads": 4, "speculative_config": {"method": "suffix"}}
    assert outcome.finished
    assert not outcome.interrupted
    threads = steps_of(outcome, "threads")
    assert [(step.value, step.kept) for step in threads] == [(4, True), (3, False)]
    assert threads[0].ratio == pytest.approx(1.3, rel=0.02)
    assert threads[1].ratio == pytest.approx(0.7 / 1.3, rel=0.02)  # against the best so far
    [check] = steps_of(outcome, CHECK)
    assert check.kept
    assert check.ratio == pytest.approx(1.43, rel=0.02)
    assert check.why == "faster than the start"
    assert {step.why for step in steps_of(outcome, "max_num_batched_tokens")} <= {
        "no clear difference",
        "gains less than 2%",
        "slower",
    }


def test_when_nothing_is_faster_the_defaults_stay(options, machine):
    outcome = tune(options)
    assert outcome.values == {}
    assert not steps_of(outcome, CHECK)
    assert outcome.steps


def test_gains_that_are_none_together_are_taken_back(options, machine):
    # Four threads seem to gain something, but the machine changes meanwhile.
    machine.speed = lambda info: {2: 1.0, 4: 1.3 if len(machine.order) < 12 else 0.8}.get(info.threads, 0.1)
    outcome = tune(options, fixed=frozenset({"isa", "speculative_config", "max_num_batched_tokens"}))
    assert outcome.values == {}
    [check] = steps_of(outcome, CHECK)
    assert (check.kept, check.why) == (False, "slower than the start: back to it")


def test_an_outcome_that_is_not_told_apart_from_the_start_says_so(options, machine):
    rounds = iter(range(10**6))
    unsteady = lambda: (0.6, 2.0)[next(rounds) % 2]  # noqa: E731
    machine.speed = lambda info: {2: 1.0, 4: 1.3 if len(machine.order) < 12 else unsteady()}.get(info.threads, 0.1)
    outcome = tune(options, fixed=frozenset({"isa", "speculative_config", "max_num_batched_tokens"}))
    [check] = steps_of(outcome, CHECK)
    assert check.low < 1 < check.high
    assert (check.kept, check.why) == (True, "against the start: not decided; a longer --duration tells more")


def test_given_options_and_lossy_ones_are_left_alone(options, machine):
    machine.speed = lambda info: 2.0 if info.threads == 4 or info.kv_cache_dtype == "q8" else 1.0
    outcome = tune(options, fixed=frozenset({"threads"}))
    assert outcome.values == {}
    [threads] = steps_of(outcome, "threads")
    assert (threads.verdict, threads.why) == ("not tried", "given, so it is not changed")
    [cache] = steps_of(outcome, "kv_cache_dtype")
    assert "--allow-lossy" in cache.why
    machine.answers = lambda info: ((1, 2, 3 if info.kv_cache_dtype == "f16" else 4),)
    allowed = tune(options, Goal("latency", allow_lossy=True), fixed=frozenset({"threads"}))
    assert allowed.values == {"kv_cache_dtype": "q8"}
    assert "keeps less precision: 1 of 1 greedy answers differ" in steps_of(allowed, "kv_cache_dtype")[0].why


def test_an_exact_option_that_changes_answers_is_refused(options, machine):
    machine.speed = lambda info: 2.0 if info.threads == 4 else 1.0
    machine.answers = lambda info: ((info.threads,),)
    outcome = tune(options)
    assert "threads" not in outcome.values
    assert "please report it" in steps_of(outcome, "threads")[0].why


def test_throughput_within_limits(options, machine):
    goal = Goal("throughput", Slo(None, 20.0), 16)
    machine.itl_ms = lambda info: 3.0 * min(16, info.max_num_seqs)  # 48 ms with all at once
    machine.speed = lambda info: min(16, info.max_num_seqs)
    outcome = tune(options, goal)
    assert outcome.values["max_num_seqs"] == 4
    assert outcome.keeps_slo
    tried = [(step.value, step.why[:10]) for step in steps_of(outcome, "max_num_seqs")]
    assert tried[:2] == [(8, "nearer to "), (4, "keeps itl:")]
    assert not any(step.kept for step in steps_of(outcome, "max_num_seqs")[2:])
    impossible = tune(options, Goal("throughput", Slo(None, 1.0), 16))
    assert not impossible.keeps_slo


def test_every_comparison_is_recorded_and_can_be_made_again(options, machine):
    machine.speed = lambda info: {1: 0.5, 2: 1.0, 3: 0.4, 4: 1.3}[info.threads]
    recorded, labels = [], []

    def record(measurement, tried):
        recorded.append(measurement)
        labels.append(tried)
        return len(recorded)

    outcome = tune(options, record=record)
    assert [step.run_id for step in outcome.steps if step.rounds] == list(range(1, len(recorded) + 1))
    assert labels[:3] == ["threads=4", "threads=3", "speculative-config=suffix"]
    assert labels[-1] == "all-together"
    first = recorded[0]
    assert (first.kind, first.subject.threads, first.settings["candidate"]["threads"]) == ("tune", 4, 4)
    assert first.figures["speed_ratio"] == pytest.approx(1.3, rel=0.02)
    assert first.figures["speed_ratio_low"] < first.figures["speed_ratio"] < first.figures["speed_ratio_high"]
    assert "speed_ratio_low" not in recorded[1].figures  # three threads were given up after one round
    again = measure_again("tune", json.loads(json.dumps(first.settings)))
    assert again.figures["speed_ratio"] == pytest.approx(1.3, rel=0.03)
    assert measure_tune_again(first.settings).samples.keys() == first.samples.keys()


def test_an_interrupted_tuning_goes_on_where_it_stopped(options, machine, tmp_path):
    machine.speed = lambda info: {1: 0.5, 2: 1.0, 3: 0.4, 4: 1.3}[info.threads]
    path = state_path(tmp_path / "lpx.toml")
    machine.stop_after = 15  # in the middle of a comparison
    first = tune(options, state=TuneState({"a": 1}), save=lambda state: save_state(path, state))
    assert first.interrupted
    assert not first.finished
    assert first.values == {"threads": 4}
    done = [(step.option, step.value) for step in first.steps]
    assert len(done) > 0
    machine.stop_after = None
    loaded = load_state(path, {"a": 1})
    assert loaded is not None
    assert loaded.values == {"threads": 4}
    assert loaded.workload == first.workload.to_json()
    tried = len(machine.order)
    second = tune(options, state=loaded, save=lambda state: save_state(path, state))
    assert second.finished
    assert [(step.option, step.value) for step in second.steps][: len(done)] == done
    assert len({(step.option, str(step.value)) for step in second.steps}) == len(second.steps)
    assert machine.order[tried].threads == 4


def test_without_time_what_is_left_is_said_and_goes_on_later(options, machine):
    machine.speed = lambda info: 1.0
    state = TuneState({})
    outcome = tune(options, state=state, budget_s=0.0)
    assert not outcome.finished
    assert {step.why for step in outcome.steps if step.value is not None} == {"no time left"}
    machine.ttft_ms = lambda info: 50.0
    assert not tune(options, Goal("latency", Slo(10.0, None)), budget_s=0.0).keeps_slo
    machine.ttft_ms = lambda info: 5.0
    assert tune(options, state=state).finished


def test_what_cannot_be_loaded_is_said(options, machine, monkeypatch):
    monkeypatch.setattr("lpx._native.available_isas", lambda: ["mmx", "portable"])
    [step] = steps_of(tune(options), "isa")
    assert step.verdict == "not tried"
    assert "mmx" in step.why


def test_states_of_other_runs_are_refused(tiny_model, tmp_path):
    path = tmp_path / "lpx.toml.tuning.json"
    assert load_state(path, {}) is None
    mine = identity(tiny_model, {"threads": "2"}, LATENCY.to_json())
    save_state(path, TuneState(mine))
    assert load_state(path, mine) == TuneState(json.loads(json.dumps(mine)))
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.gguf").write_bytes(b"other")
    with pytest.raises(ConfigError, match="the model changed"):
        load_state(path, identity(other, {"threads": "2"}, LATENCY.to_json()))
    with pytest.raises(ConfigError, match="the options given changed"):
        load_state(path, identity(tiny_model, {}, LATENCY.to_json()))
    with pytest.raises(ConfigError, match=r"the target, .* changed"):
        load_state(path, {**mine, "goal": Goal("throughput").to_json()})
    with pytest.raises(ConfigError, match="the machine changed"):
        load_state(path, {**mine, "machine": ["another"]})
    for spoilt in ("", "[]", "{}", '{"format": 99, "identity": {}}'):
        path.write_text(spoilt)
        with pytest.raises(ConfigError, match="--restart"):
            load_state(path, mine)
