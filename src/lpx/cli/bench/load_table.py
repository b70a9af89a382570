"""The tables of `lpx bench serve`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lpx.cli.bench.server_options import describe

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
    """All levels in one table, their times in another, and what went wrong; fits 80 columns."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=False)
    first = reports[0]
    console.print(describe(first.subject))
    console.print(_describe_load(first))
    console.print()
    console.print(_throughput_table(reports))
    times = _times_table(reports, shown)
    if times is not None:
        console.print()
        console.print(times)
    for report in reports:
        at = f"at {report.settings.max_concurrency}: " if len(reports) > 1 else ""
        for kind, number in sorted(report.errors.items()):
            detail = next(failure.detail for failure in report.failures if failure.kind == kind)
            console.print(f"failed: {at}{number} x {kind}: {detail}")
        for warning in report.warnings:
            console.print(f"note: {at}{warning}")
        if report.interrupted:
            console.print(f"interrupted: {at}{report.left_out} requests were under way and are left out")


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


def _throughput_table(reports: Sequence[LoadReport]) -> Any:
    goodput = any(report.settings.goodput for report in reports)
    table = _table("streams", "done", "failed", "seconds", "requests/s", *(["goodput/s"] if goodput else []))
    for name in ("tokens in", "tokens out", "out/s"):
        table.add_column(name, justify="right")
    for report in reports:
        figures = report.figures
        row = [_streams(report), str(len(report.results)), str(len(report.failures)), f"{report.seconds:.1f}"]
        row.append(_figure(figures.get("requests_per_second"), 2))
        if goodput:
            row.append(_figure(figures.get("goodput_requests_per_second"), 2))
        row += [_figure(figures.get(name), 0) for name in ("input_tokens", "output_tokens")]
        table.add_row(*row, _figure(figures.get("output_tokens_per_second"), 1))
    return table


def _times_table(reports: Sequence[LoadReport], shown: Sequence[str]) -> Any:
    percentiles = [f"p{percent:g}" for percent in reports[0].settings.percentiles]
    columns = ["mean", "median", *percentiles]
    table = _table("streams", *columns)
    table.columns[0].header = "milliseconds"
    table.columns[0].justify = "left"
    several = len(reports) > 1
    for report in reports:
        for name in shown:
            values = [report.figures.get(f"{name}_ms_{column}") for column in columns]
            if values[0] is None or (name == "ttft_visible" and _same_as_ttft(report, columns)):
                continue
            label = f"{_streams(report)}: {LATENCY_NAMES[name]}" if several else LATENCY_NAMES[name]
            table.add_row(label, *(_figure(value, 1) for value in values))
    return table if table.row_count else None


def _same_as_ttft(report: LoadReport, columns: Sequence[str]) -> bool:
    figures = report.figures
    return all(figures.get(f"ttft_ms_{column}") == figures.get(f"ttft_visible_ms_{column}") for column in columns)


def _table(*columns: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _streams(report: LoadReport) -> str:
    limit = report.settings.max_concurrency
    return str(limit) if limit is not None else f"≤{report.peak_concurrency}"


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
