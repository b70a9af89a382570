"""What an earlier tuning left is taken when it is whole, and refused with the way out when it is not."""

from __future__ import annotations

import dataclasses
import json

import pytest

from lpx.bench.tune.state import _OPTIONS, TuneState, load_state, save_state
from lpx.bench.tune.tuner import CHECK, Step
from lpx.bench.tune.variables import LATENCY, THROUGHPUT
from lpx.bench.tune.workload import Workload
from lpx.errors import ConfigError

_STEPS = (
    Step("threads", 2, "kept", "faster", 1.2, 1.1, 1.3, 5, 7),
    Step("speculative_config", {"method": "suffix"}, "not kept", "slower", 0.5, None, None, 1, None),
    Step("kv_cache_dtype", None, "not tried", "changes answers"),
    Step(CHECK, {"threads": 2}, "kept", "faster than the start", 1.2, 1.1, 1.3, 5, 8),
)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "lpx.toml.tuning.json"
    state = TuneState({"goal": {"a": 1}}, Workload().to_json(), {"threads": 1}, {"threads": 2, "itl_target_ms": 64.0})
    state.steps = [dataclasses.asdict(step) for step in _STEPS]
    save_state(path, state)
    return path


def test_what_was_saved_is_taken(path):
    state = load_state(path, {"goal": {"a": 1}})
    assert [Step(**step) for step in state.steps] == list(_STEPS)
    assert Workload(**state.workload) == Workload()


def test_all_options_that_are_tried_can_be_kept():
    assert {variable.option for variable in (*LATENCY, *THROUGHPUT)} == set(_OPTIONS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workload", {"prompts": 8}),
        ("workload", {"prompts": "8", "max_tokens": 1, "concurrency": 1, "requests": 1}),
        ("workload", {"prompts": 10**12, "max_tokens": 1, "concurrency": 1, "requests": 1}),
        ("workload", []),
        ("start", []),
        ("values", None),
        ("values", {"threads": "two"}),
        ("values", {"model": "other"}),
        ("values", {"speculative_config": {}}),
        ("steps", {}),
        ("steps", [1]),
        ("steps", [{"option": "threads"}]),
        ("steps", [dataclasses.asdict(_STEPS[0]) | {"ratio": "fast"}]),
        ("steps", [dataclasses.asdict(_STEPS[0]) | {"rounds": None}]),
    ],
)
def test_a_state_with_a_wrong_part_is_refused_with_the_way_out(path, name, value):
    values = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(values | {name: value}))
    with pytest.raises(ConfigError, match="--restart begins anew"):
        load_state(path, {"goal": {"a": 1}})
    del values[name]
    path.write_text(json.dumps(values))
    if name != "workload":  # none yet
        with pytest.raises(ConfigError, match=f"its {name} cannot be used"):
            load_state(path, {"goal": {"a": 1}})


@pytest.mark.parametrize("data", [b"[" * 5000, b"\xff", b"{", b"9" * 5000, b" " * (5 << 20)])
def test_a_state_that_is_no_json_is_refused_with_the_way_out(path, data):
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="--restart begins anew"):
        load_state(path, {})
