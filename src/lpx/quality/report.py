"""An evaluation as rows that people read, and as a Markdown page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from lpx.plain_text import markdown_text
from lpx.quality.evaluation import EvalSettings, Evaluation, InUse, Side
from lpx.quality.gate import Verdict
from lpx.quality.review import PassRate
from lpx.quality.stability import Finding

Row = tuple[str, ...]

_MOST_TENSORS = 10  # faulty ones that are listed


def describe(in_use: InUse) -> str:
    """What really ran, as one line."""
    parts = [in_use.model, in_use.quantization, f"KV {in_use.kv_cache_dtype}"]
    if in_use.isa:
        parts.append(f"{in_use.device} {in_use.isa}, {in_use.threads} {'thread' if in_use.threads == 1 else 'threads'}")
    return " · ".join(part for part in parts if part)


def distribution_rows(evaluation: Evaluation) -> list[Row]:
    """(figure, value, 95 % interval or remark)."""
    rows: list[Row] = []
    if (perplexity := evaluation.perplexity) is not None:
        low, high = perplexity.interval
        rows.append(("perplexity", f"{perplexity.ppl:.4f}", f"{low:.3f} to {high:.3f}, {perplexity.scored} tokens"))
    if (found := evaluation.divergence) is not None:
        change = f"the subject's is {found.ppl_change:+.2%}"
        rows.append(("perplexity of the reference", f"{found.reference_ppl.ppl:.4f}", change))
        low, high = found.kl_interval
        rows.append(("mean KL, nats", f"{found.kl:.5f}", f"{low:.5f} to {high:.5f}, {found.positions} positions"))
        rows.append(("99th percentile of KL", f"{found.p99_kl:.4f}", f"median {found.median_kl:.5f}"))
        rows.append(("same likeliest token", f"{found.top1:.2%}", ""))
    return rows


def text_rows(evaluation: Evaluation) -> list[Row]:
    """(text, perplexity, mean KL, same likeliest token)."""
    found, perplexity = evaluation.divergence, evaluation.perplexity
    if perplexity is None:
        return []
    names = list(found.by_text) if found is not None else list(perplexity.by_text)
    rows: list[Row] = []
    for name in names:
        ppl = f"{perplexity.by_text[name]:.4f}" if name in perplexity.by_text else "-"
        if found is None:
            rows.append((name, ppl, "-", "-"))
        else:
            rows.append((name, ppl, f"{found.by_text[name].kl:.5f}", f"{found.by_text[name].top1:.2%}"))
    return rows


def weight_rows(evaluation: Evaluation) -> list[Row]:
    """(tensor, type, what is wrong) of the faulty ones, the first few."""
    if evaluation.weights is None:
        return []
    faulty = evaluation.weights.faulty
    rows: list[Row] = [(tensor.name, tensor.type, str(tensor.finding)) for tensor in faulty[:_MOST_TENSORS]]
    if len(faulty) > _MOST_TENSORS:
        rows.append((f"and {len(faulty) - _MOST_TENSORS} more", "", ""))
    return rows


def weights_summary(evaluation: Evaluation) -> str | None:
    """One line about all tensors; None where they were not to be compared."""
    if evaluation.same_weights:
        return "both run the same weights; only the KV types differ"
    if evaluation.weights is None:
        return None
    tensors, faulty = evaluation.weights.tensors, evaluation.weights.faulty
    error = max(tensor.relative_error for tensor in tensors)
    if faulty:
        return f"{len(faulty)} of {len(tensors)} tensors are faulty; largest relative error {error:.1%}"
    return f"{len(tensors)} tensors, all of the reference's size; largest relative error {error:.1%}"


def finding_rows(side: Side) -> list[Row]:
    """(kind, prompt, place) of each finding of stability."""
    return [] if side.stability is None else [(f.kind, f.prompt, f.place) for f in side.stability.findings]


def advice(findings: Sequence[Finding]) -> dict[str, str]:
    """What to do about each kind that was found."""
    return {finding.kind: finding.advice for finding in findings}


def review_rows(evaluation: Evaluation) -> list[Row]:
    """(kind, passed, 95 % interval, the reference's) of each kind and of all."""
    review = evaluation.subject.review
    if review is None:
        return []
    other = evaluation.reference.review if evaluation.reference is not None else None
    before = {**other.by_kind(), "all": other.rate} if other is not None else {}
    return [
        (kind, _rate(rate), "{:.0%} to {:.0%}".format(*rate.interval), _rate(before[kind]) if before else "-")
        for kind, rate in {**review.by_kind(), "all": review.rate}.items()
    ]


def changed_items(evaluation: Evaluation) -> list[Row]:
    """(item, change, reason) of the review's items that subject and reference end differently on."""
    review = evaluation.subject.review
    other = evaluation.reference.review if evaluation.reference is not None else None
    if review is None or other is None:
        return []
    return [
        (one.id, "better", f"the reference: {two.reason}") if one.passed else (one.id, "worse", str(one.reason))
        for one, two in zip(review.results, other.results, strict=True)
        if one.passed != two.passed
    ]


def markdown(settings: EvalSettings, evaluation: Evaluation, verdicts: Sequence[Verdict], made: datetime) -> str:
    """The whole report as a page."""
    parts = [f"# Quality of {markdown_text(evaluation.subject.in_use.model)}", ""]
    subject = describe(evaluation.subject.in_use)
    parts += [f"- subject: {markdown_text(subject)}, `{markdown_text(settings.subject.model)}`"]
    if evaluation.reference is not None and settings.reference is not None:
        reference = describe(evaluation.reference.in_use)
        parts += [f"- reference: {markdown_text(reference)}, `{markdown_text(settings.reference.model)}`"]
    parts += [f"- made: {made:%Y-%m-%d %H:%M} UTC", ""]
    if verdicts:
        parts += ["## Gate", "", *_table(("bound", "verdict", "what was found"), _verdict_rows(verdicts)), ""]
    if rows := distribution_rows(evaluation):
        texts = ", ".join(path.name for path in settings.texts) or "the bundled texts"
        said = f"{evaluation.windows} windows of at most {settings.window} tokens of {markdown_text(texts)}"
        said += "; weights as F16, so that only the KV types differ." if evaluation.dequantized else "."
        parts += ["## Distributions", "", said, "", *_table(("figure", "value", ""), rows), ""]
        parts += [*_table(("text", "perplexity", "mean KL", "same likeliest token"), text_rows(evaluation)), ""]
    if (summary := weights_summary(evaluation)) is not None:
        parts += ["## Weights", "", f"{summary[0].upper()}{summary[1:]}.", ""]
        if rows := weight_rows(evaluation):
            parts += [*_table(("tensor", "type", "finding"), rows), ""]
    if (stability := evaluation.subject.stability) is not None:
        parts += ["## Stability", "", f"{stability.prompts} prompts, {stability.runs} runs each at temperature 0.", ""]
        if rows := finding_rows(evaluation.subject):
            parts += [*_table(("finding", "prompt", "place"), rows), ""]
            parts += [*(f"- {kind}: {what}" for kind, what in advice(stability.findings).items()), ""]
        else:
            parts += ["Nothing was found.", ""]
    if rows := review_rows(evaluation):
        parts += ["## Review", "", *_table(("kind", "passed", "95 %", "reference"), rows), ""]
        if changed := changed_items(evaluation):
            parts += [*_table(("item", "against the reference", "reason"), changed), ""]
    return "\n".join(parts)


def _verdict_rows(verdicts: Sequence[Verdict]) -> list[Row]:
    return [(verdict.bound, verdict.outcome, verdict.said) for verdict in verdicts]


def _rate(rate: PassRate) -> str:
    return f"{rate.passed}/{rate.tries}"


def _table(head: Row, rows: Sequence[Row]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(markdown_text(cell) for cell in row)} |" for row in rows]
