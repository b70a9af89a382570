"""Simple checks of answers, as the review set names them: each gives None, or what is wrong.

A check is an object with one key, its name; `all` takes several. They are meant to be passed by any answer that a
person would accept, and to be explainable in one line.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from lpx.quality.answers import Answer
from lpx.quality.text_faults import find_faults

Check = Mapping[str, Any]

_MOST_LEVELS = 8  # of `all` in `all`
_MOST_COUNT = 1_000_000

_FENCE = re.compile(r"```[\w+-]*\n(.*?)(?:```|\Z)", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
_ITEM = re.compile(r"^\s*(?:[-*•]|\d+[.)、])\s*\S")


def validate_check(check: Any, levels: int = _MOST_LEVELS) -> None:
    """Raise ValueError unless `run_check` can use it: names, kinds of values, regular expressions."""
    if not isinstance(check, dict) or len(check) != 1:
        raise ValueError('a check is an object with one key, such as {"contains": ["yes"]}')
    ((name, wanted),) = check.items()
    if name == "all":
        if levels == 0 or not isinstance(wanted, list) or not wanted:
            raise ValueError(f"the check all takes a list of checks, at most {_MOST_LEVELS} of them in each other")
        for each in wanted:
            validate_check(each, levels - 1)
        return
    if name not in _VALUES:
        raise ValueError(f"there is no check {name!r}; there are all, {', '.join(sorted(_VALUES))}")
    said, fits = _VALUES[name]
    if not fits(wanted):
        raise ValueError(f"the check {name} takes {said}, not {str(wanted)[:60]!r}")
    if name == "matches":
        try:
            re.compile(wanted)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"the check matches has a broken regular expression: {error}") from None


def run_check(check: Check, answer: Answer, prompt: str) -> str | None:
    """What is wrong with `answer` by `check`, which `validate_check` knows to be one."""
    ((name, wanted),) = check.items()
    if name == "handled":
        return _handled(answer, prompt)
    if answer.refused is not None:
        return f"refused: {answer.refused}"
    if name == "all":
        return next((wrong for each in wanted if (wrong := run_check(each, answer, prompt)) is not None), None)
    return _CHECKS[name](answer.text.strip(), wanted)


def _handled(answer: Answer, prompt: str) -> str | None:
    """Refused with a reason, or answered with sound text: what unusual input must come to."""
    if answer.refused is not None:
        return None
    broken = [fault for fault in find_faults(answer, prompt) if fault.kind in ("empty", "garbled")]
    return f"{broken[0].kind}: {broken[0].place}" if broken else None


def _contains(text: str, wanted: list[str]) -> str | None:
    """Any of the words, case aside."""
    folded = text.casefold()
    return None if any(word.casefold() in folded for word in wanted) else f"none of {', '.join(wanted)} is in it"


def _lacks(text: str, unwanted: list[str]) -> str | None:
    folded = text.casefold()
    return next((f"{word!r} is in it" for word in unwanted if word.casefold() in folded), None)


def _number(text: str, wanted: float) -> str | None:
    """The number is among those of the answer."""
    numbers = [float(found.replace(",", "")) for found in _NUMBER.findall(text)]
    return None if any(abs(number - wanted) < 1e-9 for number in numbers) else f"{wanted:g} is not in it"


def _most_words(text: str, most: int) -> str | None:
    count = len(text.split())
    return None if 0 < count <= most else f"{count} words instead of at most {most}"


def _most_characters(text: str, most: int) -> str | None:
    return None if 0 < len(text) <= most else f"{len(text)} characters instead of at most {most}"


def _items(text: str, wanted: int) -> str | None:
    """So many lines that look like items of a list."""
    count = sum(_ITEM.match(line) is not None for line in text.splitlines())
    return None if count == wanted else f"{count} items instead of {wanted}"


def _lines(text: str, wanted: int) -> str | None:
    count = sum(bool(line.strip()) for line in text.splitlines())
    return None if count == wanted else f"{count} lines instead of {wanted}"


def _matches(text: str, pattern: str) -> str | None:
    return None if re.search(pattern, text) else f"nothing in it matches {pattern}"


def _upper(text: str, _: object) -> str | None:
    letters = [character for character in text if character.isalpha()]
    return None if letters and all(letter.isupper() for letter in letters) else "not all in capital letters"


def _json_keys(text: str, keys: list[str]) -> str | None:
    """A JSON object with exactly these keys, bare or in a code fence."""
    found = _FENCE.search(text)
    source = (found[1] if found else text).strip()
    start, end = source.find("{"), source.rfind("}")
    if start < 0 or end < start:
        return "no JSON object"
    try:
        value = json.loads(source[start : end + 1])
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    if not isinstance(value, dict) or sorted(value) != sorted(keys):
        return f"the keys are {sorted(value)} instead of {sorted(keys)}"
    return None


def _json_values(text: str, wanted: dict[str, Any]) -> str | None:
    found = _FENCE.search(text)
    source = (found[1] if found else text).strip()
    try:
        value = json.loads(source[source.find("{") : source.rfind("}") + 1])
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    return next((f"{key} is {value.get(key)!r}" for key in wanted if value.get(key) != wanted[key]), None)


def _python(text: str, name: str) -> str | None:
    """Python that parses and defines the function `name`, bare or in a code fence. It is not run."""
    found = _FENCE.search(text)
    try:
        tree = ast.parse(found[1] if found else text)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        return f"not Python: {error}"
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return None if name in names else f"no function {name}"


def _chinese(text: str, least: float) -> str | None:
    """At least this share of the letters are Chinese characters."""
    letters = [character for character in text if character.isalpha()]
    share = sum("\u4e00" <= letter <= "\u9fff" for letter in letters) / max(1, len(letters))
    return None if share >= least else f"{share:.0%} Chinese characters instead of {least:.0%} at least"


_CHECKS: dict[str, Callable[[str, Any], str | None]] = {
    "contains": _contains,
    "lacks": _lacks,
    "number": _number,
    "most_words": _most_words,
    "most_characters": _most_characters,
    "items": _items,
    "lines": _lines,
    "matches": _matches,
    "upper": _upper,
    "json_keys": _json_keys,
    "json_values": _json_values,
    "python": _python,
    "chinese": _chinese,
}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_COUNT


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)


# What each check takes, in words, and whether a value is that.
_VALUES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "handled": ("true", lambda value: value is True),
    "upper": ("true", lambda value: value is True),
    "contains": ("a list of words", _are_texts),
    "lacks": ("a list of words", _are_texts),
    "json_keys": ("a list of keys", _are_texts),
    "json_values": ("an object", lambda value: isinstance(value, dict)),
    "number": ("a number", _is_number),
    **dict.fromkeys(("most_words", "most_characters", "items", "lines"), ("a whole number", _is_count)),
    "matches": ("a regular expression", lambda value: isinstance(value, str)),
    "python": ("the name of a function", lambda value: isinstance(value, str) and value.isidentifier()),
    "chinese": ("a share from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1),
}
