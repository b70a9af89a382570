"""Figures as people read them."""

from __future__ import annotations

import math

import pytest

from lpx.bench.headline import figure_text, first_token_ms, headline, shape
from tests.bench.ledger.example_runs import a_measurement


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("decode_tokens_per_second", 123.456, "123.5 tokens/s"),
        ("read_bytes_per_second", 28.28e9, "28.28 GB/s"),
        ("weight_bytes_per_token", 96.6e6, "96.6 MB"),
        ("kv_bytes", 3 << 20, "3 MiB"),
        ("int8_multiply_adds_per_second", 297.4e9, "297.4 G multiply-adds/s"),
        ("limit_fraction", 0.254, "25.4 %"),
        ("ttft_ms_p99", 12345.6, "12,346 ms"),
        ("itl_ms", 1.5, "1.5 ms"),
        ("itl_ms_p99.9", 1.5, "1.5 ms"),
        ("decode_tokens_per_second_high", 1.5, "1.5 tokens/s"),
        ("load_seconds", 2.0, "2 s"),
        ("perplexity", 12.3456, "12.35"),
        ("items_per_request", 3.0, "3"),
        ("ttft_ms_median", math.nan, "- ms"),
    ],
)
def test_units_follow_from_names(name, value, text):
    assert figure_text(name, value) == text


def test_several_values_share_their_unit():
    assert figure_text("ttft_ms", 1, 2.5, 10) == "1 / 2.5 / 10 ms"


def test_the_headline_is_the_speed_or_what_comes_first():
    assert str(headline(a_measurement())) == "100.0 tokens/s"
    assert str(headline(a_measurement(figures={"x": 2.0, "output_tokens_per_second": 3.0}))) == "3.0 tokens/s"
    assert str(headline(a_measurement(figures={"mean_kl": 0.01234}))) == "0.01234 mean_kl"
    assert headline(a_measurement(figures={})) is None
    assert first_token_ms(a_measurement().figures) == "12.5"
    assert first_token_ms({}) is None


def test_shapes_leave_out_what_is_not_known():
    assert shape(a_measurement()) == "4×512→128"
    assert shape(a_measurement(batch_size=None)) == "512→128"
    assert shape(a_measurement(output_len=None)) == "4×512→?"
    assert shape(a_measurement(input_len=None, output_len=None)) == "4"
    assert shape(a_measurement(batch_size=None, input_len=None, output_len=None)) == ""
