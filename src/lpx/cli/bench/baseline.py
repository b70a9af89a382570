"""`lpx bench baseline`: what later runs are compared with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lpx.cli.bench.recording import LedgerFile, LedgerOptions, open_ledger, record
from lpx.cli.option_groups import ModelOptions, spread_options
from lpx.cli.profile_option import ProfileOption
from lpx.cli.status_line import StatusLine
from lpx.cli.tables import count_of, print_table, print_wrapped

if TYPE_CHECKING:
    from lpx.bench.ledger import Run
    from lpx.bench.measurement import Measurement

app = typer.Typer(help="Set, list, show and remove what `lpx bench gate` compares with.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(help="The baseline's name.", metavar="NAME")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_MOST_OTHERS = 15.0  # percent
_LIMIT, _CLEAR = 0.05, 0.08  # the gate's default, and a slow-down that a baseline is to tell from it


@app.command("set")
@spread_options
def set_baseline(
    context: typer.Context,
    name: _Name,
    profile: ProfileOption,
    model_options: ModelOptions,
    run: Annotated[
        str | None,
        typer.Argument(
            help="A run of the ledger (a number, or `last`), whose workload is measured again. Without it, an engine "
            "with the options below is measured.",
            metavar="[RUN]",
            show_default=False,
        ),
    ] = None,
    input_len: Annotated[int, typer.Option("--input-len", help="Tokens of each prompt.")] = 128,
    output_len: Annotated[int, typer.Option("--output-len", help="Tokens of each answer.")] = 128,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Streams at once.")] = 1,
    duration: Annotated[
        float | None,
        typer.Option(
            "--duration",
            "--seconds",
            help="Measure for so many seconds, four sessions at least. Default: until there are 24 sessions, 600 "
            "seconds at most.",
            metavar="SECONDS",
            min=1,
        ),
    ] = None,
    as_recorded: Annotated[
        bool, typer.Option("--as-recorded", help="Only give the run this name; measure nothing.")
    ] = False,
    most_others: Annotated[
        float,
        typer.Option(
            "--most-others", help="Leave out what was measured while other programs used more.", metavar="PERCENT"
        ),
    ] = _MOST_OTHERS,
    json_output: _Json = False,
    *,
    ledger: LedgerFile = None,
) -> None:
    """Measure a workload in sessions, beside what the machine gives, and keep that under a name.

    Example: lpx bench baseline set main --model smollm2-135m --input-len 128

    From a run: lpx bench serve --url http://127.0.0.1:8080; lpx bench baseline set web last
    """
    from lpx.bench.gate.gate import BASELINE_SECONDS, BASELINE_SESSIONS, MOST_SESSIONS, check_quiet, measure_baseline
    from lpx.bench.gate.pieces import pieces_of
    from lpx.bench.gate.sessions import EngineWorkload, open_sessions, runs_here
    from lpx.bench.ledger.names import checked_baseline
    from lpx.errors import ConfigError

    name = checked_baseline(name)
    options = LedgerOptions(ledger=ledger)
    opened = open_ledger(ledger)
    path: Path | None = None
    if run is not None:
        found = opened.named(run)
        measured = found.measurement
        if as_recorded or pieces_of(measured.samples):
            opened.set_baseline(name, found.id)
            _print_set(name, found, json_output, most_others)
            return
        kind, settings = measured.kind, dict(measured.settings)
    elif as_recorded:
        raise ConfigError("--as-recorded needs a run")
    else:
        from lpx.bench.engine_settings import settings_of
        from lpx.bench.engine_subject import model_path
        from lpx.cli.loading import resolve_engine_options
        from lpx.store import named_as_stored

        profile.announce(context)
        engine_options = named_as_stored(resolve_engine_options(model_options, measure_steps=False))
        path = model_path(engine_options)
        engine = {**settings_of(engine_options), "model": str(path)}
        engine.pop("models_dir", None)
        workload = EngineWorkload(engine=engine, input_len=input_len, output_len=output_len, batch_size=batch_size)
        kind, settings = "latency", workload.settings(repeats=5)
    sessions = open_sessions(kind, settings)
    with StatusLine() as status:
        if kind == "latency" or runs_here(settings.get("base_url", "")):
            status.show("looking whether the machine is quiet")
            check_quiet(most_others / 100)
        status.show("measuring")
        made = measure_baseline(
            sessions,
            kind,
            settings,
            sessions=BASELINE_SESSIONS if duration is None else MOST_SESSIONS,
            seconds=BASELINE_SECONDS if duration is None else duration,
            most_others=most_others / 100,
            progress=lambda done, passed: status.show(
                f"{count_of(done, 'session')} of {BASELINE_SESSIONS}, {passed:.0f} s"
                if duration is None
                else f"{count_of(done, 'session')}, {passed:.0f} of {duration:.0f} s"
            ),
        )
    if path is None and kind == "latency":
        path = Path(settings["engine"]["model"])
    run_id = record(options, made, model=path)
    if run_id is None:
        raise typer.Exit(3)
    opened.set_baseline(name, run_id)
    _print_set(name, opened.get(run_id), json_output, most_others)


@app.command("list")
def list_baselines(json_output: _Json = False, ledger: LedgerFile = None) -> None:
    """List all baselines.

    Example: lpx bench baseline list
    """
    opened = open_ledger(ledger)
    runs = {name: opened.get(run_id) for name, run_id in opened.baselines().items()}
    if json_output:
        print(json.dumps([_values(name, run) for name, run in runs.items()], ensure_ascii=False, indent=2))
        return
    if not runs:
        print("there is no baseline yet; `lpx bench baseline set NAME` makes one")
        return
    rows = []
    for name, run in runs.items():
        made = run.measurement
        decode = made.figures.get("decode_tokens_per_second")
        shown = "" if decode is None else f"{decode:.1f}"
        rows.append((name, str(run.id), f"{made.started:%Y-%m-%d %H:%M}", made.kind, made.subject.model, shown))
    columns = ("name", "run", "measured", "kind", "model", "tokens/s")
    print_table(columns, rows, right=("run", "tokens/s"), cut=("model",), folded=("name",))


@app.command("show")
def show_baseline(name: _Name, json_output: _Json = False, ledger: LedgerFile = None) -> None:
    """Show a baseline: its figures, and how sure they are.

    Example: lpx bench baseline show main
    """
    opened = open_ledger(ledger)
    run = opened.get(opened.baseline(name))
    if json_output:
        print(json.dumps(_values(name, run), ensure_ascii=False, indent=2))
        return
    _print_baseline(name, run)


@app.command("rm")
def remove_baseline(name: _Name, ledger: LedgerFile = None) -> None:
    """Forget a baseline; its run stays in the ledger.

    Example: lpx bench baseline rm main
    """
    open_ledger(ledger).remove_baseline(name)
    print(f"removed the baseline {name}")


def _print_set(name: str, run: Run, json_output: bool, most_others: float) -> None:
    if json_output:
        print(json.dumps(_values(name, run), ensure_ascii=False, indent=2))
        return
    _print_baseline(name, run)
    allowed = "" if most_others == _MOST_OTHERS else f" --most-others {most_others:g}"
    print(f"\ncompare with it: lpx bench gate --baseline {name} --fail-on decode:-5%{allowed}")


def _print_baseline(name: str, run: Run) -> None:
    from statistics import median

    from lpx.bench.gate.conditions import short_name
    from lpx.bench.gate.pieces import by_session, pieces_of, spread_between_sessions
    from lpx.bench.weather import MUCH_OTHERS

    made: Measurement = run.measurement
    subject = made.subject
    pieces = pieces_of(made.samples)
    parts = (subject.model, subject.engine, subject.device, subject.isa, subject.kv_cache_dtype, subject.url)
    print_wrapped(f"baseline {name}: run {run.id}, {made.kind}, {made.started:%Y-%m-%d %H:%M} UTC")
    print_wrapped(" · ".join(filter(None, parts)))
    if pieces:
        print(f"{count_of(len(by_session(pieces)), 'session')} in {made.seconds:.0f} s")
        if (others := median(piece.others_share for piece in pieces)) > MUCH_OTHERS:
            print_wrapped(
                f"note: other programs used {others:.0%} of the processors meanwhile: these figures say little"
            )
    else:
        print("measured once: a gate cannot judge by it")
    print()
    rows, smallest = [], _smallest_changes(made)
    for figure, value in made.figures.items():
        spread = spread_between_sessions(pieces, figure)
        change = smallest.get(figure)
        rows.append(
            (
                short_name(figure),
                f"{value:.4g}",
                "" if spread is None else f"±{100 * spread:.1f} %",
                "" if change is None else f"{100 * change:.1f} %",
            )
        )
    columns = ("figure", "median", "between sessions", "smallest change")
    print_table(columns, rows, right=columns[1:], cut=("figure",))
    if (change := smallest.get("decode_tokens_per_second")) is not None:
        _print_reach(change)


def _print_reach(change: float) -> None:
    """What a gate can judge by this baseline, in words."""
    fails, passes = (_LIMIT + sign * change * (1 - _LIMIT) for sign in (1, -1))
    print()
    print_wrapped(
        "smallest change: how far from its limit a change must lie for a gate with as many sessions, in weather like "
        f"this, to judge it in nearly all cases. With decode:-{100 * _LIMIT:g}% it fails from -{100 * fails:.1f} % on"
        + (f" and passes up to -{100 * passes:.1f} %" if passes > 0 else "")
        + ("" if fails <= _CLEAR else "; a longer --duration makes that sharper")
    )


def _smallest_changes(made: Measurement) -> dict[str, float]:
    """Of each figure; see `lpx.bench.gate.sharpness`."""
    from lpx.bench.gate.gate import undisturbed
    from lpx.bench.gate.pieces import pieces_of
    from lpx.bench.gate.sessions import usual_share
    from lpx.bench.gate.sharpness import smallest_changes

    pieces, usual = pieces_of(made.samples), usual_share(made.kind, made.batch_size or 1)
    return smallest_changes(undisturbed(pieces), usual) or smallest_changes(pieces, usual)


def _values(name: str, run: Run) -> dict[str, object]:
    from lpx.bench.ledger.export import run_to_json

    return {"name": name, "run": run_to_json(run), "smallest_changes": _smallest_changes(run.measurement)}
