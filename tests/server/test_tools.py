"""Tools on /v1/chat/completions: told, called, enforced, streamed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from lpx.server.tools.prompt import tell_tools
from tests.engine.fake_executor import FakeExecutor
from tests.server.live_server import LiveServer
from tests.server.scripted import says

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
        },
    },
}
ADD = {"type": "function", "function": {"name": "add"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def body(**others: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "?"}], "max_tokens": 400, "tools": [WEATHER, ADD], **others}


@pytest.fixture
def serve(start_server: Callable[..., LiveServer]) -> Callable[..., LiveServer]:
    def start(text: str | None = None) -> LiveServer:
        choose = None if text is None else says(text)
        return start_server(FakeExecutor(num_blocks=2048, block_size=4, choose=choose), max_model_len=2048)

    return start


def answer(server: LiveServer, **others: Any) -> dict[str, Any]:
    response = server.post(CHAT, body(**others))
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def streamed(server: LiveServer, **others: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The message that the deltas make up, as a client joins them, with its end; and the deltas."""
    message: dict[str, Any] = {"content": ""}
    deltas = []
    reason = None
    for chunk in server.events(CHAT, body(**others))[:-1]:
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        deltas.append(delta)
        assert reason is None, "a delta behind the end"
        reason = choice["finish_reason"]
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                assert call["type"] == "function"
                calls.append({"id": call["id"], "type": "function", "function": dict(call["function"])})
            else:
                assert call["index"] == len(calls) - 1
                assert set(call) == {"index", "function"}
                calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    return {"message": message, "finish_reason": reason}, deltas


def without_ids(choice: dict[str, Any]) -> tuple[Any, ...]:
    calls = choice["message"].get("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls)
    return (choice["message"]["content"] or "", [call["function"] for call in calls], choice["finish_reason"])


@pytest.mark.parametrize("text", ["Hello.", CALL, f"Let me see.\n{CALL}\n{CALL}", "a <tool_ca", "<tool_call>no"])
def test_streams_and_whole_answers_are_the_same(serve: Callable[..., LiveServer], text: str) -> None:
    server = serve(text)
    whole = answer(server)
    assert without_ids(streamed(server)[0]) == without_ids(whole)
    content, calls, reason = without_ids(whole)
    assert len(calls) == text.count('"name"')
    assert reason == ("tool_calls" if calls else "stop")
    assert content == (text.partition("\n")[0] if text.startswith("Let") else "" if calls else text)
    assert whole["message"]["content"] is (None if calls and not content else whole["message"]["content"])


def test_arguments_come_in_pieces(serve: Callable[..., LiveServer]) -> None:
    deltas = [delta for delta in streamed(serve(CALL))[1] if "tool_calls" in delta]
    assert deltas[0]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": ""}


def test_no_choice_of_tools_means_none(serve: Callable[..., LiveServer]) -> None:
    server = serve(CALL)
    choice = answer(server, tool_choice="none")
    assert choice["message"] == {"role": "assistant", "content": CALL, "refusal": None}
    assert choice["finish_reason"] == "stop"
    del choice["message"]["refusal"]
    assert answer(server, tools=[])["message"]["content"] == CALL


def test_a_call_that_is_cut_off_ends_for_its_length(serve: Callable[..., LiveServer]) -> None:
    choice = answer(serve(CALL), max_tokens=len(CALL) - 30)
    assert choice["finish_reason"] == "length"
    assert CALL.startswith(
        '<tool_call>\n{"name": "get_weather", "arguments": '
        + choice["message"]["tool_calls"][0]["function"]["arguments"]
    )


@pytest.mark.parametrize("seed", range(3))
def test_required_calls_are_made_by_models_that_know_nothing_of_tools(
    serve: Callable[..., LiveServer], seed: int
) -> None:
    server = serve()
    choice = answer(server, tool_choice="required", seed=seed, parallel_tool_calls=False)
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "get_weather":
        assert arguments["city"] in ("Paris", "Rome")
        assert 1 <= arguments["days"] <= 9
    else:
        assert call["function"]["name"] == "add"
    assert without_ids(
        streamed(server, tool_choice="required", seed=seed, parallel_tool_calls=False)[0]
    ) == without_ids(choice)


def test_the_named_tool_is_called(serve: Callable[..., LiveServer]) -> None:
    server = serve()
    for seed in range(3):
        choice = answer(server, tool_choice={"type": "function", "function": {"name": "get_weather"}}, seed=seed, n=1)
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        assert set(json.loads(call["function"]["arguments"])) == {"city", "days"}


def test_several_calls_where_they_are_allowed(serve: Callable[..., LiveServer]) -> None:
    server = serve(f"{CALL}\n{CALL}".replace('"Paris"', '"Paris", "days": 3'))
    assert len(answer(server, tool_choice="required")["message"]["tool_calls"]) == 2
    assert len(answer(server, tool_choice="required", parallel_tool_calls=False)["message"]["tool_calls"]) == 1


def test_a_required_call_that_is_cut_off_is_not_shown_as_text(serve: Callable[..., LiveServer]) -> None:
    server = serve(f"{CALL}\n{CALL}".replace('"Paris"', '"Paris", "days": 3'))
    whole = len(CALL) + len(', "days": 3')
    for max_tokens in (5, 14, whole + 4, whole + 14):
        choice = answer(server, tool_choice="required", max_tokens=max_tokens)
        assert choice["finish_reason"] == "length"
        assert not choice["message"]["content"]
        assert len(choice["message"].get("tool_calls", [])) == max_tokens // whole
        assert streamed(server, tool_choice="required", max_tokens=max_tokens)[0]["message"]["content"] == ""


def test_a_call_that_a_stop_string_cuts_is_not_to_be_made(serve: Callable[..., LiveServer]) -> None:
    server = serve(CALL)
    for choose in ("auto", {"type": "function", "function": {"name": "get_weather"}}):
        for stop in ("city", "Par", "argu"):
            choice = answer(server, tool_choice=choose, stop=[stop])
            assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
            assert streamed(server, tool_choice=choose, stop=[stop])[0]["finish_reason"] == "stop"
    message = server.post(
        "/v1/messages",
        {
            "max_tokens": 200,
            "messages": [{"role": "user", "content": "?"}],
            "tools": [{"name": "get_weather", "input_schema": {"type": "object"}}],
            "stop_sequences": ["Par"],
        },
    ).json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "Par")


def test_a_schema_beside_tools_allows_both(serve: Callable[..., LiveServer]) -> None:
    form = {
        "type": "json_schema",
        "json_schema": {
            "name": "x",
            "schema": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
        },
    }
    assert json.loads(answer(serve('{"a": true}'), response_format=form)["message"]["content"]) == {"a": True}
    called = answer(serve(CALL.replace('"Paris"', '"Paris", "days": 3')), response_format=form)
    assert called["message"]["tool_calls"][0]["function"]["name"] == "get_weather"


def test_choices_have_calls_of_their_own(serve: Callable[..., LiveServer]) -> None:
    response = serve().post(CHAT, body(tool_choice="required", n=3, seed=1)).json()
    ids = [call["id"] for choice in response["choices"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == len(ids) >= 3


@pytest.mark.parametrize(
    ("others", "param", "message"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "tools\\[0\\] must be"),
        ({"tools": [{"type": "web_search"}]}, "tools", "other kinds"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "same name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "letters, digits"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]}, "tools", "JSON schema"),
        ({"tools": "x"}, "tools", "list"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tool_choice": "always"}, "tool_choice", "must be"),
        ({"tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice", "not among tools"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format", "together"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs", "beside tools"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
                "tool_choice": "required",
            },
            "tools",
            "not supported: not",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"function": {"name": "f", "arguments": "{"}}],
                    }
                ]
            },
            "messages",
            "not valid JSON",
        ),
    ],
    ids=str,
)
def test_wrong_tools_are_refused_by_name(
    shared_server: LiveServer, others: dict[str, Any], param: str, message: str
) -> None:
    import re

    response = shared_server.post(CHAT, body(max_tokens=5) | others)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert re.search(message, error["message"]), error["message"]


def test_a_template_without_tools_is_told_of_them_in_words() -> None:
    told = tell_tools(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "a", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": "sunny"},
            {"role": "tool", "tool_call_id": "b", "content": "warm"},
            {"role": "user", "content": "And?"},
        ],
        [WEATHER],
    )
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert told[0]["content"].startswith("Be brief.\n\n")
    assert '"name": "get_weather"' in told[0]["content"]
    assert told[2]["content"] == '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    assert told[3]["content"] == (
        "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nwarm\n</tool_response>\nAnd?"
    )
    roles = [message["role"] for message in tell_tools([{"role": "user", "content": "x"}], [WEATHER])]
    assert roles == ["system", "user"]


def test_ids_are_what_strict_templates_take(serve: Callable[..., LiveServer]) -> None:
    calls = itertools.chain.from_iterable(answer(serve(CALL))["message"]["tool_calls"] for _ in range(2))
    assert all(len(call["id"]) == 9 and call["id"].isalnum() for call in calls)


def test_tools_whose_arguments_never_end_are_refused_by_name(shared_server: LiveServer) -> None:
    tool = {"type": "function", "function": {"name": "endless", "parameters": {"$ref": "#"}}}
    for choice in ("auto", "required", {"type": "function", "function": {"name": "endless"}}):
        answer = shared_server.post(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "tools": [tool], "tool_choice": choice},
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
        assert "endless" in answer.json()["error"]["message"]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}
    answer = shared_server.post("/v1/completions", {"prompt": "a", "response_format": form})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")
