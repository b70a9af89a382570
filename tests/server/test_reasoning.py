"""Thoughts between `<think>` and `</think>`, split off on request."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.errors import InvalidRequestError
from lpx.server.chat_plan import plan_chat
from lpx.server.reasoning import Reasoning, ReasoningSplitter
from tests.engine.fake_executor import FakeExecutor
from tests.server.live_server import LiveServer
from tests.server.scripted import says

CHAT = "/v1/chat/completions"
SPLIT: list[tuple[bool, str, str, str]] = [
    (False, "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
    (False, "  <think>Hm.</think>Yes.", "Hm.", "Yes."),
    (False, "<think>\n\n</think>\n\nYes.", "", "Yes."),
    (False, "Yes. <think>no</think>", "", "Yes. <think>no</think>"),
    (False, "<think>never ends\n", "never ends", ""),
    (False, "<thin", "", "<thin"),
    (False, " \n", "", " \n"),
    (True, "Hm. a < b </thinking </think> Yes.\n", "Hm. a < b </thinking", "Yes.\n"),
    (True, "only thoughts </th", "only thoughts </th", ""),
]


def split(inside: bool, parts: list[str]) -> tuple[str, str]:
    splitter = ReasoningSplitter(inside=inside)
    pieces = [piece for part in parts for piece in splitter.feed(part)] + splitter.finish()
    thoughts = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    return thoughts, "".join(piece for piece in pieces if isinstance(piece, str))


@pytest.mark.parametrize(("inside", "text", "thoughts", "answer"), SPLIT)
def test_thoughts_and_answer_come_apart(inside: bool, text: str, thoughts: str, answer: str) -> None:
    assert split(inside, [text]) == (thoughts, answer)
    assert split(inside, list(text)) == (thoughts, answer)


@given(data=st.data())
def test_the_cut_of_the_text_changes_nothing(data: st.DataObject) -> None:
    words = ["<think>", "</think>", "<", "/", "think>", "\n", " ", "a", "é", "</"]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=10)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    inside = data.draw(st.booleans())
    parts = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    assert split(inside, parts) == split(inside, [text])


@pytest.fixture
def serve(start_server: Callable[..., LiveServer]) -> Callable[[str], LiveServer]:
    def start(text: str) -> LiveServer:
        return start_server(FakeExecutor(num_blocks=512, block_size=4, choose=says(text)), max_model_len=512)

    return start


def body(**others: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "?"}], "max_tokens": 100, **others}


@pytest.mark.parametrize(
    "others", [{"reasoning_format": "deepseek"}, {"reasoning_format": "auto"}, {"separate_reasoning": True}], ids=str
)
def test_thoughts_are_split_off_on_request(serve: Callable[[str], LiveServer], others: dict[str, Any]) -> None:
    server = serve("<think>\nHm.\n</think>\n\nYes.")
    message = server.post(CHAT, body(**others)).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes.", "refusal": None, "reasoning_content": "Hm."}
    deltas = [chunk["choices"][0]["delta"] for chunk in server.events(CHAT, body(**others))[:-1]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."


@pytest.mark.parametrize("others", [{}, {"reasoning_format": "none"}, {"separate_reasoning": False}], ids=str)
def test_thoughts_stay_where_nobody_asked(serve: Callable[[str], LiveServer], others: dict[str, Any]) -> None:
    message = serve("<think>Hm.</think>Yes.").post(CHAT, body(**others)).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "<think>Hm.</think>Yes.", "refusal": None}


def test_a_prompt_that_opens_the_thoughts_is_noticed(serve: Callable[[str], LiveServer]) -> None:
    server = serve("Hm.</think>Yes.")
    messages = [{"role": "assistant", "content": "<think>"}]  # the template writes a line end behind it
    wanted = body(messages=messages, add_generation_prompt=False, reasoning_format="auto")
    # The fake model answers behind "assistant: <think>\n", of which it takes eight characters as said already.
    message = server.post(CHAT, wanted).json()["choices"][0]["message"]
    assert "</think>" not in message["content"]
    assert message["reasoning_content"] or message["content"]


def test_a_form_holds_behind_the_thoughts(start_server: Callable[..., LiveServer]) -> None:
    class ThinkingTemplate:
        source = "{{ messages }} <think>"

        def encode(self, messages: list[dict[str, str]], **_: object) -> list[int]:
            return list(b"assistant: ")

    text = '<think>{"a": no}</think>\n{"a": true} and more'
    server = start_server(FakeExecutor(num_blocks=512, block_size=4, choose=says(text)), max_model_len=512)
    server.engine._engine.chat_template = ThinkingTemplate()  # type: ignore[union-attr]
    form = {
        "type": "json_object",
        "schema": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
    }
    message = server.post(CHAT, body(response_format=form, reasoning_format="auto")).json()["choices"][0]["message"]
    assert message["reasoning_content"] == '{"a": no}'
    assert json.loads(message["content"]) == {"a": True}


def test_an_effort_is_told_to_templates_that_know_it() -> None:
    def flags(source: str, effort: str, **given: Any) -> dict[str, Any] | None:
        plan = plan_chat([], template_source=source, reasoning_effort=effort, template_kwargs=given)
        return plan.template_kwargs

    assert flags("{% if enable_thinking %}", "none") == {"enable_thinking": False}
    assert flags("{% if enable_thinking %}", "high") == {"enable_thinking": True}
    assert flags("{{ reasoning_effort }}", "low") == {"reasoning_effort": "low"}
    assert flags("{{ enable_thinking }}", "low", enable_thinking=False) == {"enable_thinking": False}
    for source, effort in (("{{ messages }}", "low"), ("{{ reasoning_effort }}", "much")):
        with pytest.raises(InvalidRequestError) as caught:
            flags(source, effort)
        assert caught.value.param == "reasoning_effort"
