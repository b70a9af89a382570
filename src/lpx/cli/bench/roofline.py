"""`lpx bench roofline`: what the machine can do at most."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timezone
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from lpx.cli.bench.recording import LedgerOptions, print_run, record
from lpx.cli.option_groups import spread_options
from lpx.cli.status_line import StatusLine
from lpx.cli.tables import count_of

if TYPE_CHECKING:
    from lpx.bench.roofline import ReadFigure, Roofline

_Json = Annotated[bool, typer.Option("--json", help="Print JSON, every repetition included.")]

_PEAK_NAMES = {
    "int8_4bit": "int8 with 4-bit codes",
    "int8": "int8 with 8-bit codes",
    "bf16": "bf16",
    "f32": "f32",
}


@spread_options
def roofline(
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", help="Threads. Default: the physical cores this process may use.", envvar="LPX_THREADS"
        ),
    ] = None,
    isa: Annotated[
        str | None,
        typer.Option(
            "--isa", help="Kernel set. Default: the best this processor has.", envvar="LPX_ISA", metavar="NAME"
        ),
    ] = None,
    json_output: _Json = False,
    *,
    ledger_options: LedgerOptions,
) -> None:
    """Measure how fast this machine reads and multiplies: the limits of every model on it.

    Takes about ten seconds. Other programs only make the figures smaller.

    Example: lpx bench roofline --threads 4
    """
    from lpx.bench.roofline import measure_roofline

    started, begun = datetime.now(timezone.utc), perf_counter()
    with StatusLine() as status:
        measured = measure_roofline(threads, isa, progress=status.show)
    run_id = record(ledger_options, measured.measurement(started, perf_counter() - begun))
    if json_output:
        print(json.dumps({"run_id": run_id, **dataclasses.asdict(measured)}, ensure_ascii=False, indent=2))
    else:
        _print_roofline(measured)
        print_run(run_id)


def _print_roofline(measured: Roofline) -> None:
    memory = measured.memory
    print(f"{memory.isa}, {count_of(memory.threads, 'thread')}; the best of all repetitions\n")
    print(f"{'memory read':<30}{memory.bytes_per_second / 1e9:10.1f} GB/s   {memory.best_pattern.name}")
    for figure in memory.patterns:
        print(_read_line(f"  {figure.pattern.name}", figure))
    for name, cache in (("L3 cache read", measured.l3), ("L2 cache read", measured.l2)):
        print(f"{name:<30}{'n/a':>10}" if cache is None else _read_line(name, cache))
    print()
    for kind, peak in measured.peaks.items():
        if peak is None:
            print(f"{_PEAK_NAMES[kind]:<30}{'n/a':>10}   {memory.isa} has no unit for it")
        else:
            print(f"{_PEAK_NAMES[kind]:<30}{peak.multiply_adds_per_second / 1e9:10.1f} G multiply-adds/s")


def _read_line(name: str, figure: ReadFigure) -> str:
    size = f"{figure.bytes_per_thread / 2**20:,.4g} MiB a thread"
    return f"{name:<30}{figure.bytes_per_second / 1e9:10.1f} GB/s   {size}"
