"""`lpx tune`: find options that make a model faster on this machine, and write them to a profile."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpx.cli import EXIT_INTERRUPTED
from lpx.cli.bench.recording import LedgerOptions, record
from lpx.cli.option_groups import ModelOptions, spread_options
from lpx.cli.profile_option import ProfileOption
from lpx.cli.status_line import StatusLine
from lpx.cli.tables import count_of, print_table, print_wrapped
from lpx.cli.whole_file import check_target
from lpx.plain_text import plain_text

if TYPE_CHECKING:
    from lpx.bench.measurement import Measurement
    from lpx.bench.tune import Goal, Outcome, Step, TuneState

_EXIT_LIMITS_MISSED = 1


@spread_options
def tune(
    context: typer.Context,
    profile: ProfileOption,
    model_options: ModelOptions,
    target: Annotated[
        str, typer.Option("--target", help="latency: one request at a time; throughput: many at once.")
    ] = "latency",
    slo: Annotated[
        str | None,
        typer.Option(
            "--slo", help="Limits in ms that 95 % of requests must keep, such as ttft:200,itl:10.", metavar="LIMITS"
        ),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", help="Requests at once. Default: 16 for throughput.", min=1)
    ] = None,
    duration: Annotated[
        float,
        typer.Option(
            "--duration", "--budget-s", help="Seconds that it may take, about.", metavar="SECONDS", min=1, max=86_400
        ),
    ] = 480,
    output: Annotated[Path, typer.Option("--output", "-o", help="The profile to write.", metavar="FILE")] = Path(
        "lpx.toml"
    ),
    allow_lossy: Annotated[
        bool, typer.Option("--allow-lossy", help="Try options that change answers, such as a q8 cache.")
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew instead of going on.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a profile that is there.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    *,
    ledger_options: LedgerOptions,
) -> None:
    """Change one option at a time, keep what is faster without doubt, and write a profile.

    Starts from the defaults. Options that are given, here, in the environment or by --profile, stay as they are. Ctrl-C
    writes what is known, and so does the end of --duration; the same command then goes on. Exit codes: 0 the profile is
    written, 1 the limits of --slo cannot be kept, 130 Ctrl-C.

    Example: lpx tune --model smollm2-135m --target latency -o lpx.toml

    Example: lpx tune --model smollm2-135m --target throughput --slo ttft:2000,itl:50
    """
    from lpx.bench.engine_subject import model_path
    from lpx.bench.tune import Goal, Slo, Tuner, TuneState
    from lpx.bench.tune.start import tuning_options
    from lpx.bench.tune.state import identity, load_state, save_state, state_path
    from lpx.cli.loading import resolve_engine_options
    from lpx.errors import ConfigError
    from lpx.store import named_as_stored

    profile.announce(context)
    goal = Goal(target, Slo.parse(slo), concurrency or (1 if target == "latency" else 16), allow_lossy)
    given = _given(context, model_options)
    _check_output(output, overwrite)
    options = named_as_stored(resolve_engine_options(model_options))
    model = model_path(options)
    wanted = identity(model, {name: str(value) for name, value in given.items()}, goal.to_json())
    kept_at = state_path(output)
    if restart:
        kept_at.unlink(missing_ok=True)
    state = load_state(kept_at, wanted)
    if state is None:
        state = TuneState(wanted)
    else:
        done = sum(1 for step in state.steps if step["rounds"])
        print(plain_text(f"going on from {kept_at}: {count_of(done, 'step')} done"), file=sys.stderr)

    def keep(measurement: Measurement, tried: str) -> int | None:
        return record(ledger_options, measurement, model=model, tags=[tried])

    def save(state: TuneState) -> None:
        try:
            save_state(kept_at, state)
        except OSError as error:
            raise ConfigError(f"{kept_at} cannot be written: {error.strerror}") from None

    with StatusLine() as status:
        outcome = Tuner(
            tuning_options(options, goal),
            goal,
            state,
            fixed=frozenset(given),
            budget_s=duration,
            record=keep,
            save=save,
            tell=status.show,
        ).run()
    carried = {**profile.values(context), **given, **_model_keys(context, model_options, model)}
    _write(outcome, goal, carried, output)
    if outcome.finished:
        kept_at.unlink(missing_ok=True)
    else:
        save(state)  # even if no step was done: it says whose profile this is
    if json_output:
        print(json.dumps(_as_json(outcome, goal, output), ensure_ascii=False, indent=2))
    else:
        _print_outcome(outcome, goal, output)
    if outcome.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if not outcome.keeps_slo:
        raise typer.Exit(_EXIT_LIMITS_MISSED)


def _given(context: typer.Context, options: ModelOptions) -> dict[str, Any]:
    """Options that somebody chose, by name; which model it is does not count."""
    found = {}
    for field in dataclasses.fields(options):
        source = context.get_parameter_source(field.name)
        if field.name not in ("model", "models_dir") and source is not None and source.name != "DEFAULT":
            found[field.name] = getattr(options, field.name)
    return found


def _model_keys(context: typer.Context, options: ModelOptions, model: Path) -> dict[str, Any]:
    """The model as the profile names it: by name where it has one, else by its absolute path."""
    from lpx import store

    name = options.model or store.DEFAULT_MODEL
    if Path(name).exists():
        return {"model": str(model)}
    source = context.get_parameter_source("models_dir")
    if options.models_dir is None or source is None or source.name not in ("COMMANDLINE", "DEFAULT_MAP"):
        return {"model": name}
    return {"model": name, "models_dir": str(options.models_dir.absolute())}


def _check_output(output: Path, overwrite: bool) -> None:
    from lpx.bench.tune.state import state_path
    from lpx.errors import ConfigError

    check_target("-o", output, "lpx.toml")
    if output.exists() and not overwrite and not state_path(output).exists():
        raise ConfigError(f"{output} is there already; --overwrite replaces it, -o names another file")


def _write(outcome: Outcome, goal: Goal, carried: dict[str, Any], output: Path) -> None:
    from datetime import date

    from lpx.bench.tune.profile import tuned_profile
    from lpx.doctor.environment import read_environment
    from lpx.errors import ConfigError
    from lpx.profile import key_named, write_profile

    machine = read_environment().cpu_model or "this machine"
    try:
        text = tuned_profile(outcome, goal, carried, machine, date.today())
        write_profile(output, text, private=any(key_named(name).secret for name in carried))
    except OSError as error:
        raise ConfigError(f"the profile {output} cannot be written: {error.strerror}") from None


def _as_json(outcome: Outcome, goal: Goal, output: Path) -> dict[str, Any]:
    best = outcome.best
    return {
        "goal": goal.to_json(),
        "values": outcome.values,
        "steps": [dataclasses.asdict(step) for step in outcome.steps],
        "finished": outcome.finished,
        "interrupted": outcome.interrupted,
        "others_share": outcome.others_share,
        "keeps_slo": outcome.keeps_slo,
        "workload": None if outcome.workload is None else outcome.workload.to_json(),
        "ttft_ms_p95": None if best is None else best.ttft_ms_p95,
        "itl_ms_p95": None if best is None else best.itl_ms_p95,
        "profile": str(output),
    }


def _print_outcome(outcome: Outcome, goal: Goal, output: Path) -> None:
    from lpx.bench.tune.profile import nothing_kept, unfinished
    from lpx.bench.tune.tuner import describe

    rows = [
        (describe(step.option, step.value), *_speed_cells(step), "yes" if step.kept else "", step.why)
        for step in outcome.steps
    ]
    columns = ("change", "speed", "between", "kept", "why")
    print_table(columns, rows, right=("speed", "between"), folded=("change", "why"))
    best = outcome.best
    if best is not None or not outcome.values:
        print()
    if not outcome.values:
        print_wrapped(nothing_kept(outcome))
    if best is not None:
        name = "the best found" if outcome.finished else "the best so far"
        print_wrapped(f"{name}: p95 ttft {best.ttft_ms_p95:.0f} ms, p95 itl {best.itl_ms_p95:.2f} ms")
    if goal.slo and not outcome.keeps_slo:
        print_wrapped(f"{goal.slo.describe()} is NOT kept; nothing that was tried keeps it")
    if outcome.disturbed:
        print_wrapped(
            f"other programs used {outcome.others_share:.0%} of the processors meanwhile, so these figures say little: "
            "end them and repeat it with --restart"
        )
    print(plain_text(f"wrote {output}: lpx serve --profile {output}"))
    if not outcome.finished:
        print_wrapped(unfinished(outcome))


def _speed_cells(step: Step) -> tuple[str, str]:
    if step.ratio is None:
        return "", ""
    between = "" if step.low is None or step.high is None else f"{step.low:.2f} to {step.high:.2f}"
    return f"{step.ratio:.3f}", between
