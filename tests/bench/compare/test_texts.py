"""The first place where two texts differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.bench.compare.texts import agreement, first_difference


@pytest.mark.parametrize(
    ("first", "other", "at", "shown"),
    [
        ("北京是首都", "北京是城市", 3, ("北京是", "首都", "城市")),
        ("the same", "the same and more", 8, ("the same", "", " and more")),
        ("", "x", 0, ("", "", "x")),
    ],
)
def test_first_difference(first, other, at, shown):
    found = first_difference(1, first, other)
    assert (found.at, found.before, found.first, found.other) == (at, *shown)


@given(st.text(), st.text())
def test_texts_agree_up_to_the_difference(first, other):
    found = first_difference(1, first, other)
    if first == other:
        assert found is None
    else:
        assert first[: found.at] == other[: found.at]
        assert first[found.at : found.at + 1] != other[found.at : found.at + 1]


def test_each_prompt_shows_one_difference():
    found = agreement([(1, "a", "a"), (2, "ab", "ac"), (1, "a", "b"), (2, "xy", "xz")])
    assert (found.same, found.answers) == (1, 4)
    assert [(each.prompt, each.at) for each in found.differences] == [(1, 0), (2, 1)]
