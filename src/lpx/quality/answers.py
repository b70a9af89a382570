"""Answers of a loaded engine to conversations, in the model's own chat format where it has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lpx.errors import InvalidRequestError

if TYPE_CHECKING:
    from lpx.engine.engine import Engine
    from lpx.engine.sampling_params import SamplingParams

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, or why there is none."""

    text: str  # without thoughts
    token_ids: tuple[int, ...]
    finish_reason: str  # "stop", "length", or "refused"
    refused: str | None = None  # what the template or the engine said


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation that wants an answer."""

    messages: Sequence[Message]
    max_tokens: int


def ask(
    engine: Engine,
    questions: Sequence[Question],
    *,
    together: int,
    progress: Callable[[int], None] | None = None,
) -> list[Answer]:
    """Greedy answers in the order of the questions, `together` of which run at once; `progress` gets answers so far.

    A conversation that the template refuses, or that does not fit the context, is answered by that. A model without a
    template continues the messages' texts.
    """
    from lpx.engine.llm import LLM
    from lpx.engine.sampling_params import SamplingParams

    llm = LLM.from_engine(engine)
    answers: list[Answer | None] = [None] * len(questions)
    pending: list[tuple[int, list[int], SamplingParams]] = []
    for at, question in enumerate(questions):
        params = SamplingParams(temperature=0.0, max_tokens=question.max_tokens)
        try:
            ids = _encode(engine, question.messages)
            engine.validate(ids, params)
        except InvalidRequestError as error:
            answers[at] = Answer("", (), "refused", str(error))
        else:
            pending.append((at, ids, params))
    done = len(questions) - len(pending)
    for start in range(0, len(pending), together):
        group = pending[start : start + together]
        outputs = llm.generate([ids for _, ids, _ in group], [params for _, _, params in group], use_tqdm=False)
        for (at, _, _), output in zip(group, outputs, strict=True):
            choice = output.outputs[0]
            answers[at] = Answer(_visible(choice.text), tuple(choice.token_ids), str(choice.finish_reason))
        done += len(group)
        if progress is not None:
            progress(done)
    return [answer for answer in answers if answer is not None]


def _encode(engine: Engine, messages: Sequence[Message]) -> list[int]:
    if engine.chat_template is None:
        return engine.encode_prompt("\n\n".join(str(message["content"]) for message in messages) + "\n\n")
    # Models that can think answer the short questions here better without; templates that know no such switch skip it.
    return engine.encode_chat(list(messages), chat_template_kwargs={"enable_thinking": False})


def _visible(text: str) -> str:
    """What stands behind the thoughts of a model that thinks all the same."""
    return text.rpartition("</think>")[2] if "</think>" in text else text
