"""`lpx bench`: what the machine can do at most, and how near the engine comes."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lpx.cli.option_groups import ModelOptions, spread_options

if TYPE_CHECKING:
    from lpx.bench.latency import Latency
    from lpx.bench.roofline import ReadFigure, Roofline
    from lpx.bench.series import Series

app = typer.Typer(help="Measure the machine, and the engine on it.", no_args_is_help=True)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON, every repetition included.")]

_PEAK_NAMES = {
    "int8_4bit": "int8 with 4-bit codes",
    "int8": "int8 with 8-bit codes",
    "bf16": "bf16",
    "f32": "f32",
}
_PART_NAMES = {
    "qkv": "matrices: query, key, value",
    "output": "matrices: attention output",
    "gate_up": "matrices: gate and up",
    "down": "matrices: down",
    "attention": "attention",
    "norm": "norms and quantization",
    "head": "head",
    "sampling": "sampling",
    "wait": "waiting at barriers",
    "begin": "embedding and rotary tables",
    "python": "Python and scheduling",
}


@app.command("roofline")
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
) -> None:
    """Measure how fast this machine reads and multiplies: the limits of every model on it.

    Takes about ten seconds. Other programs only make the figures smaller.

    Example: lpx bench roofline --threads 4
    """
    from lpx.bench.roofline import measure_roofline

    with _StatusLine() as status:
        measured = measure_roofline(threads, isa, progress=status.show)
    if json_output:
        print(json.dumps(dataclasses.asdict(measured), ensure_ascii=False, indent=2))
    else:
        _print_roofline(measured)


@app.command("latency")
@spread_options
def latency(
    model_options: ModelOptions,
    input_len: Annotated[int, typer.Option("--input-len", help="Tokens of each prompt.")] = 512,
    output_len: Annotated[int, typer.Option("--output-len", help="Tokens of each answer.")] = 128,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Streams at once.")] = 1,
    repeats: Annotated[int, typer.Option("--repeats", help="Measurements; their median is shown.")] = 5,
    json_output: _Json = False,
) -> None:
    """Measure one batch of requests: prefill and decode apart, the limit, and where a decode step spends its time.

    Example: lpx bench latency --model smollm2-135m --input-len 512 --output-len 128
    """
    from lpx.bench.latency import measure_latency
    from lpx.cli.loading import load_engine, resolve_engine_options

    engine = load_engine(resolve_engine_options(model_options, measure_steps=False))
    try:
        with _StatusLine() as status:
            measured = measure_latency(
                engine,
                input_len=input_len,
                output_len=output_len,
                batch_size=batch_size,
                repeats=repeats,
                progress=status.show,
            )
    finally:
        engine.close()
    if json_output:
        print(json.dumps(dataclasses.asdict(measured), ensure_ascii=False, indent=2))
    else:
        _print_latency(measured)


def _print_roofline(measured: Roofline) -> None:
    memory = measured.memory
    print(f"{memory.isa}, {_count(memory.threads, 'thread')}; the best of all repetitions\n")
    print(f"{'memory read':<30}{memory.bytes_per_second / 1e9:10.1f} GB/s   {memory.best_pattern.name}")
    for figure in memory.patterns:
        print(_read_line(f"  {figure.pattern.name}", figure))
    for name, cache in (("L3 cache read", measured.l3), ("L2 cache read", measured.l2)):
        print(f"{name:<30}{'n/a':>10}" if cache is None else _read_line(name, cache))
    print()
    for kind, peak in measured.peaks.items():
        if peak is None:
            print(f"{_PEAK_NAMES[kind]:<30}{'n/a':>10}                 {memory.isa} has no unit for it")
        else:
            print(f"{_PEAK_NAMES[kind]:<30}{peak.multiply_adds_per_second / 1e9:10.1f} G multiply-adds/s")


def _read_line(name: str, figure: ReadFigure) -> str:
    size = f"{figure.bytes_per_thread / 2**20:,.4g} MiB a thread"
    return f"{name:<30}{figure.bytes_per_second / 1e9:10.1f} GB/s   {size}"


def _print_latency(measured: Latency) -> None:
    from lpx.cli.loading import describe_in_use

    limit, step = measured.limit, measured.step
    print(describe_in_use(measured.in_use))
    print(
        f"{_count(measured.batch_size, 'stream')} of {measured.input_len} tokens in and {measured.output_len} out, "
        f"{_count(measured.repeats, 'repeat')}\n"
    )
    print(f"{'':<30}{'median':>10}   range")
    for name, series, digits in (
        ("prefill, tokens/s", measured.prefill_tokens_per_second, 1),
        ("time to first token, ms", measured.time_to_first_token_ms, 1),
        ("decode, tokens/s", measured.decode_tokens_per_second, 1),
        ("decode step, ms", measured.decode_step_ms, 3),
    ):
        print(_series_line(name, series, digits))
    print()
    best, turns = limit.best_read, limit.turns_read_bytes_per_second
    for name, text in (
        (
            "bytes moved per token",
            f"{limit.bytes_per_token / 1e6:10.1f} MB     weights {limit.weight_bytes_per_token / 1e6:.1f} + "
            f"KV {limit.kv_bytes_per_token / 1e6:.1f} at a context of {limit.mean_context:.0f}",
        ),
        ("memory read, at best", f"{best.bytes_per_second / 1e9:10.1f} GB/s   {best.best_pattern.name}"),
        (
            "  in turns with decoding",
            f"{turns.median / 1e9:10.1f} GB/s   {turns.low / 1e9:.1f} to {turns.high / 1e9:.1f}",
        ),
        (
            "limit of decode, at best",
            f"{limit.tokens_per_second:10.1f} tokens/s, of which it reaches {100 * limit.fraction:.1f} %",
        ),
        (
            "  in turns with decoding",
            f"{limit.turns_tokens_per_second:10.1f} tokens/s, of which it reaches {100 * limit.turns_fraction:.1f} %",
        ),
    ):
        print(f"{name:<30}{text}")
    print(f"\n{'one decode step':<30}{'ms':>10}{'%':>8}")
    for part, spent in step.parts.items():
        print(f"{_PART_NAMES[part]:<30}{spent.ms:10.3f}{100 * spent.share:8.1f}")
    print(f"{'total':<30}{step.step_ms:10.3f}{100 * sum(part.share for part in step.parts.values()):8.1f}")


def _series_line(name: str, series: Series, digits: int) -> str:
    return f"{name:<30}{series.median:10.{digits}f}   {series.low:.{digits}f} to {series.high:.{digits}f}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class _StatusLine:
    """Says on stderr what is going on, where that is a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> _StatusLine:
        return self

    def __exit__(self, *ending: object) -> None:
        self._write("")

    def show(self, what: str) -> None:
        self._write(f"{what} …")

    def _write(self, text: str) -> None:
        if self._shown:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
