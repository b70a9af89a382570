"""A Jinja2 environment for templates from model files: no way out of it, bounded work, bounded memory.

Jinja2's own sandbox keeps a template away from Python's internals. It does not bound time or memory, so here every
loop turn, everything written and every operation that can make something long is paid for from a `Budget`. Lists and
objects are cheap to build, since they share what they hold, but a list that holds the same list twice, and so on, is
not cheap to write, to compare or to hash: those operations pay for all that it holds, as often as it holds it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, Undefined, nodes, pass_context, pass_environment
from jinja2.environment import Environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

# A rendered chat is at most a few hundred thousand characters and takes milliseconds.
MAX_OUTPUT_CHARACTERS = 16_000_000
MAX_BUILT_CHARACTERS = 64_000_000
MAX_STEPS = 1_000_000
MAX_SECONDS = 2.0
MAX_INTEGER_BITS = 4096
_ITEM_SIZE = 8  # characters that an item of a list counts as, beside its text
MAX_WIDTH = 10_000

# Names that no template can spell, so that it cannot reach them.
_TICK = "lpx tick"
_CONCAT = "lpx concat"
_PAID = "lpx paid"
_PAID_TEXT = "lpx paid text"

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
# Filters and tests that write, compare or hash what they are given.
_READING_FILTERS = frozenset(
    {
        *("capitalize", "dictsort", "e", "escape", "forceescape", "lower", "max", "min", "sort", "string", "title"),
        *("trim", "truncate", "unique", "upper", "urlencode", "wordcount"),
    }
)
_READING_TESTS = frozenset(
    {
        *("==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", ">=", "ge", "<", "lt", "lessthan", "<=", "le"),
        *("in", "lower", "upper"),
    }
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
        """Count characters about to be built."""
        self._characters -= max(length, 0)
        if self._characters < 0:
            raise BudgetError(f"it builds more than {MAX_BUILT_CHARACTERS:,} characters")

    def size(self, value: object) -> int:
        """Return about how many characters `value` has when it is written, and stop where that cannot be paid."""
        if isinstance(value, str | bytes):
            return len(value)
        total = turn = 0
        waiting = [value]
        while waiting:
            item = waiting.pop()
            if isinstance(item, str | bytes):
                total += len(item) + 4
            elif isinstance(item, list | tuple | set | frozenset):
                total += _ITEM_SIZE
                waiting.extend(item)
            elif isinstance(item, Mapping):
                total += _ITEM_SIZE
                waiting.extend(item.keys())
                waiting.extend(item.values())
            elif isinstance(item, Namespace):
                total += _ITEM_SIZE
                waiting.extend(_namespace_values(item))
            else:
                total += _ITEM_SIZE
            if total + _ITEM_SIZE * len(waiting) > self._characters:
                self.spend(self._characters + 1)
            if (turn := turn + 1) % 4096 == 0:
                self.check_time()
        return total


def refuse(message: str) -> None:
    """`raise_exception` of the templates."""
    raise TemplateError(str(message))


# The budget of the rendering that runs in this thread.
_CURRENT: ContextVar[Budget] = ContextVar("budget of the rendering")


def _namespace_values(namespace: Namespace) -> list[object]:
    values: dict[str, object] = object.__getattribute__(namespace, "_Namespace__attrs")
    return list(values.values())


def _shallow(value: object) -> int:
    """The size of text or of a list itself, without what it holds."""
    if isinstance(value, str | bytes):
        return len(value)
    return _ITEM_SIZE * len(value) if isinstance(value, list | tuple) else 0


def _width(value: object) -> int:
    if isinstance(value, int) and abs(value) > MAX_WIDTH:
        raise BudgetError(f"it asks for a width of more than {MAX_WIDTH:,}")
    return abs(value) if isinstance(value, int) else 0


def _check_format(text: str) -> None:
    if _LONG_NUMBER.search(text) or _NESTED_WIDTH.search(text) or "*" in text:
        raise BudgetError("it formats with a very large or computed width")


@pass_context
def _tick(context: Context, written: int) -> bool:
    """Count a turn of a loop whose body writes so many characters of its own."""
    budget = _CURRENT.get()
    budget.tick()
    budget.spend(written)
    return True


@pass_context
def _pay(context: Context, value: Any) -> Any:
    budget = _CURRENT.get()
    budget.spend(budget.size(value))
    return value


@pass_context
def _pay_text(context: Context, value: Any) -> Any:
    if isinstance(value, str):
        _CURRENT.get().spend(len(value))
    return value


@pass_context
def _concat(context: Context, parts: list[object]) -> str:
    _pay(context, parts)
    return "".join(map(str, parts))


@pass_context
def _join(context: Context, value: Iterable[object], d: str = "", attribute: str | int | None = None) -> str:
    from jinja2.filters import make_attrgetter

    items: Iterable[object] = value
    if attribute is not None:
        items = map(make_attrgetter(context.environment, attribute), items)
    texts = [str(_pay(context, i)) for i in items]
    _CURRENT.get().spend(len(str(d)) * len(texts))
    return str(d).join(texts)


@pass_context
def _replace(context: Context, s: object, old: object, new: object, count: int | None = None) -> str:
    text, old_text, new_text = (str(_pay(context, v)) for v in (s, old, new))
    times = text.count(old_text)
    _CURRENT.get().spend(len(text) + times * len(new_text))
    return text.replace(old_text, new_text, -1 if count is None else count)


@pass_context
def _indent(context: Context, s: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    mark = width if isinstance(width, str) else " " * _width(width)
    lines = str(_pay(context, s)).split("\n")
    _CURRENT.get().spend(len(mark) * len(lines))
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
    return json.dumps(
        _pay(context, value),
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=(separators[0], separators[1]) if separators else None,
        sort_keys=sort_keys,
    )


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; for us it is only its body."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja2)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Counting(NodeTransformer):
    """Puts a tick into every loop and macro, and a payment before whatever reads or writes a value in full."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (named after the node)
        self.generic_visit(node)
        self._count_turns(node)
        if node.test is not None:
            node.test = nodes.And(_filtered(nodes.Const(0), _TICK, node), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        self._count_turns(node)
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        self._count_turns(node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _CONCAT, node)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.node is None:
            return node
        if node.name in _READING_FILTERS:
            node.node = _paid(node.node)
        return _filtered(node, _PAID_TEXT, node)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.name in _READING_TESTS:
            node.node = _paid(node.node)
            node.args = [_paid(a) for a in node.args]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _paid(node.expr)
        for operand in node.ops:
            operand.expr = _paid(operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            node.arg = _paid(node.arg)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _paid(node.key)
        return node

    def _count_turns(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> None:
        written = sum(len(t.data) for t in node.find_all(nodes.TemplateData))
        tick = _filtered(nodes.Const(written), _TICK, node)
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))


def _filtered(value: nodes.Expr, name: str, at: nodes.Node) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=at.lineno)


def _paid(value: nodes.Expr) -> nodes.Expr:
    return value if isinstance(value, nodes.Const) else _filtered(value, _PAID, value)


class _Format:
    """A `str.format` of the sandbox, with the text that it formats."""

    __slots__ = ("text", "wrapped")

    def __init__(self, text: str, wrapped: Callable[..., str]) -> None:
        self.text = text
        self.wrapped = wrapped

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        return self.wrapped(*args, **kwargs)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The one environment in which chat templates are compiled and rendered."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
            finalize=_pay,
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
            _PAID: _pay,
            _PAID_TEXT: _pay_text,
        }
        self.globals.pop("lipsum", None)
        self.globals["raise_exception"] = refuse

    def render(self, template: Template, values: Mapping[str, Any], now: datetime) -> str:
        """Render with a fresh budget. Raises what the template raises, a BudgetError when it asks for too much."""
        token = _CURRENT.set(Budget())
        try:
            chunks: list[str] = []
            length = 0
            for chunk in template.generate({**values, "strftime_now": _clock(now)}):
                length += len(chunk)
                if length > MAX_OUTPUT_CHARACTERS:
                    raise BudgetError(f"it writes more than {MAX_OUTPUT_CHARACTERS:,} characters")
                chunks.append(chunk)
            return "".join(chunks)
        finally:
            _CURRENT.reset(token)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Counting().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is not allowed")

    def call_filter(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        self._count_inner_call(value, args)
        return super().call_filter(name, value, *args, **kwargs)

    def call_test(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        self._count_inner_call(value, args)
        return super().call_test(name, value, *args, **kwargs)

    def _count_inner_call(self, value: object, args: tuple[Any, ...]) -> None:
        """Filters such as `map` call other filters for every item, out of sight of the ticks in loops."""
        budget = _CURRENT.get()
        budget.tick()
        budget.check_time()
        # The first further argument holds those of the filter; a context or environment may follow.
        budget.spend(budget.size(value) + budget.size(args[:1]))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _CURRENT.get()
        if operator == "+":
            budget.spend(_shallow(left) + _shallow(right))
        elif operator == "*":
            if isinstance(left, int) and isinstance(right, int):
                if left.bit_length() + right.bit_length() > MAX_INTEGER_BITS:
                    raise BudgetError("it computes a very large number")
            elif isinstance(left, int):
                budget.spend(_shallow(right) * left)
            elif isinstance(right, int):
                budget.spend(_shallow(left) * right)
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > MAX_INTEGER_BITS:
                raise BudgetError("it computes a very large number")
        elif isinstance(left, str):
            _check_format(left)
            budget.spend(len(left) + budget.size(right) * max(1, left.count("%")))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _CURRENT.get()
        owner = getattr(obj, "__self__", None)
        if isinstance(obj, _Format):
            budget.spend(len(obj.text) + budget.size([args, kwargs]) * (1 + obj.text.count("{")))
        elif isinstance(owner, str):
            budget.spend(_length_of_result(owner, obj.__name__, args, kwargs))
        elif isinstance(owner, list | tuple):  # index() and count() compare
            budget.spend(budget.size([owner, args]))
        elif obj is dict or isinstance(owner, dict):  # keys are hashed
            budget.spend(budget.size([args, kwargs]))
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, str):
            budget.spend(len(result))
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = str(getattr(value, "__self__", ""))
        _check_format(text)
        return _Format(text, wrapped)


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
        return sum(len(i) for i in items if isinstance(i, str)) + len(text) * len(items)
    if method == "translate" and values and isinstance(values[0], dict):
        return len(text) * max((len(v) for v in values[0].values() if isinstance(v, str)), default=1)
    return len(text)


def _clock(now: datetime) -> Callable[[str], str]:
    def strftime_now(form: str) -> str:
        if re.search(r"%[^a-zA-Z%]*\d", form) or len(form) > MAX_WIDTH:
            raise BudgetError("it formats the date with a width")
        return now.strftime(form)

    return strftime_now
