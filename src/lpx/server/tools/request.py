"""Which tools a request offers, and whether the model may, must or must not call them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lpx.engine.structured.finite import has_finite_values
from lpx.errors import InvalidRequestError

MAX_TOOLS = 128
MAX_CALLS = 16  # of one answer, where they are enforced
_SHAPES = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "const", "enum"})  # keywords that say what a value is
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools of a request, in OpenAI's form: `{"type": "function", "function": {"name", "description",
    "parameters"}}`.

    `mode`: "auto" leaves it to the model; "required" wants at least one call, of any of `callable_names`.
    """

    tools: tuple[dict[str, Any], ...]
    mode: Literal["auto", "required"]
    callable_names: tuple[str, ...]
    parallel: bool  # several calls in one answer

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool["function"]["name"] for tool in self.tools)

    def parameters_of(self, name: str) -> Any:
        """The JSON schema of a tool's arguments."""
        for tool in self.tools:
            if tool["function"]["name"] == name:
                return _as_object(tool["function"].get("parameters") or {"properties": {}})
        raise KeyError(name)


def _as_object(schema: dict[str, Any]) -> dict[str, Any]:
    return schema if _SHAPES & schema.keys() else {"type": "object", **schema}


def choose_tools(tools: Sequence[Any] | None, choice: Any = None, parallel: bool | None = None) -> ToolChoice | None:
    """Check OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`; None when no tool may be called.

    Raises `InvalidRequestError` that names the field.
    """
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequestError("tool_choice needs tools to choose from.", param="tool_choice")
        return None
    checked = tuple(_check_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools))
    names = [tool["function"]["name"] for tool in checked]
    if len(checked) > MAX_TOOLS:
        raise InvalidRequestError(f"tools holds {len(checked)} tools; at most {MAX_TOOLS} are allowed.", param="tools")
    if len(set(names)) < len(names):
        raise InvalidRequestError("tools has two functions of the same name.", param="tools")
    several = parallel is not False
    if choice == "none":
        return None
    if choice in (None, "auto"):
        return ToolChoice(checked, "auto", tuple(names), several)
    if choice == "required":
        return ToolChoice(checked, "required", tuple(names), several)
    return ToolChoice(checked, "required", (_named(choice, names),), False)


def _named(choice: Any, names: list[str]) -> str:
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise InvalidRequestError(
            'tool_choice must be "none", "auto", "required" or {"type": "function", "function": {"name": …}}.',
            param="tool_choice",
        )
    if name not in names:
        raise InvalidRequestError("tool_choice names a function that is not among tools.", param="tool_choice")
    return name


def _check_tool(tool: Any, where: str) -> dict[str, Any]:
    def refuse(message: str) -> InvalidRequestError:
        return InvalidRequestError(f"{where}{message}.", param="tools")

    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
        raise refuse(' must be {"type": "function", "function": {…}}; other kinds of tools are not supported')
    function = tool["function"]
    name = function.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= 64 or not _NAME_CHARACTERS.issuperset(name):
        raise refuse(".function.name must have 1 to 64 letters, digits, dots, dashes or underscores")
    if not isinstance(function.get("description"), str | None):
        raise refuse(".function.description must be a string")
    if not isinstance(function.get("parameters"), dict | None):
        raise refuse(".function.parameters must be a JSON schema (an object)")
    if not has_finite_values(_as_object(function.get("parameters") or {})):
        raise refuse(f".function.parameters of {name} demand themselves inside themselves for ever: no arguments fit")
    if not isinstance(function.get("strict"), bool | None):
        raise refuse(".function.strict must be true or false")
    kept = {key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None}
    return {"type": "function", "function": kept}
