"""Which form a request's output shall have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lpx.errors import InvalidRequestError

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_GRAMMAR_CHARACTERS = 65_536
MAX_CHOICES = 1024
_KINDS = ("json", "json_object", "regex", "choice", "grammar", "lark")
# Keywords under which a schema may stand that is not one of a whole value of its own.
_COMBINING = frozenset({"allOf", "unevaluatedProperties", "patternProperties", "$dynamicRef", "not", "if"})

# JSON in one line, as models and `json.dumps` write it: free white space would let a small model write blanks for ever.
# Strings may escape any character.
JSON_FORM: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allow_general_unicode_escapes": True,
}

GrammarKind = Literal["json", "regex", "grammar", "lark"]


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """Exactly one of these, with the names that vLLM users know. Wrong values raise `InvalidRequestError`.

    - `json`: a JSON Schema, as a dict, a bool or its text. Objects hold the properties that it lists and no others,
      unless it says `additionalProperties` (or combines schemas by `allOf` and the like). `json_object`: any object.
    - `regex`: a regular expression (Rust's syntax, without look-around) that the whole text matches.
    - `choice`: one of these texts.
    - `grammar`: a context-free grammar in Lark's or in GBNF's (llama.cpp's) notation, whose start is `start` or `root`.
      `lark`: one in Lark's, without a guess.

    `param` names what errors are about, as the client spelled it.
    """

    json: Mapping[str, Any] | bool | str | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool = False
    lark: str | None = None
    param: str = field(default="structured_outputs", compare=False)
    kind: GrammarKind = field(init=False)
    text: str = field(init=False)  # of the schema, expression or grammar

    def __post_init__(self) -> None:
        given = [
            name for name in _KINDS if getattr(self, name) not in (None, False) or (name, self.json) == ("json", False)
        ]
        if len(given) != 1:
            raise self._refuse(
                f"must hold exactly one of {', '.join(_KINDS)}, not {' and '.join(given) if given else 'none of them'}"
            )
        kind, text = self._grammar_text(given[0])
        if len(text) > MAX_GRAMMAR_CHARACTERS:
            raise self._refuse(f"has {len(text):,} characters; at most {MAX_GRAMMAR_CHARACTERS:,} are allowed")
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "text", text)

    def _grammar_text(self, name: str) -> tuple[GrammarKind, str]:
        value = getattr(self, name)
        if name == "json_object":
            if value is not True:
                raise self._refuse("needs true or false for json_object")
            return "json", '{"type":"object"}'
        if name == "json":
            return "json", self._schema_text(value)
        if name == "choice":
            return "lark", self._choice_grammar(value)
        if not isinstance(value, str):
            raise self._refuse(f"needs text for {name}, not {type(value).__name__}")
        if not value:
            raise self._refuse(f"has an empty {name}")
        kinds: dict[str, GrammarKind] = {"regex": "regex", "grammar": "grammar", "lark": "lark"}
        return kinds[name], value

    def _schema_text(self, schema: object) -> str:
        if isinstance(schema, str):
            if len(schema) > MAX_GRAMMAR_CHARACTERS:
                return schema  # refused for its length
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError):
                raise self._refuse("has a JSON schema that is not valid JSON") from None
        if not isinstance(schema, Mapping | bool):
            raise self._refuse(f"needs a JSON schema (an object), not {type(schema).__name__}")
        try:
            text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            if len(text) > MAX_GRAMMAR_CHARACTERS:
                return text  # refused for its length
            return json.dumps(close_objects(schema), ensure_ascii=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError):
            raise self._refuse("has a JSON schema that is not plain JSON") from None

    def _choice_grammar(self, choices: object) -> str:
        if not isinstance(choices, list | tuple) or not choices or not all(isinstance(c, str) for c in choices):
            raise self._refuse("needs a list of texts for choice")
        if len(choices) > MAX_CHOICES:
            raise self._refuse(f"has {len(choices)} choices; at most {MAX_CHOICES} are allowed")
        if not all(choices):
            raise self._refuse("has an empty choice")
        return "start: " + " | ".join(map(lark_string, dict.fromkeys(choices)))

    def _refuse(self, message: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self.param} {message}", param=self.param)


def lark_string(text: str) -> str:
    """A literal of Lark's notation: control characters and everything that could end it escaped."""
    return json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False)


def close_objects(schema: Any) -> Any:
    """A schema whose objects hold no other properties than it lists, where it says nothing about others.

    That is what people mean by a list of properties, and what a small model needs in order to come to an end.
    """
    if _mentions(schema, _COMBINING):
        return schema
    return _closed(schema)


def _closed(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return [_closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    result = {
        key: item
        if key in ("const", "enum", "default", "examples")
        else {name: _closed(inner) for name, inner in item.items()}
        if key in ("properties", "$defs", "definitions") and isinstance(item, Mapping)
        else _closed(item)
        for key, item in schema.items()
    }
    if isinstance(schema.get("properties"), Mapping) and not {"anyOf", "oneOf", "$ref"} & schema.keys():
        result.setdefault("additionalProperties", False)
    return result


def _mentions(schema: Any, keywords: frozenset[str]) -> bool:
    if isinstance(schema, list | tuple):
        return any(_mentions(item, keywords) for item in schema)
    if isinstance(schema, Mapping):
        return not keywords.isdisjoint(schema) or any(_mentions(item, keywords) for item in schema.values())
    return False
