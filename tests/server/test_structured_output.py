"""The form of an answer over HTTP: every spelling, every endpoint, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.fake_executor import FakeExecutor
from tests.server.live_server import LiveServer

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "b"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kind", "count"],
}
JSON_FORMS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
    {"response_format": {"type": "json_schema", "schema": SCHEMA}},
    {"response_format": {"type": "json_object", "schema": SCHEMA}},
    {"json_schema": SCHEMA},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None, "disable_any_whitespace": False}},
    {"guided_json": SCHEMA},
]
OTHER_FORMS: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {"regex": "[0-9]{3}-[a-c]+x"}}, "[0-9]{3}-[a-c]+x"),
    ({"guided_regex": "(ab|ba){2}"}, "(ab|ba){2}"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
    ({"guided_choice": ["yes"]}, "yes"),
    ({"structured_outputs": {"grammar": 'root ::= "a" [bc]{2} "d"'}}, "a[bc]{2}d"),
    ({"grammar": 'root ::= "x" ("y" | "z")'}, "x[yz]"),
    ({"guided_grammar": 'start: "p" /[qr]/'}, "p[qr]"),
]
ENDPOINTS = ["/v1/completions", "/v1/chat/completions", "/generate"]


def body(path: str, **others: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": "?"}]} if "chat" in path else {"prompt": "?"}
    return {**prompt, "max_tokens": 100, "seed": 3, **others}


def text_of(path: str, answer: dict[str, Any]) -> tuple[str, str]:
    choice = answer["choices"][0] if "choices" in answer else answer
    text = choice["message"]["content"] if "chat" in path else choice["text"]
    return text, choice["finish_reason"]


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("form", JSON_FORMS, ids=str)
def test_a_schema_is_kept_in_every_spelling(shared_server: LiveServer, path: str, form: dict[str, Any]) -> None:
    response = shared_server.post(path, body(path, **form))
    assert response.status_code == 200, response.text
    text, reason = text_of(path, response.json())
    value = json.loads(text)
    assert list(value) == ["kind", "count"]
    assert value["kind"] in ("a", "b")
    assert 0 <= value["count"] <= 9
    assert reason == "stop"


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(("form", "expression"), OTHER_FORMS, ids=str)
def test_other_forms_are_kept(shared_server: LiveServer, path: str, form: dict[str, Any], expression: str) -> None:
    response = shared_server.post(path, body(path, **form))
    assert response.status_code == 200, response.text
    assert re.fullmatch(expression, text_of(path, response.json())[0])


def test_any_object_will_do_for_json_object(start_server: Callable[..., LiveServer]) -> None:
    server = start_server(FakeExecutor(num_blocks=1024, block_size=4), max_model_len=2048)
    wanted = body("chat", response_format={"type": "json_object"}, max_tokens=2000, temperature=0.3)
    text, reason = text_of("chat", server.post("/v1/chat/completions", wanted).json())
    assert text.startswith("{")
    if reason == "stop":
        assert isinstance(json.loads(text), dict)


def test_streams_and_choices_keep_the_form(shared_server: LiveServer) -> None:
    path = "/v1/completions"
    wanted = body(path, n=3, prompt=["a", "b"], structured_outputs={"json": SCHEMA}, logprobs=1)
    whole = [choice["text"] for choice in shared_server.post(path, wanted).json()["choices"]]
    streamed = [""] * 6
    for chunk in shared_server.events(path, wanted)[:-1]:
        for choice in chunk["choices"]:
            streamed[choice["index"]] += choice["text"]
    assert streamed == whole
    assert all(set(json.loads(text)) == {"kind", "count"} for text in whole)


@pytest.mark.parametrize(
    ("form", "param", "message"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "'text', 'json_object' or 'json_schema'"),
        ({"response_format": "json"}, "response_format", "must be an object"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format", "unknown field 'schema'"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "needs a JSON schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format", "needs a JSON"),
        ({"response_format": {"type": "json_schema", "json_schema": {"jsn": {}}}}, "response_format", "'jsn'"),
        ({"response_format": {"type": "json_schema", "json_schema": [1]}}, "response_format", "schema"),
        ({"response_format": {"type": "json_object", "schema": 3}}, "response_format", "needs a JSON schema"),
        (
            {"response_format": {"type": "json_schema", "schema": {"type": "array", "uniqueItems": True}}},
            "response_format",
            "not supported: uniqueItems",
        ),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs", "unknown field 'jsn'"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"json": False}}, "structured_outputs", "no text fits"),
        (
            {"structured_outputs": {"json": {"type": "integer", "multipleOf": 999983}}},
            "structured_outputs",
            "multipleOf",
        ),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "structural_tag"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs", "unclosed group"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs", "list of texts"),
        ({"guided_regex": 3}, "guided_regex", "needs text"),
        ({"guided_json": "{"}, "guided_json", "not valid JSON"),
        ({"grammar": "start: foo"}, "grammar", "unknown name"),
        ({"json_schema": 1}, "json_schema", "needs a JSON schema"),
        ({"json_schema": {}, "grammar": "x"}, "grammar", "both ask for a form"),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ENDPOINTS)
def test_what_cannot_be_kept_is_refused_by_name(
    shared_server: LiveServer, path: str, form: dict[str, Any], param: str, message: str
) -> None:
    response = shared_server.post(path, body(path, **form))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert message in error["message"], error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "text"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"json": None, "json_object": False}},
        {"grammar": ""},
        {"response_format": None, "guided_json": None},
    ],
    ids=str,
)
def test_no_form_is_no_form(shared_server: LiveServer, form: dict[str, Any]) -> None:
    path = "/generate"
    plain = shared_server.post(path, body(path)).json()
    assert shared_server.post(path, body(path, **form)).json()["text"] == plain["text"]


def test_a_new_grammar_is_not_compiled_on_the_event_loop(
    shared_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from lpx.engine.structured.compiler import GrammarCompiler

    names: list[str] = []
    compile_ = GrammarCompiler._compile

    def noting(self: GrammarCompiler, params: Any) -> Any:
        names.append(threading.current_thread().name)
        return compile_(self, params)

    monkeypatch.setattr(GrammarCompiler, "_compile", noting)
    for path in ENDPOINTS:
        form = {"regex": f"compiled for {path} alone"}
        for _ in range(2):
            assert shared_server.post(path, body(path, structured_outputs=form)).status_code == 200
    assert len(names) == 3
    assert all(name.startswith("lpx-grammar") for name in names)
