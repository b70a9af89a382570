"""`lpx bench latency`: one batch of requests on an engine in this process, and how near it comes to the limit."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timezone
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from lpx.cli.bench.recording import LedgerOptions, print_run, record
from lpx.cli.option_groups import ModelOptions, spread_options
from lpx.cli.profile_option import ProfileOption
from lpx.cli.status_line import StatusLine
from lpx.cli.tables import count_of, print_wrapped

if TYPE_CHECKING:
    from lpx.bench.latency import Latency
    from lpx.bench.series import Series

_Json = Annotated[bool, typer.Option("--json", help="Print JSON, every repetition included.")]

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


@spread_options
def latency(
    context: typer.Context,
    profile: ProfileOption,
    model_options: ModelOptions,
    input_len: Annotated[int, typer.Option("--input-len", help="Tokens of each prompt.")] = 512,
    output_len: Annotated[int, typer.Option("--output-len", help="Tokens of each answer.")] = 128,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Streams at once.")] = 1,
    repeats: Annotated[int, typer.Option("--repeats", help="Measurements; their median is shown.")] = 5,
    json_output: _Json = False,
    *,
    ledger_options: LedgerOptions,
) -> None:
    """Measure one batch of requests: prefill and decode apart, the limit, and where a decode step spends its time.

    Example: lpx bench latency --model smollm2-135m --input-len 512 --output-len 128
    """
    from lpx.bench.engine_subject import model_path
    from lpx.bench.latency import measure_latency
    from lpx.cli.loading import load_engine, resolve_engine_options
    from lpx.store import named_as_stored

    profile.announce(context)
    options = named_as_stored(resolve_engine_options(model_options, measure_steps=False))
    engine = load_engine(options)
    started, begun = datetime.now(timezone.utc), perf_counter()
    try:
        with StatusLine() as status:
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
    measurement = measured.measurement(options, started, perf_counter() - begun)
    run_id = record(ledger_options, measurement, model=model_path(options))
    if json_output:
        print(json.dumps({"run_id": run_id, **dataclasses.asdict(measured)}, ensure_ascii=False, indent=2))
    else:
        _print_latency(measured, drafts=engine.info.speculation != "off")
        print_run(run_id)


def _print_latency(measured: Latency, *, drafts: bool) -> None:
    """`drafts`: whether the engine would draft if it were not measured."""
    from lpx.bench.weather import MUCH_OTHERS
    from lpx.cli.loading import describe_in_use

    limit, step = measured.limit, measured.step
    print_wrapped(describe_in_use(measured.in_use))
    print(
        f"{count_of(measured.batch_size, 'stream')} of {measured.input_len} tokens in and {measured.output_len} out, "
        f"{count_of(measured.repeats, 'repeat')}"
    )
    if drafts:
        print_wrapped("measured without drafts: `lpx bench compare` shows what speculation brings")
    print()
    if measured.others_share > MUCH_OTHERS:
        print_wrapped(
            f"note: other programs used {measured.others_share:.0%} of the processors meanwhile: these figures say "
            "little; end them and measure again"
        )
        print()
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
            f"KV {limit.kv_bytes_per_token / 1e6:.1f}",
        ),
        ("  at a mean context of", f"{limit.mean_context:10.0f} tokens"),
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
