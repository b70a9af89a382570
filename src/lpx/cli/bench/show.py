"""`lpx bench show`: everything that the ledger knows of one run."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated

import typer

from lpx.cli.bench.recording import LedgerFile, open_ledger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lpx.bench.ledger import Run

_Json = Annotated[bool, typer.Option("--json", help="Print JSON, every sample included.")]
_HASH = re.compile(r"[0-9a-f]{40,128}")
_SHOWN_DIGITS = 16  # of a hash that has no room: enough to tell models apart


def show(
    run: Annotated[
        str, typer.Argument(help="A run's number as `lpx bench history` shows it, a baseline's name, or `last`.")
    ] = "last",
    ledger: LedgerFile = None,
    json_output: _Json = False,
) -> None:
    """Show one run: what was measured, the figures, the settings and the environment.

    Example: lpx bench show 12
    """
    from lpx.bench.ledger.export import run_to_json

    found = open_ledger(ledger).named(run)
    if json_output:
        print(json.dumps(run_to_json(found), ensure_ascii=False, indent=2))
    else:
        _print_run(found)


def _print_run(run: Run) -> None:
    from lpx.bench.gate.pieces import sessions_in, without_sessions
    from lpx.bench.headline import figure_text, shape
    from lpx.plain_text import plain_text

    measured, subject = run.measurement, run.measurement.subject
    begun = measured.started.astimezone()
    print(f"run {run.id}: {plain_text(measured.kind)}, {begun:%Y-%m-%d %H:%M:%S %z}, took {measured.seconds:.1f} s")
    _print_section(
        "",
        (
            ("model", subject.model),
            ("sha256", subject.model_sha256),
            ("quantization", subject.quantization),
            ("KV cache", subject.kv_cache_dtype),
            ("engine", " ".join(part for part in (subject.engine, subject.engine_version) if part)),
            ("url", subject.url),
            ("device", subject.device),
            ("instruction set", subject.isa),
            ("threads", subject.threads),
            ("batch × in → out", shape(measured)),
            ("sessions", sessions_in(measured.samples) or None),
            ("tags", ", ".join(run.tags)),
            ("note", run.note),
        ),
    )
    _print_section("figures", ((name, figure_text(name, value)) for name, value in measured.figures.items()))
    if measured.samples:
        _print_section(
            "samples: least / median / most",
            ((name, _samples_text(name, series)) for name, series in without_sessions(measured.samples).items()),
        )
    if measured.errors:
        _print_section("errors", measured.errors.items())
    _print_section("settings", _flat(measured.settings))
    environment = run.environment.to_json()
    for name in ("memory_bytes", "memory_limit_bytes"):
        environment[name] = figure_text(name, environment[name]) if environment[name] is not None else None
    environment["packages"] = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    _print_section("environment", (*environment.items(), ("id", run.environment_sha256[:12])))


def _print_section(title: str, lines: Iterable[tuple[str, object]]) -> None:
    """Names and values below each other; what is not known is left out, and a hash without room is shortened."""
    from lpx.cli.tables import line_width, wrapped
    from lpx.plain_text import plain_text

    kept = [(name, _value_text(value)) for name, value in lines]
    kept = [(plain_text(name), plain_text(text)) for name, text in kept if text]
    if not kept:
        return
    print(f"\n{title}" if title else "")
    width = max(len(name) for name, _ in kept)
    room = line_width()
    for name, text in kept:
        left = None if room is None else max(20, room - width - 4)
        if left is not None and len(text) > left and _HASH.fullmatch(text):
            text = f"{text[:_SHOWN_DIGITS]}…"
        first, *rest = wrapped(text, left)
        print(f"  {name:<{width}}  {first}")
        for line in rest:
            print(f"  {'':<{width}}  {line}")


def _value_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _samples_text(name: str, series: tuple[float, ...]) -> str:
    import math
    import statistics

    from lpx.bench.headline import figure_text

    finite = [value for value in series if not math.isnan(value)]
    if not finite:
        return f"{len(series)} without a number"
    return f"{figure_text(name, min(finite), statistics.median(finite), max(finite))}, of {len(series)}"


def _flat(settings: Mapping[str, object], before: str = "") -> Iterable[tuple[str, object]]:
    """`engine.threads` for what lies in `engine`."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
