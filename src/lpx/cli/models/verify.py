"""`lpx models verify`: whether what lies in the store is still what came."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from lpx.cli.models.options import Json, ModelsDir


def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="NAME (all its versions) or NAME@VERSION; without one, every model."),
    ] = None,
    models_dir: ModelsDir = None,
    json_output: Json = False,
) -> None:
    """Read models whole and compare every file with its hash; the exit code is 1 when one is damaged.

    Example: lpx models verify smollm2-135m
    """
    from lpx import store
    from lpx.cli.loading import ByteProgress
    from lpx.store.verify import verify as verify_version
    from lpx.store.versions import matching

    folder = store.models_dir(models_dir)
    models = matching(folder, names or [])
    verdicts = []
    for model in models:
        with ByteProgress(f"checking {model.spelled}", quiet_seconds=1.0) as bar:
            verdicts.append(verify_version(model, bar.update))
        if not json_output:
            _print(verdicts[-1].problems, model.spelled, verdicts[-1].has_hashes)
    if json_output:
        rows = [{**dataclasses.asdict(verdict), "sound": verdict.sound} for verdict in verdicts]
        print(json.dumps(rows, ensure_ascii=False))
    if not all(verdict.sound for verdict in verdicts):
        raise typer.Exit(1)


def _print(problems: tuple[str, ...], spelled: str, has_hashes: bool) -> None:
    from lpx.plain_text import plain_text

    spelled = plain_text(spelled)
    if not problems:
        print(f"ok       {spelled}" + ("" if has_hashes else "  (it can be opened; there is no hash to compare with)"))
    for problem in problems:
        print(f"damaged  {spelled}  {plain_text(problem)}")
