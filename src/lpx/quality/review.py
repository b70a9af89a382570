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
from lpx.quality.answer_checks import Check, run_check, validate_check
from lpx.quality.answers import Message, Question, ask
from lpx.quality.intervals import share_interval
from lpx.regular_file import read_bounded

if TYPE_CHECKING:
    from lpx.engine.engine import Engine

_TOGETHER = 8
_MOST_BYTES = 64 << 20
_MOST_TOKENS = 100_000
_MOST_CHARACTERS = 4 << 20  # of a message
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
    items = []
    for number, line in enumerate(_text(path).split("\n"), start=1):  # other marks of lines may stand in JSON
        if not line.strip():
            continue
        try:
            items.append(_item(json.loads(line)))
        except RecursionError:
            raise InvalidRequestError(f"{path}, line {number}: it is nested too deep", param="review-set") from None
        except ValueError as error:
            raise InvalidRequestError(f"{path}, line {number}: {error}", param="review-set") from error
    if not items:
        raise InvalidRequestError(f"the review set {path} is empty", param="review-set")
    return items


def _text(path: Path) -> str:
    try:
        return read_bounded(path, _MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequestError(f"the review set {path} cannot be read: {reason}", param="review-set") from error


def _item(row: Any) -> ReviewItem:
    """Raises ValueError that says what is wrong with the line."""
    if not isinstance(row, dict) or set(row) != _FIELDS:
        raise ValueError(f"a line is an object with the fields {', '.join(sorted(_FIELDS))}")
    if not all(isinstance(row[name], str) and row[name] for name in ("id", "kind")):
        raise ValueError("id and kind must be texts")
    if not isinstance(row["messages"], list) or not row["messages"]:
        raise ValueError("messages must be a list with a message at least")
    most = row["max_tokens"]
    if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= _MOST_TOKENS:
        raise ValueError(f"max_tokens must be a whole number from 1 to {_MOST_TOKENS}")
    validate_check(row["check"])
    messages = tuple(_message(message) for message in row["messages"])
    return ReviewItem(row["id"], row["kind"], messages, most, row["check"])


def _message(message: Any) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
        raise ValueError("a message is an object with role and content")
    return {**message, "content": _spelled_out(message["content"])}


def _spelled_out(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content or not all(_is_part(part) for part in content):
        raise ValueError('the content of a message is a text, or a list of {"text": "…", "repeat": n}')
    length = sum(len(part["text"]) * part["repeat"] for part in content)
    if length > _MOST_CHARACTERS:
        raise ValueError(f"the content of a message has {length} characters; at most {_MOST_CHARACTERS} are taken")
    return "".join(part["text"] * part["repeat"] for part in content)


def _is_part(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and part.keys() == {"text", "repeat"}
        and isinstance(part["text"], str)
        and isinstance(part["repeat"], int)
        and part["repeat"] >= 0
    )


def run_review(
    engine: Engine, items: Sequence[ReviewItem], progress: Callable[[int, int], None] | None = None
) -> ReviewReport:
    """Greedy answers to all items, checked."""
    questions = [Question(item.messages, item.max_tokens) for item in items]
    told = None if progress is None else lambda done: progress(done, len(items))
    results = []
    for item, answer in zip(items, ask(engine, questions, together=_TOGETHER, progress=told), strict=True):
        prompt = "\n".join(str(message.get("content")) for message in item.messages)
        reason = run_check(item.check, answer, prompt)
        results.append(ReviewResult(item.id, item.kind, reason is None, reason, answer.text))
    return ReviewReport(tuple(results))
