"""`lpx bench serve`: a load on any server, and how it bears it."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpx.cli import EXIT_INTERRUPTED
from lpx.cli.bench.load_results import ResultFiles
from lpx.cli.bench.load_table import LATENCY_NAMES, print_load
from lpx.cli.bench.recording import LedgerOptions, print_run, record
from lpx.cli.bench.server_options import ServerOptions, run_until_interrupted, whole_numbers
from lpx.cli.option_groups import spread_options
from lpx.cli.status_line import StatusLine
from lpx.errors import ConfigError, LpxError
from lpx.plain_text import plain_text

if TYPE_CHECKING:
    from asyncio import Event

    from lpx.bench.load import LoadProgress, LoadReport, LoadSettings


def _load(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Load", **more)


def _data(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Prompts", **more)


def _result(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Result", **more)


@spread_options
def serve(
    server: ServerOptions,
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,  # values behind --goodput and --metadata
    max_concurrency: Annotated[
        str | None,
        _load(
            "--max-concurrency",
            "--concurrency",
            help="Requests at once; a list such as 1,4,16 is measured one after another. Default: 8, or no bound with "
            "--request-rate.",
            metavar="N[,N…]",
        ),
    ] = None,
    num_prompts: Annotated[
        int | None,
        _load("--num-prompts", help="Requests of each level. Default: 48 of the fixed set, else 4 a stream."),
    ] = None,
    duration: Annotated[
        float | None, _load("--duration", help="Begin requests for so many seconds.", metavar="SECONDS")
    ] = None,
    request_rate: Annotated[
        str,
        _load("--request-rate", help="Requests a second, at random times; inf: as others end.", metavar="RATE"),
    ] = "inf",
    burstiness: Annotated[
        float, _load("--burstiness", help="Shape of the gamma distribution between requests; 1 is Poisson.")
    ] = 1.0,
    ramp_up_strategy: Annotated[
        str | None, _load("--ramp-up-strategy", help="linear or exponential.", metavar="KIND")
    ] = None,
    ramp_up_start_rps: Annotated[float | None, _load("--ramp-up-start-rps", help="Rate of the first requests.")] = None,
    ramp_up_end_rps: Annotated[float | None, _load("--ramp-up-end-rps", help="Rate of the last requests.")] = None,
    num_warmups: Annotated[
        int | None,
        _load("--num-warmups", help="Requests before, in no figure. Default: as many as run at once, at most 16."),
    ] = None,
    disable_stream: Annotated[bool, _load("--disable-stream", help="Ask for whole answers.")] = False,
    dataset_name: Annotated[
        str,
        _data(
            "--dataset-name",
            help="fixed (Chinese and English, 32, 64 and 128 tokens), random, prefix_repetition (a shared beginning), "
            "long, chat (several turns), custom (JSON lines) or sharegpt.",
            metavar="NAME",
        ),
    ] = "fixed",
    dataset_path: Annotated[
        str | None, _data("--dataset-path", help="File for custom and sharegpt.", metavar="FILE")
    ] = None,
    input_len: Annotated[
        int | None, _data("--random-input-len", "--input-len", help="Tokens of a prompt that is made.")
    ] = None,
    output_len: Annotated[
        int | None,
        _data(
            "--random-output-len",
            "--output-len",
            "--custom-output-len",
            "--sharegpt-output-len",
            help="Most tokens of an answer.",
        ),
    ] = None,
    range_ratio: Annotated[
        float, _data("--random-range-ratio", help="Draw lengths from this share around them: 0.5 is ±50 %.")
    ] = 0.0,
    prefix_len: Annotated[
        int | None,
        _data(
            "--random-prefix-len", "--prefix-len", "--prefix-repetition-prefix-len", help="Tokens that prompts share."
        ),
    ] = None,
    num_prefixes: Annotated[
        int, _data("--num-prefixes", "--prefix-repetition-num-prefixes", help="How many shared beginnings.")
    ] = 1,
    unique_prompts: Annotated[
        bool | None,
        _data(
            "--unique-prompts/--no-unique-prompts",
            help="Begin each prompt in its own way, which no prefix cache knows. Default: all sets but your files.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, _data("--seed", help="Draws prompts, lengths and times.")] = 0,
    ignore_eos: Annotated[bool, _data("--ignore-eos", help="Go on to the full length.")] = False,
    temperature: Annotated[float, _data("--temperature", help="0 is greedy.")] = 0.0,
    top_p: Annotated[float | None, _data("--top-p", help="Nucleus.")] = None,
    top_k: Annotated[int | None, _data("--top-k", help="Likeliest tokens kept.")] = None,
    goodput: Annotated[
        list[str] | None,
        _result(
            "--goodput",
            help="Count requests that keep limits in milliseconds: ttft:200 tpot:50 itl:… e2el:…",
            metavar="LIMIT",
        ),
    ] = None,
    percentile_metrics: Annotated[
        str, _result("--percentile-metrics", help="Which times to show.", metavar="NAMES")
    ] = "ttft,tpot,itl,e2el",
    metric_percentiles: Annotated[
        str, _result("--metric-percentiles", help="Which percentiles.", metavar="NUMBERS")
    ] = "90,95,99",
    save_result: Annotated[bool, _result("--save-result", help="Write a file with vLLM's member names.")] = False,
    save_detailed: Annotated[bool, _result("--save-detailed", help="With every request and text in it.")] = False,
    result_dir: Annotated[
        Path | None, _result("--result-dir", help="Where to. Default: this folder.", metavar="FOLDER")
    ] = None,
    result_filename: Annotated[
        str | None, _result("--result-filename", help="Its name; a new file.", metavar="NAME")
    ] = None,
    append_result: Annotated[
        bool, _result("--append-result", help="Add a line of JSON to the file where it is there already.")
    ] = False,
    metadata: Annotated[
        list[str] | None, _result("--metadata", help="To keep with the result: KEY=VALUE …", metavar="KEY=VALUE")
    ] = None,
    json_output: Annotated[bool, _result("--json", help="Print JSON.")] = False,
    *,
    ledger_options: LedgerOptions,
) -> None:
    """Put a load on a server with an OpenAI-compatible API, or on LPX, and see how it answers.

    Tokens are counted by the server, never by pieces of a stream. Ctrl-C shows what was measured so far.

    Example: lpx bench serve --url http://127.0.0.1:8080 --max-concurrency 1,4,16 --goodput ttft:200 tpot:50
    """
    from lpx.bench.load import LoadSettings

    limits, facts = _sorted_values(goodput or [], metadata or [], more or [])
    shown = _shown_latencies(percentile_metrics)
    rate = _rate(request_rate)
    common = {
        **server.load_settings(),
        "num_prompts": num_prompts,
        "duration_s": duration,
        "request_rate": rate,
        "burstiness": burstiness,
        "ramp_up_strategy": ramp_up_strategy,
        "ramp_up_start_rps": ramp_up_start_rps,
        "ramp_up_end_rps": ramp_up_end_rps,
        "num_warmups": num_warmups,
        "stream": not disable_stream,
        "dataset_name": dataset_name,
        "dataset_path": dataset_path,
        "input_len": input_len,
        "output_len": output_len,
        "range_ratio": range_ratio,
        "prefix_len": prefix_len,
        "num_prefixes": num_prefixes,
        "unique_prompts": unique_prompts,
        "seed": seed,
        "ignore_eos": ignore_eos,
        "temperature": temperature,
        "goodput": limits,
        "percentiles": _numbers(metric_percentiles),
        "metadata": facts,
    }
    if top_p is not None and not 0 < top_p <= 1:
        raise ConfigError(f"--top-p must be above 0 and at most 1, not {top_p:g}")
    sampling = {name: value for name, value in (("top_p", top_p), ("top_k", top_k)) if value is not None}
    common["extra_body"] = {**sampling, **common["extra_body"]}
    levels: Sequence[int | None]
    if max_concurrency is not None:
        levels = whole_numbers(max_concurrency, "--max-concurrency")
    else:
        levels = [8] if rate is None and ramp_up_strategy is None else [None]
    all_settings = [LoadSettings(**common, max_concurrency=level) for level in levels]
    files: ResultFiles | None = None
    if save_result or save_detailed or append_result or result_dir is not None or result_filename is not None:
        files = ResultFiles.planned(
            all_settings, result_dir or Path(), result_filename, append=append_result, detailed=save_detailed
        )

    with StatusLine() as status:

        def measure(stopping: Event) -> Coroutine[Any, Any, tuple[list[LoadReport], LpxError | None]]:
            return _measure(all_settings, server.api_key, status, stopping)

        reports, failure = run_until_interrupted(measure)
    run_ids = [
        record(ledger_options, report.measurement()) if report.results and not report.interrupted else None
        for report in reports
    ]
    saved = files.write(reports) if files is not None else []
    if json_output:
        values = [
            {"run_id": run_id, **report.as_json(save_detailed)} for run_id, report in zip(run_ids, reports, strict=True)
        ]
        print(json.dumps({"reports": values}, ensure_ascii=False, indent=2))
    else:
        print_load(reports, shown)
        for path in saved:
            print(plain_text(f"saved {path}"))
        for run_id in run_ids:
            print_run(run_id)
    if failure is not None:
        raise failure
    if any(report.interrupted for report in reports):
        raise typer.Exit(EXIT_INTERRUPTED)
    if not all(report.results for report in reports):
        raise typer.Exit(1)


async def _measure(
    all_settings: Sequence[LoadSettings], api_key: str | None, status: StatusLine, stopping: Event
) -> tuple[list[LoadReport], LpxError | None]:
    """The levels that were measured, and what kept the next one from it."""
    from lpx.bench.load import measure_load

    reports: list[LoadReport] = []
    sent = 0
    for settings in all_settings:
        of = f" at {settings.max_concurrency}" if len(all_settings) > 1 else ""

        def tell(state: LoadProgress, of: str = of) -> None:
            status.show(_progress(state) + of)

        try:
            report = await measure_load(settings, tell, api_key=api_key, stopping=stopping, sent_before=sent)
        except LpxError as error:
            if not reports:
                raise
            return reports, error
        reports.append(report)
        sent += report.sent
        if stopping.is_set():
            break
    return reports, None


def _progress(state: LoadProgress) -> str:
    if state.phase == "prompts":
        return f"making prompts, {state.done} of {state.total}"
    if state.phase == "warm-up":
        return f"warming up, {state.done} of {state.total}"
    if state.phase == "recount":
        return "counting tokens again"
    failed = f", {state.failed} failed" if state.failed else ""
    rate = state.output_tokens / state.seconds if state.seconds else 0.0
    return f"{state.done} of {state.total} done, {state.running} running{failed}, {rate:.1f} tokens/s"


def _rate(text: str) -> float | None:
    try:
        rate = float(text)
    except ValueError:
        raise ConfigError(f"--request-rate is a number of requests a second or inf, not {text!r}") from None
    return None if rate == float("inf") else rate


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--metric-percentiles is a list such as 90,95,99, not {text!r}") from None


def _shown_latencies(text: str) -> list[str]:
    shown = [part.strip() for part in text.split(",")]
    for name in shown:
        if name not in LATENCY_NAMES:
            raise ConfigError(f"--percentile-metrics {name!r} is not known; take some of {', '.join(LATENCY_NAMES)}")
    return [name for name in LATENCY_NAMES if name in shown or (name == "ttft_visible" and "ttft" in shown)]


def _sorted_values(
    goodput: Sequence[str], metadata: Sequence[str], more: Sequence[str]
) -> tuple[dict[str, float], dict[str, str]]:
    """Limits and metadata. vLLM lets several values stand behind one option; those further ones are in `more`."""
    limits: dict[str, float] = {}
    facts: dict[str, str] = {}
    for value in metadata:
        if "=" not in value:
            raise ConfigError(f"--metadata {value!r} is no KEY=VALUE; write it as in --metadata driver=570")
    for value in [part for given in goodput for part in given.replace(",", " ").split()] + [*metadata, *more]:
        name, colon, limit = value.partition(":")
        key, equals, fact = value.partition("=")
        if equals and (metadata or not colon):
            if not metadata:
                raise ConfigError(f"{value!r} stands alone; did you mean --metadata {value}?")
            if not key.strip():
                raise ConfigError(f"--metadata {value!r} has no key before the =")
            facts[key.strip()] = fact
            continue
        if not goodput:
            raise ConfigError(f"{value!r} is no option; see lpx bench serve --help")
        try:
            limits[name] = float(limit)
        except ValueError:
            raise ConfigError(f"--goodput {value!r} is no limit; write it as ttft:200, in milliseconds") from None
    return limits, facts
