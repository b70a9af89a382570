"""What `--fail-on` takes, and what it refuses."""

import pytest

from lpx.bench.gate.conditions import figure_of, parse_condition, parse_conditions, short_name
from lpx.bench.gate.sessions import open_sessions
from lpx.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "figure", "worse_by", "least_ratio"),
    [
        ("decode:-5%", "decode_tokens_per_second", 0.05, 0.95),
        ("decode:5%", "decode_tokens_per_second", 0.05, 0.95),
        (" prefill : -7.5 % ", "prefill_tokens_per_second", 0.075, 0.925),
        ("p99_ttft:+10%", "ttft_ms_p99", 0.1, 1 / 1.1),
        ("ttft:+25%", "ttft_ms_median", 0.25, 0.8),
        ("p50_itl:+10%", "itl_ms_median", 0.1, 1 / 1.1),
        ("mean_e2el:+100%", "e2el_ms_mean", 1.0, 0.5),
        ("throughput:-5%", "output_tokens_per_second", 0.05, 0.95),
        ("tpot_ms_p95:+5%", "tpot_ms_p95", 0.05, 1 / 1.05),
        ("total_tokens_per_second:-5%", "total_tokens_per_second", 0.05, 0.95),
    ],
)
def test_conditions(text, figure, worse_by, least_ratio):
    condition = parse_condition(text)
    assert (condition.figure, condition.worse_by) == (figure, pytest.approx(worse_by))
    assert condition.least_ratio == pytest.approx(least_ratio)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("decode", "no condition"),
        ("decode:-5", "no condition"),
        ("decode:five%", "no condition"),
        ("", "no condition"),
        ("decode:+5%", "gets worse by falling"),
        ("ttft:-10%", "gets worse by rising"),
        ("speed:-5%", "'speed' is not known"),
        ("decode:-0%", "more than 0 %"),
        ("decode:-100%", "less than 100 %"),
        ("decode:+400%", "less than 100 %"),  # and not: write decode:-400%
        ("解码:-5%", "no condition"),
    ],
)
def test_what_is_no_condition_is_refused_with_the_reason(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_condition(text)


def test_a_figure_has_one_limit():
    with pytest.raises(ConfigError, match="more than one limit for ttft_ms_median"):
        parse_conditions(["ttft:+5%", "p50_ttft:+10%"])


@pytest.mark.parametrize("name", ["decode", "prefill", "throughput", "ttft", "p99_ttft", "mean_itl"])
def test_short_names_lead_back(name):
    assert short_name(figure_of(name)) == name


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("serve", {}),
        ("serve", {"base_url": 5}),
        ("latency", {}),
        ("latency", {"engine": [1]}),
    ],
)
def test_settings_that_another_program_recorded_are_refused(kind, settings):
    with pytest.raises(ConfigError, match="settings"):
        open_sessions(kind, settings)
