"""A bound on `multipleOf` in schemas: a divisor of N takes an automaton of N states, which no other limit counts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from math import lcm
from typing import Any

from lpx.engine.structured.params import StructuredOutputsParams

MOST_MULTIPLES = 10_000  # of the least common multiple of all divisors of a schema, in units of the finest
_EMBEDDED = re.compile(r"%(?:json|regex)\b")  # schemas and options inside a grammar in Lark's form
_DECODER = json.JSONDecoder()


def problem_with_multiples(params: StructuredOutputsParams) -> str | None:
    """What is wrong with the divisors of a schema, or of the schemas inside a grammar; None if they are small enough.

    Texts that are no JSON are left to the library, which refuses them.
    """
    for schema in _schemas(params):
        divisors: list[Decimal] = []
        for value in _values(schema):
            try:
                divisor = Decimal(str(value))
            except InvalidOperation:
                continue
            if not divisor.is_finite() or divisor <= 0:
                continue
            divisors.append(divisor)
        if divisors and _states(divisors) > MOST_MULTIPLES:
            return f"multipleOf takes too much work to follow here; divisors up to {MOST_MULTIPLES} are supported"
    return None


def _states(divisors: list[Decimal]) -> int:
    if any(abs(divisor.adjusted()) > 9 or len(divisor.as_tuple().digits) > 9 for divisor in divisors):
        return MOST_MULTIPLES + 1
    finest = min(0, *(int(divisor.normalize().as_tuple().exponent) for divisor in divisors))
    common = 1
    for divisor in divisors:
        common = lcm(common, int(divisor.scaleb(-finest)))
        if common > MOST_MULTIPLES * 10**9:
            break
    return common


def _schemas(params: StructuredOutputsParams) -> Iterator[Any]:
    if params.kind == "json":
        try:
            yield json.loads(params.text)
        except (ValueError, RecursionError):
            return
    elif params.kind != "regex":
        for match in _EMBEDDED.finditer(params.text):
            start = params.text.find("{", match.end())
            if start < 0:
                return
            try:
                yield _DECODER.raw_decode(params.text, start)[0]
            except (ValueError, RecursionError):
                continue


def _values(schema: Any) -> Iterator[Any]:
    """Of every `multipleOf`, wherever it stands."""
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            for key, inner in value.items():
                if key == "multipleOf" and isinstance(inner, int | float) and not isinstance(inner, bool):
                    yield inner
                else:
                    pending.append(inner)
