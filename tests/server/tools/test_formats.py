"""Tool calls out of text: the formats of the model families, however the text is cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.server.tools.calls import CallArguments, CallStart, Piece, collect_calls
from lpx.server.tools.formats import ToolFormat, format_of_template, make_parser

NAMES = ("get_weather", "add")

VALUES = st.recursive(st.none() | st.text(max_size=8) | st.integers(), st.lists, max_leaves=4)
PARSED: list[tuple[ToolFormat, str, str, list[tuple[str, str]]]] = [
    ("hermes", "Just text.", "Just text.", []),
    ("hermes", " spaced \n", " spaced \n", []),
    ("hermes", '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "", [("add", '{"a": 1}')]),
    (
        "hermes",
        'Let me see.\n\n<tool_call>{"name":"add","arguments":{"a":"}"}}</tool_call>\n'
        '<tool_call>{"name":"get_weather","arguments":{}}</tool_call>\n',
        "Let me see.",
        [("add", '{"a":"}"}'), ("get_weather", "{}")],
    ),
    ("hermes", '<tool_call>{"arguments": {"a": [1, {"b": 2}]}, "name": "add"}', "", [("add", '{"a": [1, {"b": 2}]}')]),
    ("hermes", '<tool_call>{"name": "add"}</tool_call>', "", [("add", "{}")]),
    ("hermes", r'<tool_call>{"name": "add", "arguments": "{\"a\": 1}"}</tool_call>', "", [("add", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1', "", [("add", '{"a": 1')]),
    ("hermes", '<tool_call>{"name": "add", "arguments": {}} and more', "and more", [("add", "{}")]),
    ("hermes", '<tool_call>{"name": "add", "arguments": {}, oops</tool_call>bye', "bye", [("add", "{}")]),
    ("hermes", "<tool_call>nothing</tool_call>", "<tool_call>nothing</tool_call>", []),
    ("hermes", '<<tool_call>{"name": "a', '<<tool_call>{"name": "a', []),
    ("hermes", '<tool_call><tool_call>{"name": "add"}', "<tool_call>", [("add", "{}")]),
    ("hermes", "a <tool", "a <tool", []),
    (
        "hermes",
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        [],
    ),
    ("llama3", '{"name": "add", "parameters": {"a": 1}}', "", [("add", '{"a": 1}')]),
    (
        "llama3",
        '<|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "get_weather", "parameters": {}}',
        "",
        [("add", '{"a": 1}'), ("get_weather", "{}")],
    ),
    ("llama3", 'Well. <|python_tag|>{"name": "add", "parameters": {}}', "Well.", [("add", "{}")]),
    ("llama3", '{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', []),
    ("llama3", '{"colour": "red"}', '{"colour": "red"}', []),
    ("llama3", 'The answer: {"name": "add"}', 'The answer: {"name": "add"}', []),
    ("mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]', "", [("add", '{"a": 1}')]),
    (
        "mistral",
        'Hm. [TOOL_CALLS][{"name": "add", "arguments": {}}, {"name": "get_weather", "arguments": {"c": "P"}}]',
        "Hm.",
        [("add", "{}"), ("get_weather", '{"c": "P"}')],
    ),
    (
        "mistral",
        '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]get_weather[ARGS]{"c": "P"}',
        "",
        [("add", '{"a": 1}'), ("get_weather", '{"c": "P"}')],
    ),
    ("mistral", "[TOOL_CALLS] what?", "[TOOL_CALLS] what?", []),
    ("mistral", "[TOOL", "[TOOL", []),
]


def parse(tool_format: ToolFormat, parts: list[str]) -> tuple[str, list[tuple[str, str]], list[Piece]]:
    ids = (f"id{i}" for i in itertools.count())
    parser = make_parser(tool_format, NAMES, lambda: next(ids))
    pieces = [piece for part in parts for piece in parser.feed(part)] + parser.finish()
    text, calls = collect_calls(pieces)
    assert [call.id for call in calls] == [f"id{i}" for i in range(len(calls))]
    return text, [(call.name, call.arguments_json) for call in calls], pieces


@pytest.mark.parametrize(("tool_format", "text", "shown", "calls"), PARSED)
def test_an_answer_is_read(tool_format: ToolFormat, text: str, shown: str, calls: list[tuple[str, str]]) -> None:
    assert parse(tool_format, [text])[:2] == (shown, calls)
    assert parse(tool_format, list(text))[:2] == (shown, calls)


@pytest.mark.parametrize("tool_format", ["hermes", "llama3", "mistral"])
@given(data=st.data())
def test_the_cut_of_the_text_changes_nothing(tool_format: ToolFormat, data: st.DataObject) -> None:
    words = [
        *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<", "[", "]", "{", "}", ";", ","),
        *('{"name": "add", "arguments": {"a": 1}}', '{"parameters": [1, "x}"], "name": "add"}', '"name"', ": ", '"a"'),
        *("\n", " ", "text", "add", '\\"', "é", "1"),
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    whole = parse(tool_format, [text])
    assert parse(tool_format, parts)[:2] == whole[:2]
    if not whole[1]:
        assert whole[0] == text or tool_format == "llama3"  # whose tag is dropped in any case


@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.dictionaries(
                st.text(max_size=5),
                VALUES,
                max_size=3,
            ),
        ),
        min_size=1,
        max_size=3,
    ),
    ascii_only=st.booleans(),
)
def test_calls_come_back_as_they_were_written(calls: list[tuple[str, dict[str, object]]], ascii_only: bool) -> None:
    def dumps(value: object) -> str:
        return json.dumps(value, ensure_ascii=ascii_only)

    texts: dict[ToolFormat, str] = {
        "hermes": "".join(
            f"<tool_call>\n{dumps({'name': name, 'arguments': arguments})}\n</tool_call>\n" for name, arguments in calls
        ),
        "llama3": "; ".join(dumps({"name": name, "parameters": arguments}) for name, arguments in calls),
        "mistral": "[TOOL_CALLS] " + dumps([{"name": name, "arguments": arguments} for name, arguments in calls]),
    }
    for tool_format, text in texts.items():
        shown, found, _ = parse(tool_format, [text])
        assert shown == ""
        assert [(name, json.loads(arguments)) for name, arguments in found] == calls


def test_arguments_are_streamed_before_the_call_ends() -> None:
    parser = make_parser("hermes")
    pieces = parser.feed('<tool_call>{"name": "add", "arguments": {"a": 1')
    assert [type(piece) for piece in pieces] == [CallStart, CallArguments]
    assert pieces[1] == CallArguments(0, '{"a": 1')
    assert parser.feed(', "b": 2}') == [CallArguments(0, ', "b": 2}')]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (None, None),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", None),
        ("{% if tools %}<tool_call></tool_call>{% endif %}", "hermes"),
        ("{% if tools is not none %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", "mistral"),
        ('{% if tools %}{"name": function name, "parameters": dictionary}{% endif %}<|python_tag|>', "llama3"),
    ],
)
def test_the_template_tells_the_format(source: str | None, expected: str | None) -> None:
    assert format_of_template(source) == expected
