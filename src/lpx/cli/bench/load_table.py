"""The tables of `lpx bench serve`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lpx.cli.bench.server_options import describe
from lpx.cli.tables import line_width, print_table, print_wrapped, wrapped
from lpx.plain_text import plain_text

if TYPE_CHECKING:
    from lpx.bench.load import LoadReport

LATENCY_NAMES = {
    "ttft": "TTFT",
    "ttft_visible": "TTFT, visible text",
    "tpot": "TPOT",
    "itl": "ITL, between pieces",
    "e2el": "E2EL",
}


def print_load(reports: Sequence[LoadReport], shown: Sequence[str]) -> None:
    """All levels in one table, their times in another, and what went wrong; the tables fit 80 columns."""
    print_wrapped(describe(reports[0].subject))
    for line in _describe_load(reports[0]).split("\n"):
        print_wrapped(line)
    print()
    _print_throughput(reports)
    _print_times(reports, shown)
    for report in reports:
        at = f"at {report.settings.max_concurrency}: " if len(reports) > 1 else ""
        for kind, number in sorted(report.errors.items()):
            detail = next(failure.detail for failure in report.failures if failure.kind == kind)
            print_note("failed", f"{at}{number} x {kind}: {detail}")
        for warning in report.warnings:
            print_note("note", at + warning)
        if report.interrupted:
            print_note("interrupted", f"{at}{report.left_out} requests were under way and are left out")


def print_note(kind: str, text: str) -> None:
    """A sentence in lines of a readable width, without what a server may have put there to steer a terminal."""
    print("\n".join(wrapped(plain_text(f"{kind}: {text}"), line_width() or 80, "  ")))


def _describe_load(report: LoadReport) -> str:
    settings = report.settings
    requests = len(report.results) + len(report.failures)
    pace = ""
    if settings.request_rate is not None:
        pace = f", {settings.request_rate:g} a second"
    elif settings.ramp_up_strategy is not None:
        pace = f", {settings.ramp_up_start_rps:g} to {settings.ramp_up_end_rps:g} a second"
    return (
        f"{settings.endpoint_type}, {settings.dataset_name} prompts, {requests} requests{pace}; "
        f"{report.warmups} before to warm up\nlengths: {report.lengths}"
    )


def _print_throughput(reports: Sequence[LoadReport]) -> None:
    goodput = any(report.settings.goodput for report in reports)
    columns = ["streams", "done", "failed", "seconds", "req/s", *(["goodput/s"] if goodput else [])]
    columns += ["tokens in", "out", "out/s"]
    rows = []
    for report in reports:
        figures = report.figures
        row = [_streams(report), str(len(report.results)), str(len(report.failures)), f"{report.seconds:.1f}"]
        row.append(_figure(figures.get("requests_per_second"), 2))
        if goodput:
            row.append(_figure(figures.get("goodput_requests_per_second"), 2))
        row += [_figure(figures.get(name), 0) for name in ("input_tokens", "output_tokens")]
        rows.append([*row, _figure(figures.get("output_tokens_per_second"), 1)])
    print_table(columns, rows, right=columns)


def _print_times(reports: Sequence[LoadReport], shown: Sequence[str]) -> None:
    percentiles = [f"p{percent:g}" for percent in reports[0].settings.percentiles]
    columns = ["mean", "median", *percentiles]
    rows = []
    for report in reports:
        for name in shown:
            values = [report.figures.get(f"{name}_ms_{column}") for column in columns]
            if values[0] is None or (name == "ttft_visible" and _same_as_ttft(report, columns)):
                continue
            label = f"{_streams(report)}: {LATENCY_NAMES[name]}" if len(reports) > 1 else LATENCY_NAMES[name]
            rows.append([label, *(_figure(value, 1) for value in values)])
    if rows:
        print()
        print_table(["milliseconds", *columns], rows, right=columns, cut=("milliseconds",))


def _same_as_ttft(report: LoadReport, columns: Sequence[str]) -> bool:
    figures = report.figures
    return all(figures.get(f"ttft_ms_{column}") == figures.get(f"ttft_visible_ms_{column}") for column in columns)


def _streams(report: LoadReport) -> str:
    limit = report.settings.max_concurrency
    return str(limit) if limit is not None else f"≤{report.peak_concurrency}"


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
