"""`lpx bench naive`: plain transformers beside LPX."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from lpx.cli.bench.recording import LedgerOptions, print_run, record
from lpx.cli.option_groups import ModelOptions, spread_options
from lpx.cli.profile_option import ProfileOption
from lpx.cli.status_line import StatusLine
from lpx.cli.tables import count_of, print_table, print_wrapped


@spread_options
def naive(
    context: typer.Context,
    profile: ProfileOption,
    model_options: ModelOptions,
    input_len: Annotated[int, typer.Option("--input-len", help="Tokens of each prompt.")] = 128,
    output_len: Annotated[int, typer.Option("--output-len", help="Tokens of each answer.")] = 64,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Streams at once.")] = 1,
    repeats: Annotated[int, typer.Option("--repeats", help="Measurements of each.")] = 5,
    torch_dtype: Annotated[
        str,
        typer.Option("--torch-dtype", help="Weights of transformers: float32, bfloat16 or float16.", metavar="KIND"),
    ] = "float32",
    python: Annotated[
        str | None,
        typer.Option(
            "--python", help="An interpreter that has torch and transformers. Default: this one.", metavar="PATH"
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON, every repeat included.")] = False,
    *,
    ledger_options: LedgerOptions,
) -> None:
    """Measure what people come from: transformers' generate(), and LPX in alternation on the same prompts.

    Needs torch and transformers: pip install 'lpx[naive]'. A GGUF file is dequantized for transformers.

    Example: lpx bench naive --model smollm2-135m --input-len 128 --output-len 64
    """
    from statistics import median

    from lpx.bench.engine_settings import settings_of
    from lpx.bench.engine_subject import model_path
    from lpx.bench.naive import DECODE, PREFILL, NaiveSettings, measure_naive
    from lpx.cli.loading import resolve_engine_options
    from lpx.store import named_as_stored

    profile.announce(context)
    options = named_as_stored(resolve_engine_options(model_options, measure_steps=False))
    path = model_path(options)
    engine = {**settings_of(options), "model": str(path)}
    engine.pop("models_dir", None)
    settings = NaiveSettings(
        engine=engine,
        input_len=input_len,
        output_len=output_len,
        batch_size=batch_size,
        repeats=repeats,
        dtype=torch_dtype,
        python=python,
    )
    with StatusLine() as status:
        report = measure_naive(settings, status.show)
    run_id = record(ledger_options, report.measurement(), model=path)
    if json_output:
        print(json.dumps({"run_id": run_id, **asdict(report)}, ensure_ascii=False, indent=2, default=str))
        return
    theirs, ours = report.naive_subject, report.lpx_subject
    print_wrapped(f"{ours.model}, {count_of(batch_size, 'stream')} of {input_len} tokens in and {output_len} out")
    print_wrapped(
        f"transformers {theirs.engine_version}, {theirs.quantization}, {theirs.isa}, {theirs.threads} threads"
    )
    print_wrapped(f"LPX {ours.engine_version}, {ours.quantization}, {ours.isa}, {ours.threads} threads")
    print()
    rows = []
    for name, figure in (("prefill, tokens/s", PREFILL), ("decode, tokens/s", DECODE)):
        ratio = report.ratios[figure]
        bounds = f" ({ratio.low:.2f}–{ratio.high:.2f})" if repeats > 1 else ""
        rows.append(
            (
                name,
                f"{median(report.naive[figure]):.1f}",
                f"{median(report.lpx[figure]):.1f}",
                f"{ratio.estimate:.2f} x{bounds}",
            )
        )
    columns = ("", "transformers", "LPX", "LPX / transformers")
    print_table(columns, rows, right=columns[1:])
    print_run(run_id)
