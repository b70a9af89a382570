"""`lpx eval`: the quality of a configuration, against a reference where there is one, and a gate on it."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpx.cli.bench.recording import LedgerOptions, print_run, record
from lpx.cli.late_failures import report_failure
from lpx.cli.option_groups import ModelOptions, spread_options
from lpx.cli.profile_option import ProfileOption
from lpx.cli.verdicts import EXIT_NO_VERDICT, judging, showing
from lpx.cli.whole_file import check_target

if TYPE_CHECKING:
    from lpx.quality.evaluation import Evaluation
    from lpx.quality.gate import Verdict


@spread_options
def evaluate(
    context: typer.Context,
    profile: ProfileOption,
    model_options: ModelOptions,
    model_argument: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="As --model.", show_default=False)
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            help="What to compare with: a model, such as the unquantized file, or key=value pairs (model, "
            "quantization, kv_cache_dtype, isa, threads). Default: the same file with KV in f16 and nothing "
            "quantized at load, where that is another configuration.",
            metavar="MODEL|CONFIG",
            show_default=False,
        ),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option("--text", help="A text to compare on, instead of the bundled ones; may be given several times."),
    ] = None,
    checks: Annotated[
        str, typer.Option("--checks", help="What to do, with commas between.", metavar="LIST")
    ] = "distributions,weights,stability,review",
    window: Annotated[int, typer.Option("--window", help="Tokens seen at once, as llama-perplexity's -c.")] = 512,
    windows: Annotated[
        int | None, typer.Option("--windows", help="Windows to look at, spread over the texts. Default: all.")
    ] = None,
    runs: Annotated[int, typer.Option("--runs", help="Times that each prompt of the stability check is answered.")] = 5,
    review_set: Annotated[
        Path | None, typer.Option("--review-set", help="A JSONL file of review items, instead of the bundled ones.")
    ] = None,
    own_weights: Annotated[
        bool,
        typer.Option(
            "--own-weights",
            help="Compare KV types with weights as the file holds them. Default: as F16, for nothing else to differ.",
        ),
    ] = False,
    gate: Annotated[
        list[str] | None,
        typer.Option(
            "--gate",
            help="A bound: kl:0.01, p99_kl:0.1, top1:0.98, ppl:+1%, weights, stability, review:-5%; `default` is "
            "kl:0.01,weights,stability. Exit code 1 when one fails, 2 when one cannot be judged.",
            metavar="BOUND",
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", help="Write a Markdown page.", metavar="FILE")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON, every finding included.")] = False,
    *,
    ledger_options: LedgerOptions,
) -> None:
    """Measure quality: perplexity, distance from a reference, sound weights, stable answers, a review of answers.

    Example: lpx eval smollm2-135m --kv-cache-dtype q8 --gate kl:0.01
    """
    from lpx.bench.engine_subject import model_path
    from lpx.bench.evaluation import evaluation_measurement, evaluation_settings
    from lpx.cli.loading import resolve_engine_options
    from lpx.cli.progress_line import ProgressLine
    from lpx.errors import OUTPUT_NOT_WRITTEN, ConfigError
    from lpx.quality import evaluation as quality
    from lpx.quality.gate import DEFAULT_BOUNDS, check_bounds, exit_code, judge, parse_bounds
    from lpx.quality.reference import default_reference, parse_reference
    from lpx.quality.report import markdown

    profile.announce(context)
    if model_argument is not None:
        model_options = dataclasses.replace(model_options, model=model_argument)
    wanted = [part for given in gate or () for part in (DEFAULT_BOUNDS if given == "default" else (given,))]
    bounds = parse_bounds(wanted)
    if report is not None:
        check_target("--report", report, "quality.md")
    with judging(bool(bounds)):
        subject = resolve_engine_options(model_options, measure_steps=False)
        settings = quality.EvalSettings(
            subject=subject,
            reference=default_reference(subject) if reference is None else parse_reference(reference, subject),
            texts=tuple(text or ()),
            window=window,
            windows=windows,
            checks=tuple(part.strip() for part in checks.split(",") if part.strip()),
            runs=runs,
            review_set=review_set,
            own_weights=own_weights,
        )
        check_bounds(bounds, settings)
        started, begun = datetime.now(timezone.utc), perf_counter()
        with ProgressLine() as progress:
            found = quality.evaluate(settings, progress.update)
        seconds = perf_counter() - begun
        verdicts = judge(found, bounds)
        measurement = evaluation_measurement(settings, found, started, seconds)
        run_id = record(ledger_options, measurement, model=model_path(subject))
        with showing(EXIT_NO_VERDICT if bounds else 1):
            if json_output:
                print(json.dumps(_as_json(found, verdicts, run_id, evaluation_settings(settings)), ensure_ascii=False))
            else:
                _print(found, verdicts)
                print_run(run_id)
        if report is not None:
            try:
                report.write_text(markdown(settings, found, verdicts, started), encoding="utf-8", errors="replace")
            except OSError as error:  # what was measured is shown all the same
                message = f"the report {report} cannot be written: {error.strerror}"
                report_failure(message, ConfigError.exit_code, OUTPUT_NOT_WRITTEN)
    if (code := exit_code(verdicts)) != 0:
        raise typer.Exit(code)


def _as_json(
    found: Evaluation, verdicts: list[Verdict], run_id: int | None, settings: dict[str, Any]
) -> dict[str, Any]:
    evaluation: dict[str, Any] = _finite(dataclasses.asdict(found))
    return {
        "run_id": run_id,
        "settings": settings,
        "evaluation": evaluation,
        "gate": [dataclasses.asdict(verdict) for verdict in verdicts],
    }


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print(found: Evaluation, verdicts: list[Verdict]) -> None:
    from lpx.cli.tables import count_of, print_table, print_wrapped
    from lpx.quality import report

    print_wrapped(f"subject    {report.describe(found.subject.in_use)}", " " * 11)
    if found.reference is not None:
        print_wrapped(f"reference  {report.describe(found.reference.in_use)}", " " * 11)
    if rows := report.distribution_rows(found):
        remark = ", weights as F16, so that only the KV types differ" if found.dequantized else ""
        print()
        print_wrapped(f"distributions: {count_of(found.windows, 'window')}{remark}")
        print_table(("figure", "value", "95 % interval"), rows, right=("value",), folded=("95 % interval",))
        print()
        print_table(
            ("text", "perplexity", "mean KL", "same token"),
            report.text_rows(found),
            right=("perplexity", "mean KL", "same token"),
            folded=("text",),
        )
    if said := report.weights_summary(found):
        print()
        print_wrapped(f"weights: {said}")
        for name, kind, finding in report.weight_rows(found):
            print_wrapped(f"  {name} {kind}: {finding}" if finding else f"  {name}", "    ")
    if (stability := found.subject.stability) is not None:
        print(
            f"\nstability: {count_of(stability.prompts, 'prompt')}, {stability.runs} runs each, "
            f"{count_of(len(stability.findings), 'finding')}"
        )
        if rows := report.finding_rows(found.subject):
            print_table(("finding", "prompt", "place"), rows, folded=("prompt", "place"))
            for kind, what in report.advice(stability.findings).items():
                print_wrapped(f"  {kind}: {what}", "    ")
            print("  what to do: lpx explain LPX-E052")
    if rows := report.review_rows(found):
        print("\nreview")
        print_table(
            ("kind", "passed", "95 % interval", "reference"), rows, right=("passed", "reference"), cut=("kind",)
        )
        if changed := report.changed_items(found):
            print()
            print_table(("item", "change", "reason"), changed, cut=("item",), folded=("reason",))
    if verdicts:
        print("\ngate")
        width = max(len(verdict.bound) for verdict in verdicts)
        for verdict in verdicts:
            print_wrapped(f"  {verdict.outcome:<7}  {verdict.bound:<{width}}  {verdict.said}", " " * (width + 13))
        if found.reference is not None and any(verdict.outcome == "failed" for verdict in verdicts):
            print("  what to do: lpx explain LPX-E051")
