"""Targets and limits as users write them."""

from __future__ import annotations

import pytest

from lpx.bench.tune import Goal, Slo
from lpx.errors import ConfigError


def test_limits_are_read_and_written():
    assert Slo.parse("ttft:200,itl:10") == Slo(200.0, 10.0)
    assert Slo.parse("itl:7.5ms") == Slo(None, 7.5)
    assert Slo.parse(None) == Slo()
    assert not Slo()
    assert Slo(200.0, 7.5).describe() == "ttft:200,itl:7.5"


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:0", "ttft:-1", "tpot:5", "ttft:5,ttft:6", "ttft:5;itl:6", ","])
def test_what_is_no_limit_is_refused(text):
    with pytest.raises(ConfigError, match="ttft:200,itl:10"):
        Slo.parse(text)


def test_the_worse_of_two_limits_counts():
    assert Slo(200.0, 10.0).excess(100.0, 15.0) == 1.5
    assert Slo(200.0, None).excess(100.0, 1e9) == 0.5
    assert Slo().excess(1e9, 1e9) == 0.0


def test_goals_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="latency or throughput"):
        Goal("speed")
    with pytest.raises(ConfigError, match="one request at a time"):
        Goal("latency", concurrency=4)
    with pytest.raises(ConfigError, match="from 1 to 1024"):
        Goal("throughput", concurrency=0)


def test_a_goal_survives_json():
    goal = Goal("throughput", Slo(200.0, None), 8, True)
    assert Goal.from_json(goal.to_json()) == goal
