"""How deep JSON is nested, told before a parser meets it: parsers and writers call themselves for each level."""

from __future__ import annotations

import re

_NOT_BRACKET = re.compile(r"[^\[\]{}]+")


def outside_strings(text: str) -> str:
    """The text without what stands in its strings."""
    unescaped = text.replace("\\\\", "").replace('\\"', "")  # the quotes that are left open and close strings
    return "".join(unescaped.split('"')[::2])


def is_nested_deeper(text: str, most: int) -> bool:
    """Whether there are more than `most` levels, or brackets that do not match; in linear time and constant stack."""
    if text.count("[") + text.count("{") <= most:
        return False
    brackets = _NOT_BRACKET.sub("", outside_strings(text))
    for _ in range(most):  # each round removes the innermost level (two of them where lists and objects alternate)
        brackets = brackets.replace("[]", "").replace("{}", "")
        if not brackets:
            return False
    return True
