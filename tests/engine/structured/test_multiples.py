"""Divisors in schemas are small enough to be followed."""

from __future__ import annotations

import json

import pytest

from lpx.engine.structured.multiples import problem_with_multiples
from lpx.engine.structured.params import StructuredOutputsParams


def problem(**form: object) -> str | None:
    return problem_with_multiples(StructuredOutputsParams(**form))  # type: ignore[arg-type]


@pytest.mark.parametrize("divisor", [1, 5, 0.01, 2.5, 360, 0.0001, 1000, 1.0])
def test_usual_divisors_are_taken(divisor: float) -> None:
    assert problem(json={"type": "object", "properties": {"a": {"type": "number", "multipleOf": divisor}}}) is None


@pytest.mark.parametrize("divisor", [999983, 10**8, 1e300, 0.999983, 1e-300, 10**400])
def test_divisors_that_take_an_automaton_of_their_size_are_refused(divisor: float) -> None:
    schema = {"anyOf": [{"type": "null"}, {"items": {"type": "number", "multipleOf": divisor}}]}
    assert "multipleOf" in (problem(json=schema) or "")
    assert "multipleOf" in (problem(grammar=f"start: a\na: %json {json.dumps(schema)}") or "")
    escaped = json.dumps(schema).replace("multipleOf", "multiple\\u004ff")
    assert "multipleOf" in (problem(grammar=f"start: %json{escaped}") or "")


def test_divisors_count_together() -> None:
    primes = [97, 89, 83]
    assert problem(json={"allOf": [{"type": "integer", "multipleOf": prime} for prime in primes[:2]]}) is None
    assert problem(json={"allOf": [{"type": "integer", "multipleOf": prime} for prime in primes]}) is not None


def test_what_is_no_schema_is_left_to_the_library() -> None:
    assert problem(regex='"multipleOf": 999983') is None
    assert problem(grammar='start: "%json"') is None
    assert problem(json={"multipleOf": "many", "const": {"multipleOf": True}}) is None
