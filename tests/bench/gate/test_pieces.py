"""Pieces survive the ledger, and know their phase."""

import pytest

from lpx.bench.gate.pieces import (
    DECODE,
    PREFILL,
    Piece,
    figures_of,
    pieces_of,
    samples_of,
    split_by_phase,
    spread_between_sessions,
)
from lpx.bench.weather import Look
from lpx.errors import ConfigError


def some_pieces(weather=True):
    look = Look(30e9, 300e9) if weather else None
    return [
        Piece(PREFILL, 0, {"prefill_tokens_per_second": 900.0, "ttft_ms_median": 140.0}, look, 0.01),
        Piece(DECODE, 0, {"decode_tokens_per_second": 300.0, "tpot_ms_median": 3.3}, look, 0.01),
        Piece(DECODE, 0, {"decode_tokens_per_second": 310.0, "tpot_ms_median": 3.2}, look, 0.01),
        Piece(DECODE, 1, {"decode_tokens_per_second": 280.0, "tpot_ms_median": 3.6}, look, 0.2),
    ]


@pytest.mark.parametrize("weather", [True, False])
def test_pieces_come_back_from_samples(weather):
    assert pieces_of(samples_of(some_pieces(weather))) == some_pieces(weather)


def test_samples_of_other_measurements_are_no_pieces():
    assert pieces_of({"decode_tokens_per_second": (1.0, 2.0), "ttft_ms": (3.0,)}) == []


def test_cut_samples_are_refused():
    samples = dict(samples_of(some_pieces()))
    samples["tpot_ms_median"] = samples["tpot_ms_median"][:-1]
    with pytest.raises(ConfigError, match="more of some figures"):
        pieces_of(samples)


def test_figures_of_a_load_go_to_their_phases():
    figures = {"ttft_ms_p99": 80.0, "tpot_ms_median": 5.0, "output_tokens_per_second": 120.0, "failed": 0.0}
    found = {piece.phase: set(piece.figures) for piece in split_by_phase(3, figures, None, 0.0)}
    assert found == {PREFILL: {"ttft_ms_p99"}, DECODE: {"tpot_ms_median", "output_tokens_per_second"}}


def test_performance_of_a_time_is_its_inverse():
    piece = some_pieces()[0]
    assert piece.performance("prefill_tokens_per_second") == 900
    assert piece.performance("ttft_ms_median") == 1 / 140


def test_medians_and_spread():
    assert figures_of(some_pieces())["decode_tokens_per_second"] == 300
    assert spread_between_sessions(some_pieces(), "decode_tokens_per_second") == pytest.approx(0.06, abs=0.01)
    assert spread_between_sessions(some_pieces(), "ttft_ms_median") is None
