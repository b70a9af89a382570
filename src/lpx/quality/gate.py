"""The gate: bounds that an evaluation must keep, and what it says to each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from lpx.errors import ConfigError
from lpx.quality.evaluation import CheckName, EvalSettings, Evaluation

Outcome = Literal["passed", "failed", "unknown"]

DEFAULT_BOUNDS = ("kl:0.01", "weights", "stability")
_TEXT = re.compile(r"([a-z_0-9]+)(?::([+-]?)(\d+(?:\.\d+)?)(%?))?", re.ASCII)
_USES: dict[str, CheckName] = {
    "kl": "distributions",
    "p99_kl": "distributions",
    "top1": "distributions",
    "ppl": "distributions",
    "weights": "weights",
    "stability": "stability",
    "review": "review",
}
_MORE_LOOPS = 0.2  # of the prompts: greedy answers of small models fall into a loop by a hair, or stay out of it
_HOW = "kl:0.01, p99_kl:0.1, top1:0.98, ppl:+1%, ppl:15, weights, stability, review:-5%, review:60%"


@dataclass(frozen=True, slots=True)
class Bound:
    """One condition: `kl:0.01`."""

    text: str
    figure: str
    limit: float = 0.0  # shares as such: 5 % is 0.05
    relative: bool = False  # to the reference

    @property
    def check(self) -> CheckName:
        return _USES[self.figure]

    @property
    def needs_reference(self) -> bool:
        return self.relative or self.figure in ("kl", "p99_kl", "top1", "weights")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the evaluation says to a bound, with the figure."""

    bound: str
    outcome: Outcome
    said: str


def parse_bounds(texts: Sequence[str]) -> list[Bound]:
    """Bounds as `--gate` takes them, several in one text with commas between. Raises ConfigError with all forms."""
    return [_parse(part.strip()) for text in texts for part in text.split(",") if part.strip()]


def _parse(text: str) -> Bound:
    match = _TEXT.fullmatch(text)
    figure, sign, number, percent = match.groups() if match else (None, None, None, None)
    wrong = ConfigError(f"the bound {text!r} is not known; write one such as {_HOW}")
    if figure not in _USES or (number is None) != (figure in ("weights", "stability")):
        raise wrong
    if number is None:
        return Bound(text, figure)
    limit = float(number) / (100 if percent else 1)
    relative = bool(sign)
    allowed = {"ppl": ("+", ""), "review": ("-", "")}.get(figure, ("",))
    if sign not in allowed or (relative and not percent):
        raise wrong
    if figure in ("top1", "review") and limit > 1:
        raise ConfigError(f"the bound {text!r} is a share: it must be at most 1, or 100%")
    return Bound(text, figure, limit, relative)


def check_bounds(bounds: Sequence[Bound], settings: EvalSettings) -> None:
    """Raise ConfigError for bounds that an evaluation with these settings cannot judge, before it is made."""
    for bound in bounds:
        if bound.needs_reference and settings.reference is None:
            raise ConfigError(
                f"the bound {bound.text!r} needs a reference: name one by --reference, such as the unquantized file"
            )
        if bound.check not in settings.checks:
            raise ConfigError(f"the bound {bound.text!r} needs the check {bound.check!r}: name it in --checks")


def judge(evaluation: Evaluation, bounds: Sequence[Bound]) -> list[Verdict]:
    """One verdict a bound, in their order. Prints and raises nothing."""
    return [Verdict(bound.text, *_JUDGES[bound.figure](evaluation, bound)) for bound in bounds]


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """0: all passed; 1: one failed; 2: none failed, and one could not be judged."""
    outcomes = {verdict.outcome for verdict in verdicts}
    return 1 if "failed" in outcomes else 2 if "unknown" in outcomes else 0


_Judged = tuple[Outcome, str]


def _at_most(value: float, limit: float, said: str) -> _Judged:
    return ("passed" if value <= limit else "failed"), said  # what is not a number fails


def _divergence(evaluation: Evaluation, bound: Bound) -> _Judged:
    found = evaluation.divergence
    if found is None:
        return "unknown", "distributions were not compared"
    if bound.figure == "kl":
        low, high = found.kl_interval
        return _at_most(found.kl, bound.limit, f"mean KL {found.kl:.5f} nats ({low:.5f} to {high:.5f})")
    if bound.figure == "p99_kl":
        return _at_most(found.p99_kl, bound.limit, f"99th percentile of KL {found.p99_kl:.4f} nats")
    return _at_most(-found.top1, -bound.limit, f"the same likeliest token at {found.top1:.2%} of positions")


def _perplexity(evaluation: Evaluation, bound: Bound) -> _Judged:
    if bound.relative:
        if evaluation.divergence is None:
            return "unknown", "distributions were not compared"
        change = evaluation.divergence.ppl_change
        return _at_most(change, bound.limit, f"perplexity {change:+.2%} against the reference")
    if evaluation.perplexity is None:
        return "unknown", "perplexity was not measured"
    return _at_most(evaluation.perplexity.ppl, bound.limit, f"perplexity {evaluation.perplexity.ppl:.4f}")


def _weights(evaluation: Evaluation, bound: Bound) -> _Judged:
    if evaluation.same_weights:
        return "passed", "both run the same weights"
    if evaluation.weights is None:
        return "unknown", "weights were not compared"
    faulty = evaluation.weights.faulty
    count = len(evaluation.weights.tensors)
    if not faulty:
        return "passed", f"all {count} tensors have the size of the reference's"
    return "failed", f"{len(faulty)} of {count} tensors, the first is {faulty[0].name}: {faulty[0].finding}"


def _stability(evaluation: Evaluation, bound: Bound) -> _Judged:
    """No unequal, garbled, empty or refused answer; loops about as rare as the reference's."""
    found = evaluation.subject.stability
    other = evaluation.reference.stability if evaluation.reference is not None else None
    if found is None:
        return "unknown", "stability was not checked"
    hard = [f for f in found.findings if f.kind in ("different", "garbled", "empty", "refused")]
    if hard:
        return "failed", f"{len(hard)} findings, the first is {hard[0].kind}: {hard[0].prompt!r}, {hard[0].place}"
    said = f"{found.prompts} prompts, {found.runs} runs each, all the same"
    if other is not None:
        now, before = found.count("repetition"), other.count("repetition")
        if now - before > _MORE_LOOPS * found.prompts:
            return "failed", f"{now} answers with loops, {before} of the reference's"
        if now > before:
            said += f"; {now} with loops, {before} of the reference's, which chance may make of so few"
    return "passed", said


def _review(evaluation: Evaluation, bound: Bound) -> _Judged:
    review = evaluation.subject.review
    if review is None:
        return "unknown", "the review was not made"
    rate = review.rate
    said = f"{rate.passed} of {rate.tries} items pass ({rate.share:.1%})"
    if not bound.relative:
        return _at_most(-rate.share, -bound.limit, said)
    other = evaluation.reference.review if evaluation.reference is not None else None
    if other is None:
        return "unknown", "there is no review of the reference"
    before = other.rate
    # A hair of room: 3 of 60 are 5 points, whatever the last bit of the division says.
    return _at_most(before.share - rate.share, bound.limit + 1e-9, f"{said}, {before.passed} of the reference's")


_JUDGES: dict[str, Callable[[Evaluation, Bound], _Judged]] = {
    "kl": _divergence,
    "p99_kl": _divergence,
    "top1": _divergence,
    "ppl": _perplexity,
    "weights": _weights,
    "stability": _stability,
    "review": _review,
}
