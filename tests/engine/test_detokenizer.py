"""Streamed text is the whole text, cut at the first stop string, however it is cut into tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpx.engine.detokenizer import Detokenizer
from lpx.errors import InvalidRequestError


class Words:
    """A vocabulary of given byte strings; the ids in `special` are control tokens."""

    def __init__(self, tokens: Sequence[bytes], special: Sequence[int] = ()) -> None:
        self.tokens = list(tokens)
        self.special = set(special)

    def token_bytes(self, token_id: int, *, skip_special: bool = False) -> bytes:
        return b"" if skip_special and token_id in self.special else self.tokens[token_id]


def stream(detokenizer: Detokenizer, ids: Sequence[int], sizes: Sequence[int] = ()) -> list[str]:
    """Push the ids in chunks of the given sizes, then one by one, and finish; return every delta."""
    deltas, at = [], 0
    for size in [*sizes, *[1] * len(ids)]:
        deltas.append(detokenizer.push(ids[at : at + size]))
        at += size
    return [*deltas, detokenizer.finish()]


def cut(text: str, stops: Sequence[str], include: bool) -> tuple[str, str | None]:
    """What should come out: the match that ends first, the longest of those that end together."""
    matches = []
    for stop in stops:
        at = text.find(stop)
        if at >= 0:
            matches.append((at + len(stop), -len(stop), stop))
    if not matches:
        return text, None
    end, _, stop = min(matches)
    return text[: end if include else end - len(stop)], stop


SIZES = st.lists(st.integers(0, 5), max_size=12)
PIECES = st.lists(
    st.one_of(
        st.binary(max_size=4),
        st.text(max_size=3).map(str.encode),
        st.sampled_from([b"\xf0\x9f", b"\x98", b"\xb8", b"\xe4", b"\xb8\xad", b"\xff", b"\xed\xa0\x80", b"\xc0\xaf"]),
    ),
    max_size=24,
)


@given(pieces=PIECES, sizes=SIZES)
@settings(max_examples=400, deadline=None)
def test_joined_deltas_are_the_whole_text_for_any_bytes(pieces: list[bytes], sizes: list[int]) -> None:
    detokenizer = Detokenizer(Words(pieces))
    deltas = stream(detokenizer, range(len(pieces)), sizes)
    assert "".join(deltas) == b"".join(pieces).decode("utf-8", "replace")
    assert detokenizer.text == "".join(deltas)
    assert detokenizer.stopped is None
    assert detokenizer.consumed == len(pieces)


@given(
    text=st.text(st.sampled_from("abcé中"), max_size=40),
    cuts=st.lists(st.integers(0, 80), max_size=20),
    stops=st.lists(st.text(st.sampled_from("abcé中"), min_size=1, max_size=5), max_size=4),
    sizes=SIZES,
    include=st.booleans(),
)
@settings(max_examples=600, deadline=None)
def test_stop_strings_never_leak_and_do_not_depend_on_tokens(
    text: str, cuts: list[int], stops: list[str], sizes: list[int], include: bool
) -> None:
    data = text.encode()
    edges = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges)]
    detokenizer = Detokenizer(Words(pieces), stop=stops, include_stop=include)
    wanted, stop = cut(text, stops, include)
    so_far = ""
    for delta in stream(detokenizer, range(len(pieces)), sizes):
        so_far += delta
        assert wanted.startswith(so_far)  # nothing ever has to be taken back
    assert so_far == wanted == detokenizer.text
    assert detokenizer.stopped == stop


def test_a_character_over_several_tokens_comes_whole() -> None:
    detokenizer = Detokenizer(Words([b"a", b"\xf0\x9f\x98", b"\xb8", b"b"]))
    assert stream(detokenizer, range(4)) == ["a", "", "😸", "b", ""]


def test_an_unfinished_character_is_one_replacement_at_the_end() -> None:
    detokenizer = Detokenizer(Words([b"a", b"\xf0\x9f\x98"]))
    assert stream(detokenizer, range(2)) == ["a", "", "\ufffd"]
    assert detokenizer.finish() == ""


def test_ascii_streams_at_once() -> None:
    detokenizer = Detokenizer(Words([b"Hello", b",", b" world"]))
    assert stream(detokenizer, range(3)) == ["Hello", ",", " world", ""]


def test_bytes_that_continue_the_prompts_last_character_bring_no_prompt_text() -> None:
    # The prompt ended with the first two of three bytes; the third is generated.
    detokenizer = Detokenizer(Words([b"\xad", b" next"]))
    assert stream(detokenizer, range(2)) == ["\ufffd", " next", ""]


def test_a_stop_string_over_several_tokens_is_held_back() -> None:
    detokenizer = Detokenizer(Words([b"ABC", b"DEF", b"G", b"HI", b"J", b"KLM"]), stop=["DEFGHIJ"])
    assert stream(detokenizer, range(6)) == ["ABC", "", "", "", "", "", ""]
    assert (detokenizer.stopped, detokenizer.text, detokenizer.consumed) == ("DEFGHIJ", "ABC", 5)


def test_held_text_comes_when_the_stop_string_breaks_off_or_the_text_ends() -> None:
    words = Words([b"x beta", b" ga", b"rden beta ", b"gam"])
    assert stream(Detokenizer(words, stop=["beta gamma"]), range(4)) == ["x ", "", "beta garden ", "", "beta gam"]


def test_a_stop_string_inside_a_token_hides_what_follows() -> None:
    words = Words([b"one END two", b"three"])
    assert stream(Detokenizer(words, stop=["END"]), range(2)) == ["one ", "", ""]
    assert stream(Detokenizer(words, stop=["END"], include_stop=True), range(2)) == ["one END", "", ""]


def test_the_match_that_ends_first_wins_and_then_the_longest() -> None:
    def stopped_by(text: str, *stops: str) -> tuple[str | None, str]:
        detokenizer = Detokenizer(Words([text.encode()]), stop=stops)
        return detokenizer.stopped, "".join(stream(detokenizer, [0])) + f"|{detokenizer.stopped}"

    assert stopped_by("alpha beta gamma", "gamma", "beta")[1] == "alpha |beta"
    assert stopped_by("xabcd", "abcd", "bc")[1] == "xa|bc"
    assert stopped_by("xabc", "bc", "abc")[1] == "x|abc"


def test_a_stop_string_split_inside_a_character() -> None:
    data = "好的再见吧".encode()
    words = Words([data[i : i + 1] for i in range(len(data))])
    detokenizer = Detokenizer(words, stop=["再见"])
    assert "".join(stream(detokenizer, range(len(data)))) == "好的"
    assert detokenizer.consumed == 12


def test_text_before_min_tokens_takes_no_part_in_stop_strings() -> None:
    words = Words([b"a", b"b", b"c", b"ab"])
    detokenizer = Detokenizer(words, stop=["ab", "bc"])
    assert detokenizer.push([0], check_stop=False) == "a"
    assert detokenizer.push([1], check_stop=False) == "b"
    assert detokenizer.push([2]) == "c"
    assert detokenizer.push([3]) == ""
    assert (detokenizer.stopped, detokenizer.text) == ("ab", "abc")

    detokenizer = Detokenizer(words, stop=["ab", "bc"])
    assert detokenizer.push([0]) == ""
    assert detokenizer.push([1], check_stop=False) == "ab"
    assert detokenizer.push([2]) == "c"


def test_special_tokens_are_skipped_or_spelled() -> None:
    words = Words([b"hi", b"<|im_end|>", b"\xe4", b"\xb8\xad"], special=[1])
    assert Detokenizer(words).push([0, 1]) == "hi"
    assert Detokenizer(words, skip_special=False).push([0, 1]) == "hi<|im_end|>"
    # A skipped token inside a character leaves no trace, as when everything is decoded at once.
    assert "".join(stream(Detokenizer(words), [2, 1, 3])) == "中"


def test_a_stop_string_may_be_a_special_tokens_spelling() -> None:
    words = Words([b"hi", b"<|im_end|>"], special=[1])
    detokenizer = Detokenizer(words, stop=["<|im_end|>"], skip_special=False)
    assert detokenizer.push([0, 1]) == "hi"
    assert detokenizer.stopped == "<|im_end|>"


def test_an_empty_stop_string_is_refused() -> None:
    for stop in ([""], ["x", ""]):
        with pytest.raises(InvalidRequestError, match="empty") as caught:
            Detokenizer(Words([]), stop=stop)
        assert caught.value.param == "stop"
    assert Detokenizer(Words([b"a"]), stop=[]).push([0]) == "a"


def test_a_megabyte_of_near_matches_is_decided_in_linear_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    from lpx.engine.detokenizer import _StopFinder

    steps = 0
    step = _StopFinder.step

    def counted(self: _StopFinder, state: int, character: str) -> int:
        nonlocal steps
        steps += 1
        return step(self, state, character)

    monkeypatch.setattr(_StopFinder, "step", counted)
    stop = "a" * 1000 + "b"
    words = Words([b"a" * 997])
    detokenizer = Detokenizer(words, stop=[stop])
    out = "".join(stream(detokenizer, [0] * 100))
    assert out == "a" * 99_700
    assert steps == 99_700
