"""Schemas that demand themselves for ever are told from those that merely name themselves."""

from __future__ import annotations

from typing import Any

import pytest

from lpx.engine.structured.finite import has_finite_values

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
REST = {"$defs": {"node": NODE}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}]},
        {"allOf": [{"type": "object"}, {"$ref": "#"}]},
        {"$ref": "#/$defs/node", **REST},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}, "required": ["a"], **REST},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"$ref": "#/$defs/c%20d"}, "c d": {"$ref": "#/$defs/a~1b"}}},
        {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#"}], "$defs": {"a": {"$ref": "#/$defs/a"}}},
    ],
)
def test_a_schema_without_an_end_is_found(schema: Any) -> None:
    assert not has_finite_values(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}]},
        {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 0},
        {"$ref": "#/$defs/missing"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#anchor"},
        {"properties": 3, "required": "a", "anyOf": {}, "allOf": None, "type": "object", "$ref": 7},
        {"$ref": "#/$defs/0", "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(900)} | {"900": {}}},
        {"$ref": "#/$defs/900", "$defs": {str(i): {"$ref": f"#/$defs/{i - 1}"} for i in range(1, 901)} | {"0": {}}},
    ],
)
def test_a_schema_that_can_end_is_left_alone(schema: Any) -> None:
    assert has_finite_values(schema)


def test_a_schema_that_would_take_long_is_left_to_the_compiler() -> None:
    nested: dict[str, Any] = {"$ref": "#"}
    for _ in range(50):
        nested = {"allOf": [*[{}] * 20, nested]}
    levels = [{"$ref": "#/properties/a" + "/allOf/20" * level} for level in range(50)]
    schema = {"allOf": [{"$ref": "#/properties/a"}], "properties": {"a": nested, "b": {"anyOf": levels}}}
    assert has_finite_values(schema)  # which it has not
