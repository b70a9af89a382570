"""A Jinja2 environment for templates from model files: no way out of it, bounded work, bounded memory.

Jinja2's own sandbox keeps a template away from Python's internals. It does not bound time or memory, so here every
loop turn and every operation that can make something long is counted against a `Budget`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, Undefined, nodes, pass_context, pass_environment
from jinja2.environment import Environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

# A rendered chat is at most a few hundred thousand characters and takes milliseconds.
MAX_OUTPUT_CHARACTERS = 16_000_000
MAX_BUILT_CHARACTERS = 64_000_000
MAX_STEPS = 1_000_000
MAX_SECONDS = 2.0
MAX_INTEGER_BITS = 4096
MAX_WIDTH = 10_000

# Names that no template can spell, so that it cannot reach them.
_BUDGET = "lpx budget"
_TICK = "lpx_tick"
_CONCAT = "lpx_concat"

_KEPT_FILTERS = (
    "abs",
    "capitalize",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "groupby",
    "int",
    "items",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "sort",
    "string",
    "title",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
)
_LONG_NUMBER = re.compile(r"\d{5,}")
_NESTED_WIDTH = re.compile(r"\{[^{}]*:[^{}]*\{")


class BudgetError(TemplateError):
    """A template did more work than any chat needs."""


class Budget:
    """What one rendering may still use."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._characters = MAX_BUILT_CHARACTERS
        self._deadline = time.monotonic() + MAX_SECONDS

    def tick(self) -> None:
        """Count one turn of a loop."""
        self._steps -= 1
        if self._steps < 0:
            raise BudgetError(f"it makes more than {MAX_STEPS:,} loop turns")
        if self._steps % 64 == 0:
            self.check_time()

    def check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise BudgetError(f"it runs for more than {MAX_SECONDS:g} s")

    def spend(self, length: int) -> None:
        """Count text (or list items) about to be built."""
        self._characters -= max(length, 0)
        if self._characters < 0:
            raise BudgetError(f"it builds more than {MAX_BUILT_CHARACTERS:,} characters")


def refuse(message: str) -> None:
    """`raise_exception` of the templates."""
    raise TemplateError(str(message))


def _budget(context: Context) -> Budget:
    budget = context.parent.get(_BUDGET)
    if not isinstance(budget, Budget):
        raise SecurityError("rendering without a budget")
    return budget


def _length(value: object) -> int:
    if isinstance(value, str | bytes | list | tuple | dict):
        return len(value)
    if isinstance(value, Mapping):
        return len(value)
    return 24  # a number or the like


def _width(value: object) -> int:
    if isinstance(value, int) and abs(value) > MAX_WIDTH:
        raise BudgetError(f"it asks for a width of more than {MAX_WIDTH:,}")
    return abs(value) if isinstance(value, int) else 0


def _check_format(text: str) -> None:
    if _LONG_NUMBER.search(text) or _NESTED_WIDTH.search(text) or "*" in text:
        raise BudgetError("it formats with a very large or computed width")


@pass_context
def _tick(context: Context, value: object) -> bool:
    _budget(context).tick()
    return True


@pass_context
def _concat(context: Context, parts: list[object]) -> str:
    texts = [str(p) for p in parts]
    _budget(context).spend(sum(map(len, texts)))
    return "".join(texts)


@pass_context
def _join(context: Context, value: Iterable[object], d: str = "", attribute: str | int | None = None) -> str:
    from jinja2.filters import make_attrgetter

    items: Iterable[object] = value
    if attribute is not None:
        items = map(make_attrgetter(context.environment, attribute), items)
    texts = [str(i) for i in items]
    _budget(context).spend(sum(map(len, texts)) + len(str(d)) * len(texts))
    return str(d).join(texts)


@pass_context
def _replace(context: Context, s: object, old: object, new: object, count: int | None = None) -> str:
    text, old_text, new_text = str(s), str(old), str(new)
    times = text.count(old_text)
    _budget(context).spend(len(text) + times * len(new_text))
    return text.replace(old_text, new_text, -1 if count is None else count)


@pass_context
def _indent(context: Context, s: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    mark = width if isinstance(width, str) else " " * _width(width)
    lines = str(s).split("\n")
    _budget(context).spend(len(str(s)) + len(mark) * len(lines))
    out = [lines[0]] + [mark + line if line or blank else line for line in lines[1:]]
    return (mark if first else "") + "\n".join(out)


@pass_environment
def _sum(environment: Environment, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    from jinja2.filters import make_attrgetter

    values = map(make_attrgetter(environment, attribute), iterable) if attribute is not None else iterable
    total = start
    for value in values:
        if not isinstance(value, int | float) or not isinstance(total, int | float):
            raise TemplateError("sum: only numbers can be added up")
        total = total + value
    return total


@pass_context
def _tojson(
    context: Context,
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None:
        _width(indent)
        if indent > 16:
            raise BudgetError("it indents JSON by more than 16")
    if isinstance(value, Undefined):
        raise TemplateError(f"tojson: {value._undefined_name or 'the value'} is not defined")
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=(separators[0], separators[1]) if separators else None,
        sort_keys=sort_keys,
    )
    _budget(context).spend(len(text))
    return text


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; for us it is only its body."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja2)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Counting(NodeTransformer):
    """Puts a tick into every loop and macro, and makes `~` count what it builds."""

    def _tick(self, lineno: int) -> nodes.Filter:
        return nodes.Filter(nodes.Const(0), _TICK, [], [], None, None, lineno=lineno)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (named after the node)
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(self._tick(node.lineno), lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(self._tick(node.lineno), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(self._tick(node.lineno), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, _CONCAT, [], [], None, None, lineno=node.lineno)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The one environment in which chat templates are compiled and rendered."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
            cache_size=0,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
        )
        self.filters = {
            **{name: FILTERS[name] for name in _KEPT_FILTERS},
            "join": _join,
            "replace": _replace,
            "indent": _indent,
            "sum": _sum,
            "tojson": _tojson,
            _TICK: _tick,
            _CONCAT: _concat,
        }
        self.globals.pop("lipsum", None)
        self.globals["raise_exception"] = refuse

    def variables(self, values: Mapping[str, Any], now: datetime) -> dict[str, Any]:
        """Return the variables of one rendering: `values`, the clock and a fresh budget."""
        return {**values, "strftime_now": _clock(now), _BUDGET: Budget()}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Counting().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is not allowed")

    def call_filter(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        self._count_inner_call(kwargs.get("context"))
        return super().call_filter(name, value, *args, **kwargs)

    def call_test(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        self._count_inner_call(kwargs.get("context"))
        return super().call_test(name, value, *args, **kwargs)

    def _count_inner_call(self, context: Context | None) -> None:
        """Filters such as `map` call other filters for every item, out of sight of the ticks in loops."""
        if context is not None:
            budget = _budget(context)
            budget.tick()
            budget.check_time()

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            if isinstance(left, str | list | tuple):
                _budget(context).spend(_length(left) + _length(right))
        elif operator == "*":
            if isinstance(left, int) and isinstance(right, int):
                if left.bit_length() + right.bit_length() > MAX_INTEGER_BITS:
                    raise BudgetError("it computes a very large number")
            elif isinstance(left, int):
                _budget(context).spend(_length(right) * left)
            elif isinstance(right, int):
                _budget(context).spend(_length(left) * right)
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > MAX_INTEGER_BITS:
                raise BudgetError("it computes a very large number")
        elif isinstance(left, str):
            _check_format(left)
            _budget(context).spend(len(left) + _length_of_values(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            _budget(context).spend(_length_of_result(owner, obj.__name__, args, kwargs))
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        _check_format(str(getattr(value, "__self__", "")))
        return wrapped


def _length_of_values(value: object) -> int:
    if isinstance(value, tuple):
        return sum(map(_length, value))
    if isinstance(value, Mapping):
        return sum(map(_length, value.values()))
    return _length(value)


def _length_of_result(text: str, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Bound the length of what a method of `str` is about to return."""
    values = [*args, *kwargs.values()]
    if method in ("ljust", "rjust", "center", "zfill"):
        return len(text) + max(map(_width, values), default=0)
    if method == "expandtabs":
        return len(text) + text.count("\t") * max(map(_width, values), default=8)
    if method == "replace" and len(values) >= 2 and isinstance(values[0], str) and isinstance(values[1], str):
        return len(text) + text.count(values[0]) * len(values[1])
    if method == "join" and values:
        items = list(values[0]) if isinstance(values[0], list | tuple | str | dict) else []
        return sum(map(_length, items)) + len(text) * len(items)
    if method == "translate" and values and isinstance(values[0], dict):
        return len(text) * max((_length(v) for v in values[0].values()), default=1)
    return len(text)


def _clock(now: datetime) -> Callable[[str], str]:
    def strftime_now(form: str) -> str:
        if re.search(r"%[^a-zA-Z%]*\d", form) or len(form) > MAX_WIDTH:
            raise BudgetError("it formats the date with a width")
        return now.strftime(form)

    return strftime_now
