"""`lpx quantize`: a model in float weights to a GGUF file with fewer bits, and whether it is good enough."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lpx.quantize.job import QuantizeReport
    from lpx.quantize.plan import PlannedTensor


def quantize(
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="A GGUF file or a safetensors folder in F32, F16, BF16 or Q8_0, or a name."),
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The GGUF file to make. One that is there is kept.")],
    scheme: Annotated[
        str,
        typer.Option(
            "--scheme",
            help="q8, q6, q5 or q4; mixed: q4 with more bits for sensitive tensors; f16: only converts.",
            metavar="SCHEME",
        ),
    ] = "mixed",
    calibration: Annotated[
        Path | None,
        typer.Option(
            "--calibration",
            help="A text that is like what the model will see, to learn which weights matter. Default: bundled texts "
            "in English, Chinese and code.",
            metavar="FILE",
        ),
    ] = None,
    no_calibration: Annotated[
        bool, typer.Option("--no-calibration", help="Treat all columns alike: faster, less faithful.")
    ] = False,
    gate: Annotated[
        list[str] | None,
        typer.Option(
            "--gate",
            help="A bound on the result, as of lpx eval: kl:0.02, top1:0.95, weights. When one fails, the file is kept "
            "as DST.rejected and the exit code is 1.",
            metavar="BOUND",
        ),
    ] = None,
    windows: Annotated[
        int | None, typer.Option("--windows", help="Windows of 512 tokens to compare on. Default: all bundled texts.")
    ] = None,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Do not compare the result with the source; not with --gate.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", help="Threads. Default: the physical cores.", show_default=False)
    ] = None,
    allow_requantize: Annotated[
        bool,
        typer.Option("--allow-requantize", help="Take a source that has less than 8 bits already: errors add up."),
    ] = False,
    models_dir: Annotated[
        Path | None, typer.Option("--models-dir", help="Where SRC is looked for by name.", show_default=False)
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON, every tensor included.")] = False,
) -> None:
    """Make a smaller GGUF file of a model, with as little change of its answers as possible.

    Example: lpx quantize model-f16.gguf model-mixed.gguf --gate kl:0.05
    """
    from lpx.cli.progress_line import ProgressLine
    from lpx.errors import ConfigError
    from lpx.model import models_dir as models
    from lpx.model.files import resolve_model
    from lpx.quantize.job import QuantizeSettings
    from lpx.quantize.job import quantize as run

    if no_check and gate:
        raise ConfigError("--no-check and --gate contradict each other: a bound needs the comparison")
    if no_calibration and calibration is not None:
        raise ConfigError("--no-calibration and --calibration contradict each other")
    settings = QuantizeSettings(
        source=resolve_model(source, models.models_dir(models_dir)),
        target=target,
        scheme=scheme,
        calibration=calibration,
        calibrate=not no_calibration,
        bounds=tuple(gate or ()),
        check=not no_check,
        windows=windows,
        threads=threads,
        allow_requantize=allow_requantize,
    )

    def planned(plan: Sequence[PlannedTensor]) -> None:
        if not json_output:
            _print_plan(plan)

    with ProgressLine() as progress:
        report = run(settings, planned=planned, progress=progress.update)
    if json_output:
        print(json.dumps(_as_json(settings.scheme, report), ensure_ascii=False))
    else:
        _print_report(report, target)
    if report.exit_code != 0:
        raise typer.Exit(report.exit_code)


def _print_plan(plan: Sequence[PlannedTensor]) -> None:
    """Kinds of tensors that get the same type for the same reason, one line each, before the work begins."""
    from lpx.cli.tables import print_table

    groups: dict[tuple[str, str, str], list[PlannedTensor]] = {}
    for item in plan:
        name = item.tensor.role or ("vectors" if len(item.tensor.shape) == 1 else item.tensor.name)
        groups.setdefault((name, item.type, _why(item)), []).append(item)
    rows = [
        (name, kind, str(len(items)), f"{sum(item.nbytes for item in items) / 1e6:.1f}", why)
        for (name, kind, why), items in groups.items()
    ]
    print_table(("tensors", "type", "count", "MB", "why"), rows, right=("count", "MB"), folded=("why",))


def _why(item: PlannedTensor) -> str:
    if item.fallback_from is None:
        return item.reason
    return f"{item.reason}; {item.fallback_from} does not hold rows of {item.tensor.shape[-1]}"


def _print_report(report: QuantizeReport, target: Path) -> None:
    from lpx.cli.tables import count_of, print_table

    print()
    if report.importance is not None:
        found = report.importance
        print(f"calibrated on {', '.join(found.texts)}: {count_of(found.tokens, 'token')}")
    if (evaluation := report.evaluation) is not None and (divergence := evaluation.divergence) is not None:
        low, high = divergence.kl_interval
        print(
            f"against the source: mean KL {divergence.kl:.4f} nats ({low:.4f} to {high:.4f}), same likeliest token "
            f"{divergence.top1:.1%}, perplexity {divergence.ppl_change:+.1%}"
        )
        if evaluation.weights is not None:
            for tensor in evaluation.weights.faulty:
                print(f"  {tensor.name}: {tensor.finding}")
    if report.verdicts:
        rows = [(verdict.bound, verdict.outcome, verdict.said) for verdict in report.verdicts]
        print_table(("bound", "verdict", "what was found"), rows, folded=("what was found",))
    sizes = f"{report.nbytes / 1e6:.1f} MB of {report.source_bytes / 1e6:.1f}, {report.bits:.2f} bits a weight"
    if report.path == target:
        print(f"made {report.path}: {sizes}, in {report.seconds:.0f} s")
    else:
        print(f"rejected: {target} was not made; what would have been it is {report.path} ({sizes})")
        print("what to do: lpx explain LPX-E051")


def _as_json(scheme: str, report: QuantizeReport) -> dict[str, Any]:
    import dataclasses

    evaluation = report.evaluation
    divergence = evaluation.divergence if evaluation is not None else None
    return {
        "path": str(report.path),
        "scheme": scheme,
        "accepted": report.exit_code == 0,
        "bytes": report.nbytes,
        "source_bytes": report.source_bytes,
        "bits_per_weight": report.bits,
        "seconds": report.seconds,
        "calibration": None
        if report.importance is None
        else {
            "texts": report.importance.texts,
            "windows": report.importance.windows,
            "tokens": report.importance.tokens,
        },
        "divergence": None if divergence is None else dataclasses.asdict(divergence),
        "gate": [dataclasses.asdict(verdict) for verdict in report.verdicts],
        "tensors": [
            {
                "name": item.tensor.name,
                "shape": item.tensor.shape,
                "from": item.tensor.type,
                "type": item.type,
                "bytes": item.nbytes,
                "reason": item.reason,
                "fallback_from": item.fallback_from,
            }
            for item in report.plan
        ],
    }
