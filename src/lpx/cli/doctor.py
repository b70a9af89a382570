"""`lpx doctor`: what is right and wrong with this machine, and what to do about it."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lpx.plain_text import plain_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from lpx.doctor.checks import Report
    from lpx.doctor.finding import Finding, Status

_COLOURS = {"ok": "green", "note": "cyan", "unknown": "magenta", "warning": "yellow", "error": "bold red"}


def doctor(
    checks: Annotated[
        list[str] | None, typer.Argument(metavar="[CHECK]…", help="Checks to make; all without any.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    fix_script: Annotated[
        Path | None,
        typer.Option("--fix-script", metavar="FILE", help="Write a shell script of the fixes; nothing is run."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option("--profile", envvar="LPX_PROFILE", metavar="FILE", help="The profile that commands are to take."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what is wanted and why everywhere.")] = False,
) -> None:
    """Check this machine: processor, memory, disk, ports, Python, LPX, GPUs, driver, Docker.

    Each finding says what was found and wanted, why it matters and what to do. Nothing is changed.

    The exit code is 0 when all is well, 1 with warnings and 2 with errors.

    Example: lpx doctor

    Example: lpx doctor gpu driver docker --fix-script fix.sh
    """
    from lpx.doctor.checks import run_checks
    from lpx.doctor.finding import exit_code
    from lpx.doctor.fix_script import write_fix_script
    from lpx.doctor.machine import Machine

    environment = {**os.environ, "LPX_PROFILE": profile} if profile else os.environ
    report = run_checks(Machine(environment=environment), checks or ())
    if fix_script is not None:
        write_fix_script(fix_script, report.findings)
    code = exit_code(report.findings)
    if json_output:
        findings = [{**dataclasses.asdict(finding), "status": finding.status.value} for finding in report.findings]
        print(json.dumps({"exit_code": code, "seconds": round(report.seconds, 3), "findings": findings}, indent=2))
    else:
        _print_report(report, verbose)
        if fix_script is not None:
            print(f"\n{plain_text(f'The fixes are in {fix_script}: read it, then run it with sh.')}")
    raise typer.Exit(code)


def _print_report(report: Report, verbose: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    width = max((_cell_width(finding.title) for finding in report.findings), default=0)
    check = None
    for finding in report.findings:
        if finding.check != check:
            check = finding.check
            console.print(Text(check, "bold"))
        head = Text().append(f"  {finding.status.value:<9}", _COLOURS[finding.status.value])
        head.append(finding.title + " " * (width - _cell_width(finding.title) + 2))
        _print_hanging(console, head, plain_text(finding.found))
        for name, text in _details(finding, verbose):
            _print_hanging(console, Text().append(f"{'':<11}{name:<{width}}  ", "dim"), plain_text(text))
    console.print()
    console.print(Text(_summary(report)))


def _cell_width(text: str) -> int:
    """Columns of a terminal: Chinese characters take two."""
    from rich.cells import cell_len

    return cell_len(text)


def _print_hanging(console: Console, head: Text, text: str) -> None:
    """`text` behind `head`, its further lines below its first."""
    from rich.text import Text

    room = max(20, console.width - head.cell_len)
    for at, line in enumerate(Text(text).wrap(console, room)):
        line.rstrip()
        start = head if at == 0 else Text(" " * head.cell_len)
        console.print(start + line, soft_wrap=True)


def _details(finding: Finding, verbose: bool) -> list[tuple[str, str]]:
    from lpx.doctor.finding import Status

    quiet = finding.status in (Status.OK, Status.NOTE) and not verbose
    lines = [] if quiet else [("wanted", finding.wanted), ("why", finding.why)]
    if finding.do:
        lines.append(("do", finding.do))
    if finding.page and not quiet:
        lines.append(("more", f"lpx explain {finding.page}"))
    return lines


def _summary(report: Report) -> str:
    from lpx.doctor.finding import Status

    def count(status: Status, one: str, many: str) -> str:
        number = sum(finding.status is status for finding in report.findings)
        return f"{number} {one if number == 1 else many}" if number else ""

    parts = [
        count(Status.ERROR, "error", "errors"),
        count(Status.WARNING, "warning", "warnings"),
        count(Status.UNKNOWN, "unknown", "unknown"),
        count(Status.NOTE, "note", "notes"),
        count(Status.OK, "ok", "ok"),
    ]
    said = ", ".join(part for part in parts if part) or "nothing to check here"
    return f"{said} ({report.seconds:.1f} s)"
