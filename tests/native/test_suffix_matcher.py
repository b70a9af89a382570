"""The suffix matcher against a search by brute force."""

from __future__ import annotations

import random

import pytest

from lpx import _native


def longest_repeat(text: list[int]) -> tuple[int, list[int]]:
    """Length of the longest end of `text` that stands earlier in it, and the positions after its occurrences."""
    for length in range(len(text) - 1, 0, -1):
        end = text[-length:]
        places = [at for at in range(length, len(text)) if text[at - length : at] == end]
        if places:
            return length, places
    return 0, []


def longest_in(other: list[int], text: list[int]) -> tuple[int, list[int]]:
    """The same for an end of `text` that stands anywhere in `other`."""
    for length in range(len(text), 0, -1):
        end = text[-length:]
        places = [at for at in range(length, len(other) + 1) if other[at - length : at] == end]
        if places:
            return length, places
    return 0, []


def propose(matcher: _native.SuffixMatcher, most: int) -> tuple[list[int], list[int]]:
    """(drafted ids, class of each), by chances of others that differ and that count for everything."""
    by_class = [(c + 1) / 100 for c in range(_native.MATCH_CLASSES)]
    ids, chances = matcher.propose(most, by_class, 1e9)
    assert len(chances) == len(ids)
    return ids, [round(100 * chance) - 1 for chance in chances]


def length_class(length: int) -> int:
    return next(i for i, most in enumerate((1, 2, 3, 4, 7, 15, 31, 10**9)) if length <= most)


@pytest.mark.parametrize("alphabet", [1, 2, 3, 6])
def test_drafts_are_what_followed_the_longest_match(alphabet: int) -> None:
    random.seed(alphabet)
    for _ in range(40):
        matcher, text = _native.SuffixMatcher(), list[int]()
        for _ in range(50):
            text.append(random.randrange(alphabet))
            matcher.extend(text[-1:], False)
            length, places = longest_repeat(text)
            ids, classes = propose(matcher, 6)
            continuations = []
            for place in places:
                run = list(text)
                for i in range(6):
                    run.append(run[place + i])  # beyond the end it repeats itself
                continuations.append(run[-6:])
            assert ids in (continuations or [[]])
            assert classes == [length_class(length + i) for i in range(len(ids))]


def test_an_occurrence_noted_lately_is_preferred() -> None:
    matcher = _native.SuffixMatcher()
    matcher.extend([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], False)
    assert propose(matcher, 1)[0] == [4]


def test_every_token_is_judged_by_its_prediction() -> None:
    random.seed(5)
    text: list[int] = []
    matcher = _native.SuffixMatcher()
    judged, right = [0.0] * _native.MATCH_CLASSES, [0.0] * _native.MATCH_CLASSES
    for _ in range(400):
        token_id = random.randrange(3) if random.random() < 0.3 or len(text) < 8 else text[-8]
        ids, classes = propose(matcher, 1)
        if ids:
            judged[classes[0]] = judged[classes[0]] * 15 / 16 + 1
            right[classes[0]] = right[classes[0]] * 15 / 16 + (ids[0] == token_id)
        matcher.extend([token_id], True)
        text.append(token_id)
    assert matcher.judged == pytest.approx(judged)
    assert matcher.right == pytest.approx(right)
    assert any(0 < r < j for j, r in zip(judged, right, strict=True))


def test_a_prompt_is_not_judged() -> None:
    matcher = _native.SuffixMatcher()
    matcher.extend([1, 2] * 20, False)
    assert not any(matcher.judged)


def test_shared_texts_are_searched_and_no_match_goes_beyond_one() -> None:
    random.seed(7)
    for _ in range(30):
        shared = _native.SharedTexts(most_tokens=10_000, most_texts=100)
        texts = [[random.randrange(4) for _ in range(random.randrange(1, 12))] for _ in range(5)]
        matcher, text = _native.SuffixMatcher(shared), list[int]()
        for step in range(40):
            if step % 8 == 0:
                shared.add(texts[step // 8])
            text.append(random.randrange(4) if step else 100)  # its own start is nowhere else
            matcher.extend(text[-1:], False)
            own, _ = longest_repeat(text)
            # A match may begin before the text was added: it is found from the next token on.
            found = [longest_in(other, text) for other in texts[: step // 8 + 1]]
            best = max(length for length, _ in found)
            ids, classes = propose(matcher, 3)
            if classes and classes[0] >= _native.MATCH_CLASSES // 2:
                assert best > own
                candidates = [
                    other[place : place + 3]
                    for other, (_, places) in zip(texts, found, strict=False)
                    for place in places
                    if other[place - 1] == text[-1]
                ] + [
                    other[at + 1 : at + 4]
                    for other in texts[: step // 8 + 1]
                    for at, token_id in enumerate(other)
                    if token_id == text[-1]
                ]
                assert ids in candidates


def test_a_shared_text_is_continued() -> None:
    shared = _native.SharedTexts(most_tokens=1000, most_texts=10)
    shared.add([5, 6, 7, 8])
    shared.add([9, 9, 9])
    matcher = _native.SuffixMatcher(shared)
    matcher.extend([1, 5, 6], False)
    ids, classes = propose(matcher, 8)
    assert ids == [7, 8]
    assert [c - _native.MATCH_CLASSES // 2 for c in classes] == [1, 2]


def test_shared_texts_are_bounded_and_keep_the_latest() -> None:
    shared = _native.SharedTexts(most_tokens=100, most_texts=1000)
    matcher = _native.SuffixMatcher(shared)
    for i in range(50):
        shared.add(list(range(10 * i, 10 * i + 10)))
        assert shared.tokens <= 100
        matcher.extend([10 * i + 3, 10 * i + 4], True)  # places in texts that are gone are forgotten
        assert propose(matcher, 2)[0] == [10 * i + 5, 10 * i + 6]
    assert shared.texts >= 4
    shared.add(list(range(1000, 1500)))
    assert shared.tokens <= 100


def test_the_number_of_shared_texts_is_bounded() -> None:
    shared = _native.SharedTexts(most_tokens=10_000, most_texts=4)
    for i in range(20):
        shared.add([i, i + 1, i + 2])
        assert shared.texts <= 4
    matcher = _native.SuffixMatcher(shared)
    matcher.extend([19, 20], False)
    assert propose(matcher, 5)[0] == [21]


def test_chances_are_those_of_the_text_and_of_others() -> None:
    matcher = _native.SuffixMatcher()
    matcher.extend([1, 2, 3, 4], False)
    matcher.extend([1, 2, 9, 1, 2], True)  # after 1, 2 came 3 once, and 9 now: a match of two that was wrong
    judged, right = matcher.judged, matcher.right
    assert judged[1] > 0
    common = [0.5] * _native.MATCH_CLASSES
    ids, chances = matcher.propose(3, common, 4.0)
    assert ids == [9, 1, 2]
    expected = [(right[c] + 4.0 * common[c]) / (judged[c] + 4.0) for c in map(length_class, (2, 3, 4))]
    assert chances == pytest.approx(expected)


def test_drafts_end_where_they_are_bound_to() -> None:
    matcher = _native.SuffixMatcher()
    matcher.extend([1, 2, 3, 4, 5, 6, 1], False)
    common = [0.5, 0.6, 0.7, 0.2, *[0.9] * (_native.MATCH_CLASSES - 4)]
    assert matcher.propose(5, common, 5.0) == ([2, 3, 4, 5, 6], pytest.approx([0.5, 0.6, 0.7, 0.2, 0.9]))
    assert matcher.propose(5, common, 5.0, least_chance=0.3)[0] == [2, 3, 4]
    assert matcher.propose(5, common, 5.0, least_worth=0.25)[0] == [2, 3]
    assert matcher.propose(5, common, 5.0, least_chance=0.55)[0] == []


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="not negative"):
        _native.SuffixMatcher().extend([3, -1], False)
    with pytest.raises(ValueError, match="room"):
        _native.SharedTexts(most_tokens=1, most_texts=1)
    with pytest.raises(ValueError, match="each class"):
        _native.SuffixMatcher().propose(1, [0.5], 5.0)
