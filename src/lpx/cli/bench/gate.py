"""`lpx bench gate`: fail when something has become slower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lpx.cli.bench.recording import LedgerFile, LedgerOptions, hash_with_progress, open_ledger, record
from lpx.cli.late_failures import report_failure
from lpx.cli.status_line import StatusLine
from lpx.cli.tables import count_of
from lpx.cli.verdicts import EXIT_NO_VERDICT, judging, showing
from lpx.cli.whole_file import check_target
from lpx.errors import OUTPUT_NOT_WRITTEN, ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lpx.bench.gate.conditions import Condition
    from lpx.bench.gate.gate import GateReport, Progress


def gate(
    candidate: Annotated[
        str | None,
        typer.Argument(
            help="With --against: what is judged; a server's address, lpx:threads=1,…, or a profile. Default: LPX as "
            "it is, with the workload of --baseline.",
            metavar="[SIDE]",
            show_default=False,
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="A baseline's name, or the number of its run.", metavar="NAME")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            help="Measure in alternation with this side instead of comparing with earlier figures: the surest way.",
            metavar="SIDE",
        ),
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on",
            help="A figure and how much worse it may be: decode:-5%, p99_ttft:+10%. Several times for several. "
            "Default: decode:-5%.",
            metavar="FIGURE:PERCENT",
        ),
    ] = None,
    duration: Annotated[
        float,
        typer.Option(
            "--duration",
            "--seconds",
            help="Go on for so many seconds at most, where figures are close to the limit; the least sessions that "
            "can be judged are measured in any case.",
            metavar="SECONDS",
            min=1,
        ),
    ] = 120.0,
    changed: Annotated[
        list[str] | None,
        typer.Option("--set", help="Run the baseline's workload with this engine option.", metavar="OPTION=VALUE"),
    ] = None,
    allow_different: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-different", help="Compare although these differ: machine, device, model, engine.", metavar="WHAT"
        ),
    ] = None,
    most_others: Annotated[
        float,
        typer.Option(
            "--most-others", help="Leave out what was measured while other programs used more.", metavar="PERCENT"
        ),
    ] = 15.0,
    input_len: Annotated[
        int | None, typer.Option("--input-len", help="With --against alone: tokens of each prompt. Default: 128.")
    ] = None,
    output_len: Annotated[
        int | None, typer.Option("--output-len", help="With --against alone: tokens of each answer. Default: 128.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="With --against alone: streams at once. Default: 1.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the Markdown into this file, too.", metavar="FILE")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead of Markdown.")] = False,
    no_ledger: Annotated[bool, typer.Option("--no-ledger", help="Keep nothing of this run.")] = False,
    ledger: LedgerFile = None,
) -> None:
    """Measure the workload of a baseline again, and fail when it has become slower. Prints Markdown.

    Exit codes: 0 not slower than allowed, 1 slower, 2 cannot judge, 3 not slower, but not kept in the ledger.

    Example: lpx bench gate --baseline main --fail-on decode:-5% --fail-on ttft:+10%

    In alternation: lpx bench gate --baseline main --against lpx:python=old/bin/python
    """
    from lpx.bench.gate.conditions import parse_conditions
    from lpx.bench.gate.report import gate_json, gate_markdown
    from lpx.bench.gate.trial import LEAST_SESSIONS

    options = LedgerOptions(no_ledger=no_ledger, ledger=ledger)
    conditions = parse_conditions(fail_on or ["decode:-5%"])
    if output is not None:
        check_target("--output", output, "gate.md")
    workload = {"input_len": input_len, "output_len": output_len, "batch_size": batch_size}
    with judging(), StatusLine() as status:

        def progress(sessions: int, passed: float) -> None:
            bound = f"of at most {duration:.0f} s" if passed <= duration else f"s; {LEAST_SESSIONS} sessions at least"
            status.show(f"{count_of(sessions, 'session')}, {passed:.0f} {bound}")

        status.show("measuring")
        if against is not None:
            report = _alternating(
                candidate,
                against,
                baseline,
                ledger,
                changed,
                workload,
                allow_different,
                conditions,
                duration,
                progress,
            )
        else:
            if candidate is not None or any(value is not None for value in workload.values()):
                raise ConfigError("a side and lengths go with --against SIDE; a baseline has its own")
            report = _against_baseline(
                baseline, ledger, changed, allow_different, conditions, duration, most_others / 100, progress
            )
    with judging():
        run_id = record(options, report.measurement, tags=[f"gate:{report.outcome.name.lower()}"])
        markdown = gate_markdown(report)
        with showing(EXIT_NO_VERDICT):
            if json_output:
                print(json.dumps(gate_json(report, run_id), ensure_ascii=False, indent=2))
            else:
                print(markdown, end="")
        if output is not None:
            try:
                output.write_text(markdown, encoding="utf-8", errors="replace")
            except OSError as error:
                message = f"--output {output} cannot be written: {error.strerror}"
                report_failure(message, EXIT_NO_VERDICT, OUTPUT_NOT_WRITTEN)
    raise typer.Exit(report.outcome.value)


def _against_baseline(
    name: str | None,
    ledger: Path | None,
    changed: Sequence[str] | None,
    allow_different: Sequence[str] | None,
    conditions: Sequence[Condition],
    seconds: float,
    most_others: float,
    progress: Progress,
) -> GateReport:
    from lpx.bench.gate.gate import run_gate
    from lpx.bench.gate.likeness import parse_facets
    from lpx.bench.gate.sessions import changed_settings, open_sessions
    from lpx.doctor.environment import read_environment

    if name is None:
        raise ConfigError("name what to compare with: --baseline NAME, or --against SIDE")
    allowed = parse_facets(allow_different or ())
    opened = open_ledger(ledger)
    run = opened.named(name)
    kind, settings = run.measurement.kind, changed_settings(run.measurement, changed or ())
    workload = open_sessions(kind, settings)
    digest = None
    if kind == "latency":
        from lpx.bench.engine_settings import options_from
        from lpx.bench.engine_subject import model_path

        digest = hash_with_progress(opened, model_path(options_from(settings["engine"])))
    return run_gate(
        run,
        workload,
        conditions,
        name=name,
        environment=read_environment(),
        model_sha256=digest,
        allowed=allowed,
        settings=settings,
        seconds=seconds,
        most_others=most_others,
        progress=progress,
    )


def _alternating(
    candidate: str | None,
    against: str,
    baseline: str | None,
    ledger: Path | None,
    changed: Sequence[str] | None,
    workload: dict[str, int | None],
    allow_different: Sequence[str] | None,
    conditions: Sequence[Condition],
    seconds: float,
    progress: Progress,
) -> GateReport:
    from lpx.bench.gate.gate import run_paired_gate
    from lpx.bench.gate.likeness import parse_facets
    from lpx.bench.gate.pairs import open_pairs, paired_workload

    allowed = parse_facets(allow_different or ())
    measured = None if baseline is None else open_ledger(ledger).named(baseline).measurement
    plan = paired_workload(candidate, against, measured, changed or (), workload)
    return run_paired_gate(
        open_pairs(plan),
        conditions,
        against=against,
        settings=plan.described(),
        allowed=allowed,
        seconds=seconds,
        progress=progress,
    )
