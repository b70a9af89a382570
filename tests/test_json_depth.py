"""What is told of JSON before a parser meets it."""

from __future__ import annotations

import pytest

from lpx.batch.json_text import read_json
from lpx.json_depth import crowd, is_nested_deeper


@pytest.mark.parametrize(
    ("text", "deeper"),
    [
        ("[" * 3 + "]" * 3, False),
        ("[" * 4 + "]" * 4, True),
        ('{"a":[{"b":[]}]}', True),
        ("[[],[],[],[],{}]", False),
        ('"[[[[[[[["', False),
        ('["\\"[[[[[["]', False),
        ("[" * 50_000_000, True),  # in no more than linear time
        ("[]" * 5_000_000, False),
    ],
    ids=range(8),
)
def test_depth(text: str, deeper: bool) -> None:
    assert is_nested_deeper(text, 3) is deeper


def test_crowds_in_texts_are_none() -> None:
    bounds = ((",", 2, "items"),)
    assert crowd('[1,2,3,"]"]', bounds) == "more than 2 items"
    assert crowd('[1,2,",,,,"]', bounds) is None


def test_batches_refuse_crowds_before_they_are_parsed() -> None:
    with pytest.raises(ValueError, match="more than 200000 lists"):
        read_json(b"[" + b"[]," * 200_000 + b"[]]")
