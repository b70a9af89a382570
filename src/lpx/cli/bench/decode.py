"""`lpx bench decode`: what a token costs on any server, told apart from prompt, queue and network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lpx.cli import EXIT_INTERRUPTED
from lpx.cli.bench.load_table import print_note
from lpx.cli.bench.recording import LedgerOptions, print_run, record
from lpx.cli.bench.server_options import ServerOptions, describe, run_until_interrupted, whole_numbers
from lpx.cli.option_groups import spread_options
from lpx.cli.status_line import StatusLine
from lpx.cli.tables import print_table, print_wrapped
from lpx.errors import LpxError

if TYPE_CHECKING:
    from asyncio import Event

    from lpx.bench.load.decode import DecodeReport, DecodeSettings


@spread_options
def decode(
    server: ServerOptions,
    concurrency: Annotated[
        str,
        typer.Option(
            "--concurrency", "--max-concurrency", help="Requests at once; a list is measured one after another."
        ),
    ] = "1",
    input_len: Annotated[int, typer.Option("--input-len", help="Tokens of each prompt.")] = 128,
    output_lens: Annotated[
        str, typer.Option("--output-lens", help="Lengths of answers, two or more.", metavar="N,N,…")
    ] = "16,48,96,160",
    repeats: Annotated[int, typer.Option("--repeats", help="Rounds of each length.")] = 5,
    ignore_eos: Annotated[
        bool,
        typer.Option("--ignore-eos/--no-ignore-eos", help="Ask for the full length; servers that refuse it need no."),
    ] = True,
    seed: Annotated[int, typer.Option("--seed", help="Draws prompts and their order.")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON, every point included.")] = False,
    *,
    ledger_options: LedgerOptions,
) -> None:
    """Measure decode apart from prefill on a server that need not report or stream anything.

    Answers of several lengths are timed; the slope of their times is what one token costs.

    Example: lpx bench decode --url http://127.0.0.1:8080 --concurrency 1,8
    """
    from lpx.bench.load.decode import DecodeSettings

    all_settings = [
        DecodeSettings(
            **server.load_settings(),
            concurrency=level,
            input_len=input_len,
            output_lens=tuple(whole_numbers(output_lens, "--output-lens")),
            repeats=repeats,
            ignore_eos=ignore_eos,
            seed=seed,
        )
        for level in whole_numbers(concurrency, "--concurrency")
    ]
    with StatusLine() as status:
        reports, failure = run_until_interrupted(
            lambda stopping: _measure(all_settings, server.api_key, status, stopping)
        )
    run_ids = [
        record(ledger_options, report.measurement()) if report.figures and not report.interrupted else None
        for report in reports
    ]
    if json_output:
        values = [{"run_id": run_id, **report.as_json()} for run_id, report in zip(run_ids, reports, strict=True)]
        print(json.dumps({"reports": values}, ensure_ascii=False, indent=2))
    elif reports:
        _print(reports)
        for run_id in run_ids:
            print_run(run_id)
    if failure is not None:
        raise failure
    if len(reports) < len(all_settings) or reports[-1].interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if not all(report.figures for report in reports):
        raise typer.Exit(1)


async def _measure(
    all_settings: Sequence[DecodeSettings], api_key: str | None, status: StatusLine, stopping: Event
) -> tuple[list[DecodeReport], LpxError | None]:
    """The levels that were measured, the last one perhaps in part, and what kept the next one from it."""
    from lpx.bench.load.decode import measure_decode

    reports: list[DecodeReport] = []
    for settings in all_settings:

        def tell(state: object, streams: int = settings.concurrency) -> None:
            status.show(_progress(state, streams))

        try:
            report = await measure_decode(settings, tell, api_key=api_key, stopping=stopping)
        except LpxError as error:
            if not reports:
                raise
            return reports, error
        if report is not None:
            reports.append(report)
        if stopping.is_set():
            break
    return reports, None


def _progress(state: object, streams: int) -> str:
    from lpx.bench.load import LoadProgress

    assert isinstance(state, LoadProgress)
    if state.phase == "warm-up":
        return f"warming up at {streams}"
    return f"round {state.done + 1} of {state.total} at {streams}"


def _print(reports: Sequence[DecodeReport]) -> None:
    first = reports[0].settings
    lengths = ", ".join(map(str, first.output_lens))
    print_wrapped(describe(reports[0].subject))
    print_wrapped(f"answers of {lengths} tokens behind {first.input_len}, {first.repeats} rounds of each")
    print()
    columns = ["streams", "decode tokens/s", "95 % interval", "ms a token", "prefill, ms", "fit"]
    rows = []
    for report in reports:
        figures = report.figures
        if not figures:
            rows.append([str(report.settings.concurrency), "-", "-", "-", "-", "bad"])
            continue
        low, high = figures.get("decode_tokens_per_second_low"), figures.get("decode_tokens_per_second_high")
        rows.append(
            [
                str(report.settings.concurrency),
                f"{figures['decode_tokens_per_second']:,.1f}",
                "-" if low is None or high is None else f"{low:,.1f} to {high:,.1f}",
                f"{figures['tpot_ms']:,.2f}",
                f"{figures['prefill_ms']:,.1f}",
                "bad" if report.problems else "good",
            ]
        )
    print_table(columns, rows, right=columns)
    print("\nprefill is what remains without tokens: prompt, queue and network")
    for report in reports:
        for problem in report.problems:
            print_note(f"bad fit at {report.settings.concurrency}", problem)
        for note in report.notes:
            print_note("note", note)
        if report.interrupted:
            rounds = report.settings.repeats * len(report.settings.output_lens)
            print_note("interrupted", f"{len(report.points)} of {rounds} rounds at {report.settings.concurrency}")
