"""Enforced calls: whatever a grammar lets through, the parser of its format reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lpx.engine.structured.compiler import GrammarCompiler
from lpx.engine.structured.params import StructuredOutputsParams
from lpx.server.tools.calls import collect_calls
from lpx.server.tools.formats import ToolFormat, make_parser
from lpx.server.tools.grammar import answer_grammar
from lpx.server.tools.request import choose_tools
from tests.engine.fake_executor import END_OF_TURN, EOS, ByteTokenizer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "$ref": "#/$defs/args",
                "$defs": {"args": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]
TEXTS: list[tuple[ToolFormat, bool, str, bool]] = [
    ("hermes", True, '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', True),
    (
        "hermes",
        True,
        "\n".join(['<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'] * 2),
        True,
    ),
    ("hermes", False, '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>\n', False),
    ("hermes", True, '<tool_call>\n{"name": "sub", "arguments": {}}', False),
    ("hermes", True, "Hello", False),
    ("llama3", True, '{"name": "add", "parameters": {"a": 1}}; {"name": "stop", "parameters": {}}', True),
    ("mistral", True, '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"name": "stop", "arguments": {}}]', True),
    ("mistral", False, '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]', True),
    ("mistral_named", True, '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]stop[ARGS]{}', True),
]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(ByteTokenizer(), vocab_size=259, eos_token_ids=frozenset({EOS, END_OF_TURN}))


def accepts(compiler: GrammarCompiler, form: StructuredOutputsParams | None, ids: list[int]) -> bool:
    assert form is not None
    matcher = compiler.compile(form).begin()
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(("tool_format", "parallel", "text", "fits"), TEXTS)
def test_only_calls_of_the_tools_fit(
    compiler: GrammarCompiler, tool_format: ToolFormat, parallel: bool, text: str, fits: bool
) -> None:
    choice = choose_tools(TOOLS, "required", parallel)
    form = answer_grammar(None, choice, tool_format, "none", {})
    assert accepts(compiler, form, list(text.encode())) == fits
    if fits:
        parser = make_parser(tool_format, ("add", "stop"))
        shown, calls = collect_calls(parser.feed(text) + parser.finish())
        assert shown == ""
        assert len(calls) == text.count("add") + text.count("stop")
        assert all(isinstance(json.loads(call.arguments_json), dict) for call in calls)


@pytest.mark.parametrize(
    ("parameters", "arguments", "fits"),
    [
        ({"properties": {"next": {"$ref": "#"}}}, '{"next": {"next": {}}}', True),
        ({"properties": {"next": {"$ref": "#"}}}, '{"next": {"name": "f", "arguments": {}}}', False),
        ({"properties": {"q": {"type": "integer"}, "r": {"$ref": "#/properties/q"}}}, '{"q": 1, "r": 2}', True),
    ],
)
def test_references_start_at_the_parameters(
    compiler: GrammarCompiler, parameters: dict[str, Any], arguments: str, fits: bool
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", **parameters}}}
    form = answer_grammar(None, choose_tools([tool], "required", False), "hermes", "none", {})
    text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    assert accepts(compiler, form, list(text.encode())) == fits


def test_marks_that_are_control_tokens_are_written_as_such(compiler: GrammarCompiler) -> None:
    form = answer_grammar(None, choose_tools(TOOLS, "required", False), "mistral", "none", {"[TOOL_CALLS]": 256})
    assert accepts(compiler, form, [256, *b' [{"name": "stop", "arguments": {}}]'])
    assert not accepts(compiler, form, list(b'[TOOL_CALLS] [{"name": "stop", "arguments": {}}]'))


@pytest.mark.parametrize(
    ("thoughts", "text", "fits"),
    [
        ("none", '{"a": 1}', True),
        ("none", "<think>x</think>\n{}", False),
        ("possible", "<think>x\n</think>\n\n{}", True),
        ("possible", "{}", True),
        ("open", "x</think>{}", True),
        ("open", "{}", False),
    ],
)
def test_a_form_holds_behind_thoughts(compiler: GrammarCompiler, thoughts: Any, text: str, fits: bool) -> None:
    form = StructuredOutputsParams(json={"type": "object", "properties": {"a": {"type": "integer"}}}, param="p")
    assert accepts(compiler, answer_grammar(form, None, "hermes", thoughts, {}), list(text.encode())) == fits


def test_nothing_to_keep_to_is_no_grammar() -> None:
    assert answer_grammar(None, choose_tools(TOOLS), "hermes", "possible", {}) is None
    form = StructuredOutputsParams(regex="a")
    assert answer_grammar(form, None, "hermes", "possible", {}) is form


def test_arguments_may_escape_any_character(compiler: GrammarCompiler) -> None:
    tool = {"name": "say", "parameters": {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]}}
    choice = choose_tools([{"type": "function", "function": tool}], "required", True)
    form = answer_grammar(None, choice, "llama3", "none", {})
    text = '{"name": "say", "parameters": {"s": "\\u5317\\u4eac \\ud83d\\ude00 \\u0041 \\n"}}'
    assert accepts(compiler, form, list(text.encode()))
