"""Whether a value that fits a JSON schema can come to an end: a schema may demand itself inside itself for ever."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

_VISITS = 5  # of each part of a schema, on average: what needs more is left to the compiler
_SMALL = 1000


def has_finite_values(schema: Any) -> bool:
    """False only for a schema whose references (`$ref`) lead back to it on every way that a value may take.

    What is beyond it (other keywords, references elsewhere, many that hang on each other) counts as finite: the
    compiler looks at all of it. A least fixed point over the references, in time linear in the schema.
    """
    references, size = _references(schema)
    walk = _Walk(dict.fromkeys(references, False), _SMALL + _VISITS * size)
    try:
        changed = True
        while changed:
            changed = False
            for name in reversed(references):  # what is named last is often named by what comes before
                if not walk.ends[name] and walk.can_end(references[name]):
                    walk.ends[name] = changed = True
        return walk.can_end(schema)
    except _TooMuchError:
        return True


class _TooMuchError(Exception):
    pass


class _Walk:
    """What is known of the references, and how many parts may still be looked at."""

    def __init__(self, ends: dict[str, bool], visits: int) -> None:
        self.ends = ends
        self._visits = visits

    def can_end(self, schema: Any) -> bool:
        self._visits -= 1
        if not self._visits:
            raise _TooMuchError
        if not isinstance(schema, dict):
            return True
        reference = schema.get("$ref")
        if isinstance(reference, str) and not self.ends.get(reference, True):
            return False
        for keyword in ("anyOf", "oneOf"):
            options = _list(schema.get(keyword))
            if options and not any(map(self.can_end, options)):
                return False
        return all(map(self.can_end, _list(schema.get("allOf")))) and all(map(self.can_end, _demanded(schema)))


def _demanded(schema: dict[str, Any]) -> list[Any]:
    """The schemas of what an object or a list must hold."""
    kind = schema.get("type")
    if kind in ("object", ["object"]):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            required = _list(schema.get("required"))
            return [properties[name] for name in required if isinstance(name, str) and name in properties]
    elif kind in ("array", ["array"]):
        least = schema.get("minItems")
        if type(least) is int and least > 0:
            first = _list(schema.get("prefixItems"))[:least]
            return [*first, *([schema.get("items")] if least > len(first) else [])]
    return []


def _references(schema: Any) -> tuple[dict[str, Any], int]:
    """What each reference inside the schema names, for those that name something in it, and how many parts it has."""
    found: dict[str, Any] = {}
    size, waiting = 0, [schema]
    while waiting:
        part = waiting.pop()
        size += 1
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            waiting += part.values()
            name = part.get("$ref")
            if isinstance(name, str) and name not in found and name.startswith("#"):
                try:
                    found[name] = _resolve(schema, name)
                except (KeyError, IndexError, ValueError, TypeError):
                    continue
    return found, size


def _resolve(schema: Any, reference: str) -> Any:
    """RFC 6901, as the fragment of an address."""
    pointer = unquote(reference[1:])
    if pointer and not pointer.startswith("/"):
        raise KeyError(reference)  # an anchor
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        schema = schema[int(step)] if isinstance(schema, list) else schema[step]
    return schema


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
