from __future__ import annotations

import pytest

from lpx.engine.drafting.odds import CommonOdds, Judgements


def test_a_sequence_starts_from_what_others_have_shown_and_finds_its_own_odds() -> None:
    common = CommonOdds([0.5, 0.9])
    own = Judgements(2)
    assert common.chance(1, own.judged, own.right) == pytest.approx(0.9)
    for _ in range(60):
        own.add(1, False)
    assert common.chance(1, own.judged, own.right) < 0.3
    assert common.chance(0, own.judged, own.right) == pytest.approx(0.5)


def test_old_judgements_fade() -> None:
    own = Judgements(1)
    for _ in range(100):
        own.add(0, False)
    for _ in range(40):
        own.add(0, True)
    assert own.right[0] / own.judged[0] > 0.9
    assert own.judged[0] <= 16


def test_sequences_that_end_shape_the_common_odds_within_bounds() -> None:
    common = CommonOdds([0.9])
    for _ in range(1000):
        common.add([16.0], [4.0])
    assert common.chance(0, [0.0], [0.0]) == pytest.approx(0.25, abs=0.02)
    for _ in range(30):
        common.add([16.0], [16.0])
    assert common.chance(0, [0.0], [0.0]) > 0.8
