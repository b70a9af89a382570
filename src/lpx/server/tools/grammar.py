"""The grammar of an answer that must call tools, or may do so beside a form of its text, perhaps after thoughts."""

from __future__ import annotations

import json
from typing import Any, Literal

from lpx.engine.structured.params import JSON_FORM, StructuredOutputsParams, close_objects, lark_string
from lpx.errors import InvalidRequestError
from lpx.server.reasoning import BEGIN, END
from lpx.server.tools.formats import HERMES_BEGIN, HERMES_END, MISTRAL_ARGUMENTS, MISTRAL_BEGIN, ToolFormat
from lpx.server.tools.request import MAX_CALLS, ToolChoice

Thoughts = Literal["none", "possible", "open"]
"""Whether thoughts come first: "open" when the prompt has begun them."""

_NEW_LINE = lark_string("\n")


def answer_grammar(
    form: StructuredOutputsParams | None,
    choice: ToolChoice | None,
    tool_format: ToolFormat,
    thoughts: Thoughts,
    marker_ids: dict[str, int],
) -> StructuredOutputsParams | None:
    """What the text must keep to; None when it may be anything.

    `marker_ids`: ids of those marks of the formats that the model has as control tokens. Raises `InvalidRequestError`
    for a form that tools or thoughts cannot stand beside.
    """
    must_call = choice is not None and choice.mode == "required"
    if form is None and not must_call:
        return None
    if form is not None and must_call:
        raise InvalidRequestError(
            f"{form.param} cannot be had together with a tool_choice that wants a call.", param=form.param
        )
    if form is not None and choice is None and (thoughts == "none" or form.kind not in ("json", "lark")):
        return form
    rules: list[str] = []
    answers: list[str] = []
    if form is not None:
        answers.append("answer")
        rules += _form_rules(form)
    if choice is not None:
        answers.append("calls")
        rules += _call_rules(choice, tool_format, marker_ids)
    start = " | ".join(answers)
    if thoughts != "none" and not marker_ids.keys() & {BEGIN, END}:
        begun = "" if thoughts == "open" else f"{lark_string(BEGIN)} "
        rules += [
            f"thoughts: {begun}thinking /[ \\n]{{0,4}}/",
            f"thinking[lazy]: /(.|\\n)*{END.replace('/', chr(92) + '/')}/",
        ]
        start = f"{'thoughts' if thoughts == 'open' else 'thoughts?'} ({start})"
    return StructuredOutputsParams(
        lark="\n".join([f"start: {start}", *rules]), param="tools" if form is None else form.param
    )


def _form_rules(form: StructuredOutputsParams) -> list[str]:
    if form.kind == "json":
        return [f"answer: {_json_rule(json.loads(form.text))}"]
    if form.kind == "lark" and form.choice is not None:
        return [form.text.replace("start:", "answer:", 1)]
    raise InvalidRequestError(
        f"{form.param} can stand beside tools as a JSON schema or a choice only.", param=form.param
    )


def _call_rules(choice: ToolChoice, tool_format: ToolFormat, marker_ids: dict[str, int]) -> list[str]:
    def mark(text: str) -> str:
        return f"<[{marker_ids[text]}]>" if text in marker_ids else lark_string(text)

    names = choice.callable_names

    def repeated(call: str, separator: str) -> str:
        return f"{call} ({separator} {call}){{0,{MAX_CALLS - 1}}}" if choice.parallel else call

    rules = [f"call: {' | '.join(f'call{i}' for i in range(len(names)))}"]
    key = "parameters" if tool_format == "llama3" else "arguments"
    if tool_format == "mistral_named":
        rules.insert(0, f"calls: call{{1,{MAX_CALLS if choice.parallel else 1}}}")
        for i, name in enumerate(names):
            arguments = _json_rule(choice.parameters_of(name))
            rules.append(f"arguments{i}: {arguments}")
            head = f"{mark(MISTRAL_BEGIN)} {lark_string(name)} {mark(MISTRAL_ARGUMENTS)}"
            rules.append(f"call{i}: {head} arguments{i}")
        return rules
    for i, name in enumerate(names):
        # Arguments are a rule of their own, so that references in their schema start at its root.
        rules.append(f"arguments{i}: {_json_rule(choice.parameters_of(name))}")
        head = lark_string(f'{{"name": {json.dumps(name)}, "{key}": ')
        rules.append(f"call{i}: {head} arguments{i} {lark_string('}')}")
    if tool_format == "hermes":
        begin, end = f"{mark(HERMES_BEGIN)} {_NEW_LINE}", f"{_NEW_LINE} {mark(HERMES_END)}"
        rules.insert(0, f"calls: {repeated('tagged', _NEW_LINE)}")
        rules.append(f"tagged: {begin} call {end}")
    elif tool_format == "llama3":
        rules.insert(0, f"calls: {repeated('call', lark_string('; '))}")
    else:
        listed = repeated("call", lark_string(", "))
        rules.insert(0, f'calls: {mark(MISTRAL_BEGIN)} " "? "[" {listed} "]"')
    return rules


def _json_rule(schema: Any) -> str:
    if not isinstance(schema, dict):
        schema = {} if schema else {"not": {}}
    text = json.dumps({"x-guidance": JSON_FORM, **close_objects(schema)}, ensure_ascii=False)
    return f"%json {text}"
