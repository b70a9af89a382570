"""Windows are those of `llama-perplexity`: whole pieces, BOS in place of the first id, the second half scored."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpx.errors import InvalidRequestError
from lpx.quality import Text, bundled_texts, make_windows, read_texts, spread


class Numbers:
    """A tokenizer whose ids are 10, 11, 12 … for each character, behind BOS if it wants one."""

    bos_id = 1

    def __init__(self, add_bos: bool = False) -> None:
        self.add_bos = add_bos

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        return [1] * (self.add_bos and add_special) + list(range(10, 10 + len(text)))


def test_whole_pieces_are_scored_in_their_second_half_and_the_rest_is_not() -> None:
    windows = make_windows(Numbers(), [Text("a", "x" * 20)], 8)
    assert [window.token_ids for window in windows] == [
        tuple(range(10, 18)),
        tuple(range(18, 26)),
        tuple(range(26, 30)),
    ]
    assert [list(window.scored_rows) for window in windows] == [[4, 5, 6], [4, 5, 6], []]


def test_bos_comes_first_and_takes_the_place_of_the_first_id_of_later_pieces() -> None:
    windows = make_windows(Numbers(add_bos=True), [Text("a", "x" * 16)], 8)
    assert [window.token_ids for window in windows] == [
        (1, *range(10, 17)),
        (1, *range(18, 25)),
    ]  # id 17 gave way; what is left, id 25 alone, predicts nothing


def test_short_text_is_one_window_of_its_own() -> None:
    (window,) = make_windows(Numbers(), [Text("a", "x" * 6)], 512)
    assert list(window.scored_rows) == [3, 4]


@settings(max_examples=40)
@given(st.lists(st.integers(2, 70), min_size=1, max_size=4), st.integers(8, 20))
def test_every_id_is_in_a_window_once(lengths: list[int], size: int) -> None:
    windows = make_windows(Numbers(), [Text(str(n), "x" * length) for n, length in enumerate(lengths)], size)
    for number, length in enumerate(lengths):
        ids = [i for window in windows if window.text == str(number) for i in window.token_ids]
        assert ids == list(range(10, 10 + length))[: len(ids)]
        assert length - len(ids) <= 1  # a last id alone predicts nothing


def test_spread_takes_windows_from_everywhere() -> None:
    windows = make_windows(Numbers(), [Text("a", "x" * 80)], 8)
    assert [window.token_ids[0] for window in spread(windows, 3)] == [10, 34, 58]
    assert spread(windows, None) == windows == spread(windows, 99)
    with pytest.raises(InvalidRequestError, match="at least 1"):
        spread(windows, 0)


def test_windows_of_no_use_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="at least 8"):
        make_windows(Numbers(), [Text("a", "x" * 80)], 7)
    with pytest.raises(InvalidRequestError, match="a has 1 token"):
        make_windows(Numbers(), [Text("a", "x")])


def test_bundled_texts_hold_chinese_and_code() -> None:
    texts = {text.name: text.content for text in bundled_texts()}
    assert set(texts) == {"english", "chinese", "code"}
    assert "豆浆" in texts["chinese"]
    assert "def " in texts["code"]


def test_texts_of_users_are_read_as_they_are_and_named_when_they_cannot_be(tmp_path) -> None:
    good, empty, broken = tmp_path / "文.txt", tmp_path / "empty.txt", tmp_path / "gbk.txt"
    good.write_bytes("\ufeff第一行\r\n第二行\n".encode())
    empty.write_text(" \n")
    broken.write_bytes("中文".encode("gbk"))
    assert read_texts([good]) == [Text("文.txt", "第一行\r\n第二行")]
    for path, said in ((empty, "empty"), (broken, "UTF-8"), (tmp_path / "absent", "No such file")):
        with pytest.raises(InvalidRequestError, match=said) as caught:
            read_texts([path])
        assert str(path) in str(caught.value)
