"""`lpx batch run|check|status`: many requests from a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpx.cli.option_groups import ModelOptions, spread_options
from lpx.cli.profile_option import ProfileOption

if TYPE_CHECKING:
    from lpx.batch.file_run import FileRun
    from lpx.batch.progress import Progress
    from lpx.batch.runner import RunSettings

_SHOWN_REASONS = 8  # of failures, in the summary for people

app = typer.Typer(help="Answer every line of a file.", no_args_is_help=True)

_Input = Annotated[
    Path | None, typer.Option("--input-file", "-i", help="JSON lines to answer.", show_default=False, metavar="FILE")
]
_Output = Annotated[
    Path | None, typer.Option("--output-file", "-o", help="Where results go.", show_default=False, metavar="FILE")
]
_Config = Annotated[
    Path | None,
    typer.Option("--config", help="JSON with input_file, output_file, batch_size, retry_count.", metavar="FILE"),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("run")
@spread_options
def run(
    context: typer.Context,
    profile: ProfileOption,
    model_options: ModelOptions,
    input_file: _Input = None,
    output_file: _Output = None,
    config: _Config = None,
    url: Annotated[
        str | None,
        typer.Option("--url", help="Ask this OpenAI-compatible server instead of loading a model.", metavar="URL"),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            help="Key of that server; better in LPX_BATCH_API_KEY or OPENAI_API_KEY, where nobody sees it.",
            envvar=["LPX_BATCH_API_KEY", "OPENAI_API_KEY"],
            show_default=False,
            show_envvar=False,
        ),
    ] = None,
    max_inflight: Annotated[
        int | None,
        typer.Option("--max-inflight", help="Requests at once. Default: 32, with --url 16.", min=1, max=10_000),
    ] = None,
    retries: Annotated[
        int | None, typer.Option("--retries", help="Attempts after the first. Default: 3.", min=0, max=1000)
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds for one attempt with --url.", min=1)] = 600.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an output that exists: only what is missing.")
    ] = (False),
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume: do lines that ended in an error again.")
    ] = False,
    order: Annotated[
        str | None,
        typer.Option("--order", help="Of the finished output: input (default), or completion.", metavar="ORDER"),
    ] = None,
    log_file: Annotated[
        Path | None, typer.Option("--log-file", help="Append a line for each line, without texts.", metavar="FILE")
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option("--served-model-name", help="Name that lines may call the model by.")
    ] = None,
    json_output: _Json = False,
) -> None:
    """Answer every line, and write each result when it is there.

    Example: lpx batch run -i in.jsonl -o out.jsonl --model smollm2-135m

    A killed run goes on with: lpx batch run -i in.jsonl -o out.jsonl --resume
    """
    from lpx.batch.file_run import FilePlan, FileRun
    from lpx.batch.job import BatchConfig, read_config
    from lpx.batch.runner import RunSettings
    from lpx.errors import ConfigError

    given = BatchConfig() if config is None else read_config(config)
    source = input_file or _path(given.input_file)
    target = output_file or _path(given.output_file)
    if source is None or target is None:
        raise ConfigError("name the input with -i and the output with -o, or both in the file of --config")
    chosen = BatchConfig(order=order).order or given.order or "input"
    server = url or given.url
    if server is None:
        profile.announce(context)
    # LPX_MODEL is about engines of this machine: a server hears of a model only if this very run names one.
    typed = getattr(context.get_parameter_source("model"), "name", None) == "COMMANDLINE"
    model = (model_options.model if typed or server is None else None) or given.model
    plan = FilePlan(
        source,
        target,
        "completion" if chosen == "completion" else "input",
        resume,
        retry_failed,
        log_file or _path(given.log_file),
    )
    settings = RunSettings(
        max_inflight=max_inflight or given.batch_size or (32 if server is None else 16),
        retries=retries if retries is not None else 3 if given.retry_count is None else given.retry_count,
    )
    with _resumable(), FileRun(plan) as files:
        try:
            if files.progress.remaining == 0:
                files.finish()
            elif server is not None:
                _run_on_server(files, settings, server, api_key, model, timeout)
            else:
                _run_in_process(files, settings, model_options, model, served_model_name)
        finally:
            _print_summary(files.progress, target, json_output)
        if files.stopped_by is not None:
            raise typer.Exit(128 + files.stopped_by)
        if files.progress.failed or files.progress.failed_before:
            raise typer.Exit(1)


@app.command("check")
def check(
    input_file: Annotated[Path, typer.Option("--input-file", "-i", help="JSON lines to look at.", metavar="FILE")],
    json_output: _Json = False,
) -> None:
    """Say what is wrong with an input, without sending anything; exit code 1 if anything is.

    Example: lpx batch check -i in.jsonl
    """
    from lpx.batch.checking import check_input
    from lpx.batch.input_file import InputFile

    with InputFile(input_file) as source:
        report = check_input(source)
    if json_output:
        print(json.dumps(report.as_json(), ensure_ascii=False))
    else:
        print(f"{report.records} lines, {report.blank} blank, {report.faulty} faulty")
        for endpoint, count in report.endpoints.items():
            print(f"  {count} for {endpoint}")
        if report.duplicates:
            print(f"  {report.duplicates} with the custom_id of an earlier line: each is answered; tell them by index")
        for fault in report.faults:
            print(f"line {fault.line}: {fault.message} [{fault.code}]")
        if len(report.faults) < report.faulty + report.duplicates:
            print(f"… and {report.faulty + report.duplicates - len(report.faults)} more")
    if report.faulty or report.duplicates:
        raise typer.Exit(1)


@app.command("status")
def status(
    input_file: Annotated[Path, typer.Option("--input-file", "-i", help="The input of a run.", metavar="FILE")],
    output_file: Annotated[Path, typer.Option("--output-file", "-o", help="Its output.", metavar="FILE")],
    json_output: _Json = False,
) -> None:
    """Say how far a run is, also while it runs.

    Example: lpx batch status -i in.jsonl -o out.jsonl
    """
    from lpx.batch.standing import read_standing

    standing = read_standing(input_file, output_file)
    if json_output:
        print(json.dumps(standing.as_json()))
        return
    print(
        f"{standing.done} of {standing.total} lines done ({standing.failed} failed), {standing.missing} missing, "
        f"{standing.blank} blank; {'a run is writing' if standing.running else 'no run is writing'}"
    )


@contextmanager
def _resumable() -> Iterator[None]:
    """How this command goes on when the disk refuses the results; a server goes on by itself."""
    from lpx.batch.errors import OutputWriteError

    try:
        yield
    except OutputWriteError as error:
        raise OutputWriteError(f"{error} with --resume") from None


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _run_on_server(
    files: FileRun, settings: RunSettings, url: str, api_key: str | None, model: str | None, timeout: float
) -> None:
    import asyncio

    from lpx.batch.http_target import HttpTarget

    for name in ("LPX_BATCH_API_KEY", "OPENAI_API_KEY"):
        os.environ.pop(name, None)  # of no use to anything that this process starts

    async def work() -> None:
        async with HttpTarget(
            url, api_key=api_key, model=model, connections=settings.max_inflight, timeout_s=timeout
        ) as target:
            await target.look()
            with _Bar() as bar:
                await files.run(target, settings, bar.show)

    asyncio.run(work())


def _run_in_process(
    files: FileRun, settings: RunSettings, options: ModelOptions, model: str | None, served_model_name: str | None
) -> None:
    import dataclasses

    from lpx.batch.input_file import MAX_LINE_BYTES
    from lpx.cli.loading import load_engine, resolve_engine_options
    from lpx.engine.async_engine import AsyncEngine
    from lpx.server.http_protocol import run_on_new_loop
    from lpx.server.in_process import engine_target

    engine_options = resolve_engine_options(dataclasses.replace(options, model=model), served_model_name)
    engine_options.max_waiting = max(engine_options.max_waiting, 2 * settings.max_inflight)
    engine = AsyncEngine.start(load_engine(engine_options))

    async def work() -> None:
        async with engine_target(engine, MAX_LINE_BYTES) as target:
            with _Bar() as bar:
                await files.run(target, settings, bar.show)

    run_on_new_loop(work())


def _print_summary(progress: Progress, output: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**progress.as_json(), "output": str(output)}, ensure_ascii=False))
        return
    before = f", {progress.done_before} done before" if progress.done_before else ""
    missing = f", {progress.remaining} missing" if progress.remaining else ""
    print(
        f"{progress.succeeded} succeeded, {progress.failed} failed{before}{missing}, {progress.blank} blank lines "
        f"skipped, {progress.retries} retries\n{progress.elapsed_s:.1f} s, {progress.lines_per_second:.1f} lines/s, "
        f"{progress.tokens_per_second:.0f} tokens/s -> {output}",
        file=sys.stderr,
    )
    shown = progress.failures.largest(_SHOWN_REASONS)
    for reason in shown:
        status = "no answer" if reason.status is None else f"status {reason.status}"
        print(f"  {reason.count} failed: {reason.code} ({status}), such as line {reason.line}", file=sys.stderr)
    if left := progress.failed - sum(reason.count for reason in shown):
        print(f"  {left} failed for other reasons; each is in the output as `error`", file=sys.stderr)


class _Bar:
    """Lines done, rate and time to go, on stderr where that is a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> _Bar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            columns = (BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.fields[figures]}"))
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=None, figures="")
            self._bar.start()
        return self

    def __exit__(self, *ending: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, progress: Progress) -> None:
        if self._bar is None:
            return
        from lpx.batch.progress import clock

        eta = "?" if progress.eta_s is None else clock(progress.eta_s)
        failed = progress.failed_before + progress.failed
        figures = f"{progress.lines_per_second:.1f}/s {progress.tokens_per_second:.0f} tok/s ETA {eta}"
        figures += f" {failed} failed" if failed else ""
        self._bar.update(
            self._task, completed=progress.done_before + progress.done, total=progress.total, figures=figures
        )
