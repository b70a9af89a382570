"""`lpx fit`: what a model needs, and how fast it can be at most, before it is downloaded or loaded."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lpx.cli.bench.recording import LedgerOptions, record
from lpx.cli.option_groups import size_parameter, spread_options
from lpx.cli.status_line import StatusLine
from lpx.cli.tables import print_table, print_wrapped
from lpx.plain_text import shortened

if TYPE_CHECKING:
    from lpx.bench.fit import FitModel, FitReport, FitRow, FitTarget
    from lpx.doctor.gpu_table import Gpu

_LONGEST_NAME = 80  # of what a file calls itself: beyond it is no name


@spread_options
def fit(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A .gguf file, a folder, a config.json, a name of the store or of a known model, or a number of "
            "parameters such as 7B.",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help='A card instead of this machine, such as "RTX 4060".', metavar="NAME")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", help="Context in tokens, prompt and answer. Default: 4096.", min=1)
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure how fast this machine reads, ten seconds, and remember it.")
    ] = False,
    bandwidth: Annotated[
        float | None, typer.Option("--bandwidth", help="Memory bandwidth in GB/s, where you know it.", min=0.1, max=1e9)
    ] = None,
    memory: Annotated[
        int | None, typer.Option("--memory", help="Memory to count with.", parser=size_parameter, metavar="SIZE")
    ] = None,
    gpus: Annotated[bool, typer.Option("--gpus", help="List the cards that are known.")] = False,
    models_dir: Annotated[
        Path | None, typer.Option("--models-dir", help="The model folder.", envvar="LPX_MODELS_DIR")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    *,
    ledger_options: LedgerOptions,
) -> None:
    """Say what a model needs in memory and how fast it can be at most, for each precision. Nothing is loaded.

    Example: lpx fit smollm2-135m

    Example: lpx fit 7B --gpu "RTX 4060"
    """
    from lpx import store
    from lpx.bench.fit import estimate_fit, resolve_subject
    from lpx.errors import ConfigError

    if gpus:
        _print_gpus(json_output)
        return
    if model is None:
        raise ConfigError('no model: give one as in lpx fit smollm2-135m or lpx fit 7B --gpu "RTX 4060"')
    subject = resolve_subject(model, store.models_dir(models_dir))
    report = estimate_fit(subject, _target(gpu, measure, bandwidth, memory, ledger_options), max_model_len)
    if json_output:
        print(json.dumps(report.to_json(), ensure_ascii=False, indent=2))
    else:
        _print_report(report)


def _target(
    gpu: str | None, measure: bool, bandwidth: float | None, memory: int | None, ledger_options: LedgerOptions
) -> FitTarget:
    from lpx.bench.fit import gpu_target, machine_target
    from lpx.errors import ConfigError

    if bandwidth is not None and not math.isfinite(bandwidth):
        raise ConfigError(f"--bandwidth must be a number of GB/s, not {bandwidth}")
    if memory is not None and memory < 1:
        raise ConfigError("--memory must be at least 1 byte; without it, what the machine or the card has is taken")
    given = None if bandwidth is None else bandwidth * 1e9
    if measure and (gpu is not None or bandwidth is not None):
        raise ConfigError("--measure is about this machine; leave out --gpu and --bandwidth")
    if gpu is not None:
        return gpu_target(gpu, bytes_per_second=given, memory_bytes=memory)
    if measure:
        return machine_target(bytes_per_second=_measure(ledger_options), source="measured now", memory_bytes=memory)
    return machine_target(bytes_per_second=given, ledger=ledger_options.ledger, memory_bytes=memory)


def _measure(ledger_options: LedgerOptions) -> float:
    from datetime import datetime, timezone
    from time import perf_counter

    from lpx.bench.roofline import measure_roofline

    started, begun = datetime.now(timezone.utc), perf_counter()
    with StatusLine() as status:
        measured = measure_roofline(progress=status.show)
    record(ledger_options, measured.measurement(started, perf_counter() - begun))
    return measured.memory.bytes_per_second


def _print_report(report: FitReport) -> None:
    from lpx.bench.fit.estimate import advice

    for line in [*_describe_model(report.model), *_describe_target(report.target)]:
        print_wrapped(line)
    left = ("weights", "cache")
    right = (
        *("weights\nMiB", "cache a\ntoken KiB", "needed\nMiB", "longest\ncontext", f"streams\nof {report.context:,}"),
        *("tokens/s\nat most", f"behind\n{report.context:,}"),
    )
    print()
    print_table((*left, *right), [_cells(row) for row in report.rows], right=right, cut=left)
    print()
    for sentence in [*advice(report), *_caveats(report.target)]:
        print_wrapped(sentence)


def _describe_model(model: FitModel) -> list[str]:
    from lpx.bench.fit.estimate import in_parameters

    config = model.config
    lines = [
        f"{model.name} ({config.architecture}): {in_parameters(model.parameters)} parameters, "
        f"{config.num_layers} layers, {config.num_kv_heads} KV heads of {config.head_dim}, "
        f"context {config.max_position:,}"
    ]
    if model.path is not None:
        called = "" if model.own_name is None else f" (it calls itself {shortened(model.own_name, _LONGEST_NAME)})"
        lines.append(f"from {model.path}{called}")
    return lines + [f"note: {note}" for note in model.notes]


def _describe_target(target: FitTarget) -> list[str]:
    from lpx.bench.fit.estimate import in_gib

    speed = (
        "bandwidth unknown: --measure finds it out"
        if target.bytes_per_second is None
        else f"{target.bytes_per_second / 1e9:,.1f} GB/s ({target.bandwidth_source})"
    )
    lines = [f"{target.name}: {in_gib(target.usable_bytes)} of {in_gib(target.total_bytes)} can be had, {speed}"]
    if target.gpu is not None:
        lines.append(f"compute capability {target.gpu.compute_capability}: {_able(target.gpu)}")
        if target.gpu.uncertain:
            lines.append(f"uncertain: {target.gpu.uncertain}")
    return lines


def _cells(row: FitRow) -> list[str]:
    def number(value: float | None, digits: int = 0) -> str:
        return "n/a" if value is None else f"{value:,.{digits}f}"

    def rate(value: float | None) -> str:
        return number(value, 0 if value is None or value >= 100 else 1)

    return [
        "as it is" if row.precision == "file" else row.precision,
        row.kv_cache_dtype,
        number(row.weight_bytes / 2**20),
        number(row.kv_bytes_per_token / 2**10, 1),
        number(row.needed_bytes / 2**20),
        number(row.longest_context) if row.longest_context else "no",
        number(row.streams) if row.streams else "no",
        rate(row.tokens_per_second),
        rate(row.tokens_per_second_at_context),
    ]


def _caveats(target: FitTarget) -> list[str]:
    if target.gpu is not None:
        return ["LPX computes on the processor; for a card these are the limits of any engine that reads weights once."]
    return ["The limit is what reading memory allows; lpx bench latency shows how near LPX comes."]


def _able(gpu: Gpu) -> str:
    able = gpu.capabilities
    names = ("fp16", "bf16", "int8", "int4", "fp8", "fp4")
    has = [name.upper() for name in names if getattr(able, name)]
    lacks = [name.upper() for name in names if not getattr(able, name)]
    return f"multiplies {', '.join(has) or 'FP32'}" + (f"; no {', '.join(lacks)}" if lacks else "")


def _print_gpus(json_output: bool) -> None:
    import dataclasses

    from lpx.doctor.gpu_table import read_table

    if json_output:
        rows = [
            {**dataclasses.asdict(gpu), "capabilities": dataclasses.asdict(gpu.capabilities)} for gpu in read_table()
        ]
        print(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    kinds = ("bf16", "int8", "int4", "fp8", "fp4")
    cells = [
        (
            f"{gpu.name} *" if gpu.uncertain else gpu.name,
            f"{gpu.memory_gb:g}",
            f"{gpu.bandwidth_gb_s:g}",
            gpu.compute_capability,
            *("yes" if getattr(gpu.capabilities, name) else "-" for name in kinds),
        )
        for gpu in read_table()
    ]
    numbers, names = ("GB", "GB/s", "cc"), tuple(name.upper() for name in kinds)
    print_table(("card", *numbers, *names), cells, right=(*numbers, *names), cut=("card",))
    print(
        "\ncc: compute capability. The kinds are what the hardware multiplies by itself;\n"
        "weights of 4 and 8 bits can be kept on every card.\n"
        "* not the same for all cards of this name, or second-hand; --json tells"
    )
