"""A review over many kinds of input, each answer scored by a simple check: for comparing configurations, not models.

Small models fail many of them. What counts is which a configuration fails that its reference passes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpx.errors import InvalidRequestError
from lpx.quality.answer_checks import Check, run_check
from lpx.quality.answers import Message, Question, ask
from lpx.quality.intervals import share_interval

if TYPE_CHECKING:
    from lpx.engine.engine import Engine

_TOGETHER = 8
_FIELDS = {"id", "kind", "messages", "max_tokens", "check"}


@dataclass(frozen=True, slots=True)
class ReviewItem:
    """One conversation and what its answer must be like."""

    id: str
    kind: str
    messages: tuple[Message, ...]
    max_tokens: int
    check: Check


@dataclass(frozen=True, slots=True)
class ReviewResult:
    id: str
    kind: str
    passed: bool
    reason: str | None  # why not
    answer: str


@dataclass(frozen=True, slots=True)
class PassRate:
    passed: int
    tries: int

    @property
    def share(self) -> float:
        return self.passed / self.tries if self.tries else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, Wilson's."""
        return share_interval(self.passed, self.tries)


@dataclass(frozen=True, slots=True)
class ReviewReport:
    results: tuple[ReviewResult, ...]

    @property
    def rate(self) -> PassRate:
        return PassRate(sum(result.passed for result in self.results), len(self.results))

    def by_kind(self) -> dict[str, PassRate]:
        kinds = dict.fromkeys(result.kind for result in self.results)
        return {kind: ReviewReport(tuple(r for r in self.results if r.kind == kind)).rate for kind in kinds}


def bundled_review() -> list[ReviewItem]:
    """The set of the package: format, arithmetic, JSON, long input, several turns, Chinese, code, facts, odd input."""
    return read_review(Path(__file__).parent / "prompts" / "review.jsonl")


def read_review(path: Path) -> list[ReviewItem]:
    """A JSONL file with `id`, `kind`, `messages`, `max_tokens` and `check` in each line.

    Raises InvalidRequestError that names file and line. Of a message's content, `{"text": "…", "repeat": n}` stands for
    the text n times, so that long input need not be written out.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise InvalidRequestError(f"the review set {path} cannot be read: {error}", param="review-set") from error
    items = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or set(row) != _FIELDS:
                raise ValueError(f"a line needs the fields {', '.join(sorted(_FIELDS))}")
            messages = tuple({**message, "content": _spelled_out(message["content"])} for message in row["messages"])
            item = ReviewItem(str(row["id"]), str(row["kind"]), messages, int(row["max_tokens"]), row["check"])
            if not messages or item.max_tokens < 1 or not isinstance(item.check, dict):
                raise ValueError("messages must not be empty, max_tokens at least 1, and check an object")
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidRequestError(f"{path}, line {number}: {error}", param="review-set") from error
        items.append(item)
    if not items:
        raise InvalidRequestError(f"the review set {path} is empty", param="review-set")
    return items


def _spelled_out(content: Any) -> Any:
    if isinstance(content, list) and content and all(isinstance(part, dict) and "repeat" in part for part in content):
        return "".join(part["text"] * part["repeat"] for part in content)
    return content


def run_review(
    engine: Engine, items: Sequence[ReviewItem], progress: Callable[[int, int], None] | None = None
) -> ReviewReport:
    """Greedy answers to all items, checked. Raises InvalidRequestError for an unknown check."""
    questions = [Question(item.messages, item.max_tokens) for item in items]
    told = None if progress is None else lambda done: progress(done, len(items))
    results = []
    for item, answer in zip(items, ask(engine, questions, together=_TOGETHER, progress=told), strict=True):
        prompt = "\n".join(str(message.get("content")) for message in item.messages)
        try:
            reason = run_check(item.check, answer, prompt)
        except (ValueError, TypeError) as error:
            raise InvalidRequestError(f"review item {item.id}: {error}", param="review-set") from error
        results.append(ReviewResult(item.id, item.kind, reason is None, reason, answer.text))
    return ReviewReport(tuple(results))
