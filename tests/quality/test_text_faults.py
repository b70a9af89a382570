"""Faults of an answer are found where they are, and sound answers have none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpx.quality import bundled_texts
from lpx.quality.answers import Answer
from lpx.quality.text_faults import find_faults, find_garbled, find_repetition


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("good \ufffd bad", "character 5: U+FFFD"),
        ("bell \x07", "character 5: U+0007"),
        ("\x1b[31m", "character 0: U+001B"),
        ("private \ue000", "U+E000"),
        ("cafÃ© au lait", "character 3: 'Ã©'"),
        ("donâ€™t", "character 3: 'â€™'"),
        ("ä½ å¥½", "another encoding"),
        ("锟斤拷", "wrong encoding"),
        ("Hello привет שלום สวัสดี", "Cyrillic, Hebrew, Thai mixed"),
    ],
)
def test_garbled_text_is_found(text: str, said: str) -> None:
    assert said in str(find_garbled(text))


@pytest.mark.parametrize(
    "text",
    [
        "naïve café, 3 × 4 = 12 °C, “quoted” – dashes… €5",
        "你好，世界！\n\t这是一个测试。",
        "Ünïcödé Ä Ö Ü ß, façade, Œuvre, São Paulo, Ångström",
        "数据 😀 and emoji 👩‍💻",
        "π ≈ 3.14, Σ x² and Ω",
        "中文、English とにほんご 한국어",
        *(text.content for text in bundled_texts()),
    ],
)
def test_sound_text_is_not(text: str) -> None:
    assert find_garbled(text) is None


def test_what_the_prompt_has_is_not_held_against_the_answer() -> None:
    assert find_garbled("You wrote Ã©.", "What is Ã©?") is None
    assert find_garbled("You wrote \ufffd.", "What is \ufffd?") is None
    assert find_garbled("шалом שלום ครับ", "привет? שלום? สวัสดี") is None


def test_the_half_character_of_a_cut_answer_is_no_fault() -> None:
    assert find_garbled("数\ufffd", cut=True) is None
    assert find_garbled("数\ufffd据", cut=True) is not None
    assert find_garbled("数\ufffd") is not None


def test_loops_are_found_with_their_place_and_period() -> None:
    start = list(range(50))
    assert find_repetition(start) is None
    assert find_repetition(start + [7, 8, 9] * 10) == "from token 50: 3 tokens, 10 times"
    assert find_repetition([5] * 24) == "from token 0: 1 token, 24 times"
    assert find_repetition([5] * 23) is None
    assert find_repetition(start + list(range(100, 140)) * 3) is None  # three times is no loop yet


def test_text_that_says_little_new_is_found_without_a_period() -> None:
    ids = [token for number in range(40) for token in (*range(12), 1000 + number)]
    assert "of all runs" in str(find_repetition(ids))


def test_empty_and_cut_answers() -> None:
    def kinds(text: str, ids: list[int], end: str) -> list[str]:
        return [fault.kind for fault in find_faults(Answer(text, tuple(ids), end), "prompt")]

    assert kinds(" \n", [1, 2], "stop") == ["empty"]
    assert kinds("one two", [1, 2], "length") == ["cut"]
    assert kinds("one two", [1, 2], "stop") == []
    assert kinds("ha " * 40, [5] * 40, "length") == ["repetition"]  # that it was cut follows from the loop
    assert find_faults(Answer("", (), "refused", "no"), "prompt") == []


@settings(max_examples=60)
@given(st.text(max_size=60), st.text(max_size=10), st.lists(st.integers(0, 3), max_size=90))
def test_no_input_breaks_the_checks(text: str, prompt: str, ids: list[int]) -> None:
    for fault in find_faults(Answer(text, tuple(ids), "length"), prompt):
        assert fault.place
        assert fault.advice
