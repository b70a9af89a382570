"""The form of an answer as clients ask for it, in OpenAI's, vLLM's and llama.cpp's spellings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lpx.engine.structured.finite import has_finite_values
from lpx.engine.structured.params import StructuredOutputsParams
from lpx.errors import InvalidRequestError

# Fields of a request that ask for a form. At most one of them may.
FORM_FIELDS = (
    "response_format",
    "structured_outputs",
    "json_schema",
    "grammar",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
_STRUCTURED_KEYS = frozenset({"json", "json_object", "regex", "choice", "grammar"})
# vLLM's further keys, which ask for nothing with these values.
_NEUTRAL_KEYS: dict[str, tuple[object, ...]] = {
    "structural_tag": (None,),
    "whitespace_pattern": (None,),
    "disable_fallback": (None, True, False),
    "disable_any_whitespace": (None, True, False),
    "disable_additional_properties": (None, True, False),
}


def requested_form(fields: Mapping[str, Any]) -> StructuredOutputsParams | None:
    """What `FORM_FIELDS` ask for; raises `InvalidRequestError` that names the field."""
    forms = [form for name in FORM_FIELDS if (form := _form_of(name, fields.get(name))) is not None]
    if len(forms) > 1:
        raise InvalidRequestError(
            f"{forms[0].param} and {forms[1].param} both ask for a form of the text; give one of them.",
            param=forms[1].param,
        )
    return forms[0] if forms else None


def _form_of(name: str, value: Any) -> StructuredOutputsParams | None:
    if value is None:
        return None
    if name == "response_format":
        return _response_format(value)
    if name == "structured_outputs":
        return _structured_outputs(value)
    if name == "json_schema":
        return StructuredOutputsParams(json=_schema(value, name), param=name)
    if name == "grammar":
        return None if value == "" else StructuredOutputsParams(grammar=value, param=name)
    kind = name.removeprefix("guided_")
    if kind == "json":
        value = _schema(value, name)
    return StructuredOutputsParams(**{kind: value}, param=name)


def _response_format(value: Any) -> StructuredOutputsParams | None:
    name = "response_format"
    if not isinstance(value, dict):
        raise _refuse(name, "must be an object with a type")
    kind = value.get("type")
    if kind == "text":
        _check_keys(name, value, {"type"})
        return None
    if kind == "json_object":
        _check_keys(name, value, {"type", "schema"})
        if value.get("schema") is not None:
            return StructuredOutputsParams(json=_schema(value["schema"], name), param=name)
        return StructuredOutputsParams(json_object=True, param=name)
    if kind != "json_schema":
        raise _refuse(name, "must have the type 'text', 'json_object' or 'json_schema'")
    _check_keys(name, value, {"type", "json_schema", "schema"})
    inner = value.get("json_schema")
    if isinstance(inner, dict) and value.get("schema") is None:
        _check_keys(name, inner, {"name", "description", "schema", "strict"})
        inner = inner.get("schema")
    elif inner is None:
        inner = value.get("schema")
    else:
        raise _refuse(name, "must have either json_schema, an object with a schema, or schema")
    return StructuredOutputsParams(json=_schema(inner, name), param=name)


def _structured_outputs(value: Any) -> StructuredOutputsParams | None:
    name = "structured_outputs"
    if not isinstance(value, dict):
        raise _refuse(name, "must be an object with one of json, json_object, regex, choice and grammar")
    wanted: dict[str, Any] = {}
    for key, item in value.items():
        if key in _STRUCTURED_KEYS:
            if item is not None and not (key == "json_object" and item is False):
                wanted[key] = _schema(item, name) if key == "json" else item
        elif key not in _NEUTRAL_KEYS:
            raise _refuse(name, f"has an unknown field {key[:32]!r}")
        elif item not in _NEUTRAL_KEYS[key]:
            raise _refuse(name, f"cannot have {key} with this value: it is not supported")
    return StructuredOutputsParams(**wanted, param=name) if wanted else None


def _schema(value: Any, name: str) -> Any:
    if not isinstance(value, dict | bool | str):
        raise _refuse(name, "needs a JSON schema (an object)")
    if value is False:
        raise _refuse(name, "cannot be the schema false, which no text fits")
    if not has_finite_values(value):
        raise _refuse(name, "has a schema that demands itself inside itself for ever: no text fits it")
    return {} if value is True else value


def _check_keys(name: str, value: dict[str, Any], known: set[str]) -> None:
    unknown = [key for key in value if key not in known]
    if unknown:
        raise _refuse(name, f"has an unknown field {unknown[0][:32]!r}")


def _refuse(name: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} {message}.", param=name)
