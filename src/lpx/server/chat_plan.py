"""How a conversation is put to the model, and how its answer is read, whichever protocol it came by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lpx.engine.sampling_params import SamplingParams
from lpx.errors import InvalidRequestError
from lpx.server.answer_reader import AnswerReader
from lpx.server.reasoning import BEGIN, END, ReasoningSplitter, begins_inside
from lpx.server.tools.formats import (
    HERMES_BEGIN,
    HERMES_END,
    MISTRAL_ARGUMENTS,
    MISTRAL_BEGIN,
    ToolFormat,
    format_of_template,
    make_parser,
    shows_marks,
)
from lpx.server.tools.grammar import Thoughts, answer_grammar
from lpx.server.tools.prompt import tell_tools
from lpx.server.tools.request import ToolChoice

if TYPE_CHECKING:
    from lpx.model.tokenizer import Tokenizer

_MARKS = (HERMES_BEGIN, HERMES_END, MISTRAL_BEGIN, MISTRAL_ARGUMENTS, BEGIN, END)
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """Made by `plan_chat`. Render `messages`, `tools` and `template_kwargs`; the rest needs the prompt's ids."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None  # for the template
    template_kwargs: dict[str, Any] | None
    choice: ToolChoice | None
    tool_format: ToolFormat
    splits_reasoning: bool
    knows_reasoning: bool  # the template speaks of thoughts

    def sampling_params(self, params: SamplingParams, prompt: Sequence[int], tokenizer: Tokenizer) -> SamplingParams:
        """`params` with the grammar and the marks that tools and thoughts need. Raises `InvalidRequestError`."""
        if self.choice is None and (params.structured_outputs is None or not self.splits_reasoning):
            return params
        thoughts: Thoughts = "none"
        if self.splits_reasoning:
            inside = begins_inside(prompt, tokenizer)
            thoughts = "open" if inside else "possible" if self.knows_reasoning else "none"
        ids = _control_ids(tokenizer)
        form = answer_grammar(params.structured_outputs, self.choice, self.tool_format, thoughts, ids)
        shown = self.choice is not None and (shows_marks(self.tool_format) or HERMES_BEGIN in ids)
        return replace(
            params,
            structured_outputs=form,
            skip_special_tokens=params.skip_special_tokens and not shown,
        )

    def reader(self, prompt: Sequence[int], tokenizer: Tokenizer) -> AnswerReader | None:
        """Reads one choice; None where its text is shown as it is."""
        if self.choice is None and not self.splits_reasoning:
            return None
        splitter = None
        if self.splits_reasoning:
            splitter = ReasoningSplitter(inside=begins_inside(prompt, tokenizer))
        if self.choice is None:
            return AnswerReader(splitter, None)
        parser = make_parser(self.tool_format, self.choice.names)
        return AnswerReader(splitter, parser, calls_only=self.choice.mode == "required")


def plan_chat(
    messages: list[dict[str, Any]],
    *,
    template_source: str | None,
    choice: ToolChoice | None = None,
    splits_reasoning: bool = False,
    reasoning_effort: str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> ChatPlan:
    """Raises `InvalidRequestError` for an effort that the template cannot be told."""
    source = template_source or ""
    tool_format = format_of_template(template_source)
    tools = None if choice is None else list(choice.tools)
    if tool_format is None and (tools or any(_speaks_of_tools(message) for message in messages)):
        messages, tools = tell_tools(messages, tools or ()), None
    flags = dict(template_kwargs or {})
    if reasoning_effort is not None:
        flags = {**_effort_flags(reasoning_effort, source), **flags}
    return ChatPlan(
        messages=messages,
        tools=tools,
        template_kwargs=flags or None,
        choice=choice,
        tool_format=tool_format or "hermes",
        splits_reasoning=splits_reasoning,
        knows_reasoning=BEGIN in source,
    )


def _speaks_of_tools(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "tool" or bool(message.get("tool_calls"))


def _effort_flags(effort: str, source: str) -> dict[str, Any]:
    name = "reasoning_effort"
    if effort not in _EFFORTS:
        raise InvalidRequestError(f"{name} must be one of {', '.join(_EFFORTS)}.", param=name)
    flags: dict[str, Any] = {}
    if name in source:
        flags[name] = effort
    if "enable_thinking" in source:
        flags["enable_thinking"] = effort != "none"
    if not flags:
        raise InvalidRequestError(
            f"{name}: this model's chat template has no such setting; leave the field out.",
            param=name,
            code="unsupported_parameter",
        )
    return flags


def _control_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Ids of the marks that are control tokens of the model."""
    found = {mark: tokenizer.split_markers(mark) for mark in _MARKS}
    return {mark: ids[0] for mark, ids in found.items() if len(ids) == 1 and isinstance(ids[0], int)}
