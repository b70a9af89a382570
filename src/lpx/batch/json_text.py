"""JSON as batch files have it: strict when read, one line of UTF-8 when written."""

from __future__ import annotations

import json
import math
from typing import Any

from lpx.json_depth import crowd, is_nested_deeper

MAX_DEPTH = 200  # far from where the interpreter's own stack ends, which what is written around a value comes closer to
# Of a line or an answer: logprobs have the most. The parser holds the interpreter while it makes them.
_CROWDS = (
    (":", 800_000, "members in its objects"),
    ("{", 200_000, "objects"),
    ("[", 200_000, "lists"),
    (",", 4_000_000, "items in its lists"),
)
# Legal in JSON text, but line ends to readers that split on all of Unicode's.
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def read_json(data: bytes) -> Any:
    """Strict JSON: UTF-8, no key twice, no NaN, no number beyond a double, at most `MAX_DEPTH` levels, bounded
    in its parts.

    Raises `ValueError` with the reason.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise ValueError(f"not UTF-8 (byte {exc.start + 1}); save the file as UTF-8") from None
    if (crowded := crowd(text, _CROWDS)) is not None:
        raise ValueError(f"JSON with {crowded}")
    if is_nested_deeper(text, MAX_DEPTH):
        raise ValueError(f"JSON that is nested deeper than {MAX_DEPTH} levels")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as exc:
        raise ValueError(f"not valid JSON: {exc.msg} at column {exc.colno}") from None
    except ValueError as exc:
        if "integer string conversion" in str(exc):  # the interpreter's own words for thousands of digits
            raise ValueError("JSON with a number that is too long") from None
        raise


def json_line(value: Any) -> bytes:
    """`value` as one line without its end; readable where it can be, escaped where a lone surrogate is in it."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.translate(_LINE_ENDS).encode("utf-8") if not text.isascii() else text.encode("ascii")
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("JSON with a key that stands twice in one object")
    return result


def _no_constant(name: str) -> float:
    raise ValueError(f"not valid JSON: {name} is no JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("JSON with a number beyond the range of a double")
    return value
