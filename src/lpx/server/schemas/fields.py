"""Shapes that pydantic's unions would report badly, and once per item: each is checked by a function of its own."""

from __future__ import annotations

from typing import Any

from pydantic import WithJsonSchema
from pydantic_core import PydanticCustomError

from lpx.server.errors import clip

_MAX_ID = 2**31 - 1
_MAX_TEMPLATE_KWARGS = 32

Prompts = list[str] | list[list[int]]

# The shapes in JSON Schema, for /openapi.json.
_ID = {"type": "integer", "minimum": 0, "maximum": _MAX_ID}
_IDS = {"type": "array", "items": _ID}
_SOME_IDS = {**_IDS, "minItems": 1}
_NULL = {"type": "null"}
STOPS_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "items": {"type": "string", "minLength": 1}},
            _NULL,
        ]
    }
)
IDS_SCHEMA = WithJsonSchema({"anyOf": [_IDS, _NULL]})
TOKENS_SCHEMA = WithJsonSchema(_IDS)
BIAS_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {
                "type": "object",
                "propertyNames": {"pattern": "^[0-9]{1,9}$"},
                "additionalProperties": {
                    "anyOf": [{"type": "number", "minimum": -100, "maximum": 100}, {"const": False}]
                },
            },
            _NULL,
        ]
    }
)
PROMPTS_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
            _SOME_IDS,
            {"type": "array", "items": _SOME_IDS, "minItems": 1},
        ]
    }
)
PROMPT_SCHEMA = WithJsonSchema({"anyOf": [{"type": "string"}, _SOME_IDS]})
FLAGS_SCHEMA = WithJsonSchema({"anyOf": [{"type": "object"}, _NULL]})
OBJECTS_SCHEMA = WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "object"}}, _NULL]})
MESSAGES_SCHEMA = WithJsonSchema(
    {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "properties": {
                "role": {"type": "string"},
                "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}, _NULL]},
            },
            "required": ["role"],
        },
    }
)
TEXTS_SCHEMA = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}, _NULL]})
INPUT_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type": "object"}}]}
)


def fail(message: str) -> PydanticCustomError:
    return PydanticCustomError("request", "{message}", {"message": message})


def stop_list(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if stops is not None and not (isinstance(stops, list) and all(isinstance(stop, str) for stop in stops)):
        raise fail("must be a string or a list of strings")
    return stops


def are_ids(values: list[Any]) -> bool:
    # Without a loop in Python: a prompt may hold a million of them.
    return not values or (set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= _MAX_ID)


def id_list(value: Any) -> Any:
    if value is not None and not (isinstance(value, list) and are_ids(value)):
        raise fail("must be a list of token ids (integers, 0 or above)")
    return value


def bias_map(value: Any) -> Any:
    """OpenAI's object, or llama.cpp's list of pairs; `false` bans a token."""
    if value is None:
        return None
    if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        if not all(type(pair[0]) is int for pair in value):
            raise fail("has a pair that does not begin with a token id")
        pairs = [(str(pair[0]), pair[1]) for pair in value]
    elif isinstance(value, dict):
        pairs = list(value.items())
    else:
        raise fail("must be an object of token ids (as strings) and numbers, or a list of such pairs")
    result: dict[int, float | bool] = {}
    for key, bias in pairs:
        shown = clip(key, 32)
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= _MAX_ID):
            raise fail(f"has the key {shown!r}, which is not a token id")
        if type(bias) not in (int, float) and bias is not False:
            raise fail(f"has for the key {shown!r} a value that is neither a number nor false")
        if int(key) in result:
            raise fail(f"names the token id {int(key)} twice")
        result[int(key)] = bias
    return result


def prompts_of(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    shape = "must be a string, a list of strings, a list of token ids, or a list of lists of token ids"
    if not isinstance(value, list):
        raise fail(shape)
    if not value:
        raise fail("is an empty list; " + shape)
    if set(map(type, value)) == {str}:
        return value
    if are_ids(value):
        return [value]
    if set(map(type, value)) == {list}:
        for index, item in enumerate(value):
            if not item:
                raise fail(f"has an empty list of token ids at position {index}")
            if not are_ids(item):
                raise fail(f"has at position {index} an item that is not a token id (an integer, 0 or above)")
        return value
    if {int, float, bool} & set(map(type, value)):
        raise fail("has an item that is not a token id (an integer, 0 or above)")
    raise fail(shape)


def template_kwargs(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > _MAX_TEMPLATE_KWARGS:
        raise fail(f"must be an object of at most {_MAX_TEMPLATE_KWARGS} plain flags")
    for key, item in value.items():
        if (
            not (key.isascii() and key.isidentifier() and len(key) <= 64 and key[0] != "_")
            or key in _RESERVED_TEMPLATE_KWARGS
        ):
            raise fail(f"must not set {clip(key, 64)!r}: only plain flags of the template may be set")
        plain = item is None or type(item) in (bool, int, float) or (isinstance(item, str) and len(item) <= 256)
        if not plain:
            raise fail(f"has for {key!r} a value that is not a plain flag (true, false, a number or a short string)")
    return value


def tool_list(value: Any) -> Any:
    if value is not None and not (isinstance(value, list) and all(isinstance(tool, dict) for tool in value)):
        raise fail("must be a list of objects")
    return value


# Names that the renderer sets itself, or that other servers let a request replace.
_RESERVED_TEMPLATE_KWARGS = frozenset(
    """
    chat_template template tokenize messages conversation tools documents add_generation_prompt
    continue_final_message return_dict return_tensors return_assistant_tokens_mask padding truncation
    max_length tokenizer_kwargs bos_token eos_token pad_token unk_token sep_token cls_token mask_token
    additional_special_tokens raise_exception strftime_now self kwargs namespace range loop caller varargs
    """.split()  # noqa: SIM905
)
