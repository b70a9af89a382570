"""`lpx snapshot`: write down the installation that works, and see later what changed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpx.plain_text import plain_text

if TYPE_CHECKING:
    from lpx.doctor.snapshot import Change, ModelEntry

app = typer.Typer(invoke_without_command=True)


@app.callback()
def snapshot(
    context: typer.Context,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; standard output without.")
    ] = None,
    models_dir: Annotated[
        Path | None,
        typer.Option("--models-dir", envvar="LPX_MODELS_DIR", help="The model folder. Default: the user's cache."),
    ] = None,
    hash_models: Annotated[
        bool, typer.Option("--hash/--no-hash", help="Read models whose manifest has no hash.")
    ] = True,
) -> None:
    """Record the environment, and compare records: system, driver, CUDA, Python, packages, LPX, models, settings.

    Example: lpx snapshot -o before.json

    Example: lpx snapshot diff before.json after.json
    """
    if context.invoked_subcommand is not None:
        return
    from lpx.cli.tables import count_of
    from lpx.doctor.snapshot import take_snapshot, write_snapshot

    taken = take_snapshot(_models(models_dir), hash_model=_hash_with_progress if hash_models else None)
    if output is None:
        print(json.dumps(taken, ensure_ascii=False, indent=2))
        return
    write_snapshot(output, taken)
    counts = ", ".join(count_of(len(taken[f"{what}s"]), what) for what in ("package", "model", "setting"))
    print(plain_text(f"{output}: {counts}"))


@app.command("diff")
def diff(
    before: Annotated[Path, typer.Argument(help="The earlier record.")],
    after: Annotated[
        Path | None, typer.Argument(help="The later record; the environment as it is now without.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="End with 1 when something differs.")] = False,
) -> None:
    """Say what changed between two records, most important first.

    Example: lpx snapshot diff before.json after.json
    """
    from lpx.doctor.snapshot import compare_snapshots, read_snapshot, take_snapshot

    old = read_snapshot(before)
    new = read_snapshot(after) if after else take_snapshot(_models(None), hash_model=_hash_with_progress)
    changes = compare_snapshots(old, new)
    if json_output:
        rows = [{**dataclasses.asdict(each), "importance": each.importance.name.lower()} for each in changes]
        print(json.dumps({"changes": rows}, ensure_ascii=False, indent=2))
    else:
        _print_changes(changes)
    if exit_code and changes:
        raise typer.Exit(1)


def _models(models_dir: Path | None) -> list[ModelEntry]:
    from lpx import store
    from lpx.doctor.snapshot import ModelEntry

    return [
        ModelEntry(model.name, model.path, model.file_bytes, model.sha256)
        for model in store.list_models(store.models_dir(models_dir))
    ]


def _hash_with_progress(model: Path) -> str | None:
    from lpx.bench.ledger.model_hashes import file_states, hash_model
    from lpx.cli.loading import ByteProgress
    from lpx.errors import LpxError

    with ByteProgress(f"hashing {model.name}", quiet_seconds=1.0) as bar:
        try:
            return hash_model(model, file_states(model), {}, bar.update)[0]
        except (OSError, LpxError):  # one that cannot be read is recorded without a hash
            return None


def _print_changes(changes: list[Change]) -> None:
    if not changes:
        print("nothing changed")
        return
    heading = None
    for change in changes:
        if change.importance is not heading:
            heading = change.importance
            print(f"{heading.name.lower()}:")
        line = f"{change.name}: {_shown(change.before)} -> {_shown(change.after)}  ({change.meaning})"
        print(f"  {plain_text(line)}")


def _shown(value: Any) -> str:
    if value is None:
        return "absent"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:12] + "…" if len(text) == 64 and text.isalnum() else text
