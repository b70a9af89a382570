"""Whether answers are stable: each prompt several times, which at temperature 0 must give one text, without faults."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lpx.quality.answers import Answer, Question, ask
from lpx.quality.text_faults import FaultKind, find_faults

if TYPE_CHECKING:
    from lpx.engine.engine import Engine

FindingKind = FaultKind | Literal["different", "refused"]

DEFAULT_RUNS = 5
_TOGETHER = 8  # answers at once in all runs but the first
_SHOWN = 60  # characters of a prompt in a finding


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with the answer to one prompt."""

    kind: FindingKind
    prompt: str  # its beginning
    place: str
    advice: str


@dataclass(frozen=True, slots=True)
class StabilityReport:
    """All findings; faults of the text itself are those of the first run."""

    prompts: int
    runs: int
    findings: tuple[Finding, ...]

    def count(self, kind: FindingKind) -> int:
        return sum(finding.kind == kind for finding in self.findings)


def bundled_prompts() -> list[Question]:
    """Ten prompts in English and Chinese: facts, a story, a list, code, a translation, a table."""
    rows = json.loads((Path(__file__).parent / "prompts" / "stability.json").read_text(encoding="utf-8"))
    return [Question([{"role": "user", "content": row["prompt"]}], row["max_tokens"]) for row in rows]


def check_stability(
    engine: Engine,
    questions: Sequence[Question],
    runs: int = DEFAULT_RUNS,
    progress: Callable[[int, int], None] | None = None,
) -> StabilityReport:
    """Answer every question `runs` times at temperature 0: the first time alone, then in company, each run in another
    order, so that an answer that depends on its neighbours, on the prefix cache or on the order of threads shows.

    `progress(done, total)` counts answers.
    """
    total = runs * len(questions)

    def told(before: int) -> Callable[[int], None] | None:
        return None if progress is None else lambda done: progress(before + done, total)

    first = ask(engine, questions, together=1, progress=told(0))
    others: list[list[Answer]] = []
    for run in range(1, runs):
        order = [(at + run) % len(questions) for at in range(len(questions))]
        answers = ask(engine, [questions[at] for at in order], together=_TOGETHER, progress=told(run * len(questions)))
        by_question = dict(zip(order, answers, strict=True))
        others.append([by_question[at] for at in range(len(questions))])
    findings = []
    for at, question in enumerate(questions):
        prompt = str(question.messages[-1].get("content", ""))
        shown = prompt if len(prompt) <= _SHOWN else prompt[: _SHOWN - 1] + "…"
        if (reason := first[at].refused) is not None:
            findings.append(Finding("refused", shown, reason, "shorten the prompt, or check the chat template"))
            continue
        if (place := _first_difference(first[at], [run[at] for run in others])) is not None:
            findings.append(
                Finding("different", shown, place, "temperature 0 must repeat: report this with `lpx doctor` output")
            )
        findings += [Finding(f.kind, shown, f.place, f.advice) for f in find_faults(first[at], prompt)]
    return StabilityReport(len(questions), runs, tuple(findings))


def _first_difference(first: Answer, others: Sequence[Answer]) -> str | None:
    for run, other in enumerate(others, start=2):
        pairs = itertools.zip_longest(first.token_ids, other.token_ids)
        for token, (one, two) in enumerate(pairs):
            if one != two:
                return f"run {run} differs from run 1 at token {token}"
    return None
