"""What a gate found, as Markdown of 80 columns for people and as JSON values for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from lpx.bench.gate.adjusted import Comparison
from lpx.bench.gate.conditions import is_speed, short_name
from lpx.bench.gate.gate import GateReport
from lpx.bench.gate.trial import Decision, Outcome
from lpx.bench.measurement import Subject
from lpx.bench.statistics import Interval
from lpx.bench.weather import MUCH_OTHERS
from lpx.plain_text import markdown_text

_HEADLINES = {
    Outcome.PASSED: "passed",
    Outcome.FAILED: "failed: slower than allowed",
    Outcome.UNDECIDED: "cannot judge",
}
_WIDTH = 80
# Units of tokens a second, and decimals of percents: the first with which the table is no wider than `_WIDTH`.
_STYLES = ((" tokens/s", 1), (" tok/s", 1), ("/s", 1), ("/s", 0))
_VERDICTS = {Outcome.PASSED: "ok", Outcome.FAILED: "**worse**", Outcome.UNDECIDED: "undecided"}


def change_of(comparison: Comparison, figure: str) -> Interval:
    """The change of the figure itself, in the same weather: -0.08 is 8 % less of it."""
    if is_speed(figure):
        return comparison.ratio.scaled(lambda ratio: ratio - 1)
    return comparison.ratio.scaled(lambda ratio: 1 / ratio - 1 if ratio > 0 else float("inf"))


def gate_markdown(report: GateReport) -> str:
    """A heading, a table with a line for each condition, and what one should know about it.

    Lines have 80 columns at most, but for a word that is longer than that.
    """
    adjusted = any(None not in each.comparison.weather for each in report.decisions if each.comparison)
    lines = [
        f"## LPX gate: {_HEADLINES[report.outcome]}",
        "",
        *_lines(f"Against {markdown_text(report.against)}: {markdown_text(_described(report.after))}."),
        "",
        f"| fail on | before | now | {'change, same weather' if adjusted else 'change'} | |",
        "|---|--:|--:|--:|---|",
        *_rows(report),
        "",
    ]
    notes = [*report.reasons, *(f"{difference}" for difference in report.differences), *_weather_notes(report)]
    if report.others_share is not None and report.others_share > MUCH_OTHERS:
        notes.append(f"Other programs used {100 * report.others_share:.0f} % of the processors: figures say little.")
    sessions = [each.comparison.sessions for each in report.decisions if each.comparison is not None]
    confidence = [each.comparison.ratio.confidence for each in report.decisions if each.comparison is not None]
    if sessions:
        notes.append(
            f"{sessions[0][1]} sessions in {report.seconds:.0f} s. In brackets: where the true change lies in "
            f"{100 * confidence[0]:.0f} of 100 cases."
        )
    lines += [line for note in notes for line in _lines(markdown_text(note), "- ")]
    return "\n".join(lines) + "\n"


def gate_json(report: GateReport, run_id: int | None) -> dict[str, Any]:
    return {
        "outcome": report.outcome.name.lower(),
        "exit_code": report.outcome.value,
        "against": report.against,
        "before": asdict(report.before),
        "after": asdict(report.after),
        "conditions": [_condition_json(decision) for decision in report.decisions],
        "reasons": list(report.reasons),
        "differences": [
            {"facet": each.facet, "what": each.what, "before": each.before, "after": each.after}
            for each in report.differences
        ],
        "seconds": report.seconds,
        "most_seconds": report.most_seconds,
        "others_share": report.others_share,
        "run": run_id,
    }


def _condition_json(decision: Decision) -> dict[str, Any]:
    condition, comparison = decision.condition, decision.comparison
    values: dict[str, Any] = {
        "name": condition.name,
        "figure": condition.figure,
        "allowed": -condition.worse_by if is_speed(condition.figure) else condition.worse_by,
        "outcome": decision.outcome.name.lower(),
    }
    if comparison is not None:
        change = change_of(comparison, condition.figure)
        values |= {
            "before": comparison.before,
            "now": comparison.after,
            "change": change.estimate,
            "change_low": _finite(change.low),
            "change_high": _finite(change.high),
            "confidence": change.confidence,
            "sessions": list(comparison.sessions),
            **_memory_share_json(comparison.memory_share),
            "weather_hides_it": comparison.weather_hides_it,
            "weather": [None if look is None else asdict(look) for look in comparison.weather],
        }
    return values


def _memory_share_json(share: Interval | None) -> dict[str, Any]:
    names = ("memory_share", "memory_share_low", "memory_share_high")
    values = (None, None, None) if share is None else (share.estimate, share.low, share.high)
    return dict(zip(names, values, strict=True))


def _lines(text: str, mark: str = "") -> Iterator[str]:
    """`text` behind `mark`, in lines that end at spaces; a longer path or address stays whole, for it to be copied."""
    from rich.cells import cell_len

    first, *words = text.split(" ")
    line = mark + first
    for word in words:
        if cell_len(line) + 1 + cell_len(word) > _WIDTH:
            yield line
            line = " " * len(mark) + word
        else:
            line += f" {word}"
    yield line


def _rows(report: GateReport) -> list[str]:
    from rich.cells import cell_len

    rows: list[str] = []
    for unit, decimals in _STYLES:
        rows = [_row(decision, unit, decimals) for decision in report.decisions]
        if all(cell_len(row) <= _WIDTH for row in rows):
            break
    return rows


def _row(decision: Decision, unit: str, decimals: int) -> str:
    condition, comparison = decision.condition, decision.comparison
    cells = [f"{short_name(condition.figure)}:{condition.allowed.replace(' ', '')}"]
    if comparison is None:
        cells += ["", "", ""]
    else:
        change = change_of(comparison, condition.figure)
        low, high = (_percent(bound, decimals).removesuffix(" %") for bound in (change.low, change.high))
        cells += [
            _amount(comparison.before, condition.figure, unit),
            _amount(comparison.after, condition.figure, unit),
            f"{_percent(change.estimate, decimals)} ({low} to {high})",
        ]
    return f"| {' | '.join([*map(markdown_text, cells), _VERDICTS[decision.outcome]])} |"


def _weather_notes(report: GateReport) -> list[str]:
    for each in report.decisions:
        if each.comparison is None:
            continue
        before, after = each.comparison.weather
        if before is None or after is None:
            if report.others_share is not None:  # a baseline; sides in alternation have the same weather
                return [
                    "The server is on another machine, which cannot be looked at: figures are compared as measured."
                ]
            continue
        read, multiply = (
            f"{100 * (now / then - 1):+.0f} %"
            for then, now in (
                (before.read_bytes_per_second, after.read_bytes_per_second),
                (before.multiply_adds_per_second, after.multiply_adds_per_second),
            )
        )
        felt = each.comparison.memory_share
        feels = "" if felt is None else f"; {each.condition.name} feels {_felt(felt)} of a change of the memory"
        return [
            f"The machine: memory read at {after.read_bytes_per_second / 1e9:.1f} GB/s ({read} since the baseline), "
            f"multiply-adds {multiply}{feels}."
        ]
    return []


def _described(subject: Subject) -> str:
    threads = None if subject.threads is None else f"{subject.threads} thread{'' if subject.threads == 1 else 's'}"
    version = " ".join(filter(None, (subject.engine, subject.engine_version)))
    parts = (subject.model, version, subject.device, subject.isa, threads, subject.kv_cache_dtype, subject.url)
    return " · ".join(filter(None, parts))


def _amount(value: float, figure: str, unit: str) -> str:
    """`unit` is that of tokens a second."""
    if "_ms_" in figure:
        return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"
    number = f"{value:.1f}" if value < 1000 else f"{value:.0f}"
    return f"{number}{unit if figure.endswith('tokens_per_second') else '/s'}"


def _percent(share: float, decimals: int) -> str:
    return f"{100 * share:+.{decimals}f} %" if abs(share) < 1e3 else "unknown"


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _felt(share: Interval) -> str:
    return f"{100 * share.estimate:.0f} % ({100 * share.low:.0f} % to {100 * share.high:.0f} %)"
