"""Checks of the review accept what a person would, and say what is wrong with the rest."""

from __future__ import annotations

import json

import pytest

from lpx.errors import InvalidRequestError
from lpx.quality.answer_checks import _CHECKS, _VALUES, run_check, validate_check
from lpx.quality.answers import Answer
from lpx.quality.intervals import share_interval
from lpx.quality.review import bundled_review, read_review


def wrong(check, text):
    return run_check(check, Answer(text, (1,), "stop"), "prompt")


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        ({"contains": ["Paris"]}, "It is PARIS.", "It is Rome."),
        ({"lacks": ["sorry"]}, "Fine.", "I'm Sorry."),
        ({"number": 1200}, "That makes 1,200 eggs.", "That makes 1 200 eggs, or 12000."),
        ({"number": -3.5}, "-3.5 degrees", "3.5"),
        ({"most_words": 2}, "Deep blue.", "It is deep blue."),
        ({"items": 3}, "- a\n- b\n* c", "- a\n- b"),
        ({"items": 2}, "1. 苹果\n2、香蕉", "苹果\n香蕉"),
        ({"matches": "!\\W*$"}, "Cats!", "Cats."),
        ({"upper": True}, "HELLO, 42!", "HELLO you"),
        ({"json_keys": ["a", "b"]}, '```json\n{"a": 1, "b": 2}\n```', '{"a": 1}'),
        ({"json_keys": ["a"]}, 'Sure: {"a": [1, {"b": 2}]}', '{"a": 1'),
        ({"json_values": {"ok": True}}, '{"ok": true}', '{"ok": "true"}'),
        ({"python": "add"}, "```python\ndef add(a, b):\n    return a + b\n```", "```python\ndef add(a b)\n```"),
        ({"python": "add"}, "def add(a, b): return a + b", "def sub(a, b): return a - b"),
        ({"chinese": 0.8}, "春天来了。", "Spring 来了"),
        ({"all": [{"contains": ["a"]}, {"most_words": 1}]}, "a", "a b"),
    ],
)
def test_checks(check, good, bad) -> None:
    assert wrong(check, good) is None
    assert wrong(check, bad)


def test_odd_input_may_be_refused_or_answered_but_not_garbled() -> None:
    handled = {"handled": True}
    assert run_check(handled, Answer("", (), "refused", "roles must alternate"), "") is None
    assert wrong(handled, "Yes?") is None
    assert "empty" in wrong(handled, "")
    assert "garbled" in wrong(handled, "\ufffd\ufffd")
    assert "roles must alternate" in run_check({"most_words": 3}, Answer("", (), "refused", "roles must alternate"), "")


def test_bundled_set_covers_many_kinds_and_names_only_checks_that_exist() -> None:
    items = bundled_review()
    kinds = {item.kind for item in items}
    assert kinds >= {"format", "arithmetic", "json", "long", "multi-turn", "chinese", "code", "odd"}
    assert len({item.id for item in items}) == len(items)
    for item in items:
        validate_check(item.check)
    long = next(item for item in items if item.kind == "long")
    assert "4821" in long.messages[0]["content"]
    assert len(long.messages[0]["content"]) > 2000


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2"),
        ("[]", "fields"),
        (json.dumps({"id": "a"}), "fields"),
        (json.dumps({"id": "a", "kind": "k", "messages": [], "max_tokens": 1, "check": {}}), "messages"),
        (json.dumps({"id": "a", "kind": "k", "messages": [1], "max_tokens": 1, "check": {}}), "line 2"),
    ],
)
def test_broken_review_sets_are_named_with_their_line(tmp_path, line: str, said: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text("\n" + line + "\n")
    with pytest.raises(InvalidRequestError, match=said) as caught:
        read_review(path)
    assert str(path) in str(caught.value)


def an_item(**changes) -> str:
    item = {"id": "a", "kind": "k", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    return json.dumps({**item, "check": {"contains": ["hi"]}, **changes}, ensure_ascii=False)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[" * 5000, "too deep"),
        ("9" * 5000, "line 1"),
        (an_item(id=5), "id and kind"),
        (an_item(max_tokens=float("inf")), "max_tokens"),
        (an_item(max_tokens=10**12), "max_tokens"),
        (an_item(max_tokens=True), "max_tokens"),
        (an_item(max_tokens="4"), "max_tokens"),
        (an_item(messages=[{"role": "user"}]), "role and content"),
        (an_item(messages=[{"role": "user", "content": 5}]), "content of a message"),
        (
            an_item(messages=[{"role": "user", "content": [{"text": "abc", "repeat": 10**12}]}]),
            "3000000000000 characters",
        ),
        (an_item(messages=[{"role": "user", "content": [{"text": "abc", "repeat": "2"}]}]), "content of a message"),
        (an_item(check=[]), "one key"),
        (an_item(check={"contains": ["a"], "upper": True}), "one key"),
        (an_item(check={"nothing": 1}), "no check 'nothing'"),
        (an_item(check={"matches": "(["}), "broken regular expression"),
        (an_item(check={"all": [{"matches": "*"}]}), "broken regular expression"),
        (an_item(check={"contains": [5]}), "a list of words"),
        (an_item(check={"contains": "yes"}), "a list of words"),
        (an_item(check={"json_keys": 5}), "a list of keys"),
        (an_item(check={"json_values": []}), "an object"),
        (an_item(check={"number": float("nan")}), "a number"),
        (an_item(check={"items": 1.5}), "a whole number"),
        (an_item(check={"chinese": 80}), "a share"),
        (an_item(check={"all": []}), "a list of checks"),
        (an_item(check=json.loads('{"all": [' * 20 + '{"upper": true}' + "]}" * 20)), "a list of checks"),
    ],
)
def test_what_no_check_could_use_is_refused_before_anything_is_answered(tmp_path, line: str, said: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(InvalidRequestError, match=said):
        read_review(path)


def test_every_check_says_what_it_takes() -> None:
    assert {*_CHECKS, "handled"} == set(_VALUES)


def test_marks_of_files_and_lines_are_no_part_of_items(tmp_path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + an_item(id="a\u2028b\u0085c").encode() + b"\r\n" + an_item().encode())
    assert [item.id for item in read_review(path)] == ["a\u2028b\u0085c", "a"]


def test_json_of_an_answer_that_is_nested_too_deep_fails_the_check() -> None:
    deep = '{"a":' * 20_000 + "1" + "}" * 20_000
    assert "not JSON" in wrong({"json_keys": ["a"]}, deep)
    assert "not JSON" in wrong({"json_values": {"a": 1}}, deep)


def test_empty_review_sets_are_refused(tmp_path) -> None:
    (tmp_path / "set.jsonl").write_text("\n\n")
    with pytest.raises(InvalidRequestError, match="is empty"):
        read_review(tmp_path / "set.jsonl")


def test_intervals_of_shares_are_wilsons() -> None:
    # Worked by hand from the formula, z = 1.96: 8 of 10 gives 0.4902 to 0.9433.
    low, high = share_interval(8, 10)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert share_interval(0, 10)[0] == 0
    assert share_interval(10, 10)[1] == 1
    assert share_interval(0, 0) == (0, 1)
