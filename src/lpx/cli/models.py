"""`lpx models`: what is in the model folder, and how to get more."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="List, pull and find models.", no_args_is_help=True)

_ModelsDir = Annotated[
    Path | None,
    typer.Option("--models-dir", envvar="LPX_MODELS_DIR", help="The model folder. Default: the user's cache."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("pull")
def pull(
    name: Annotated[str, typer.Argument(help="A name that `lpx models list` shows as available.")],
    models_dir: _ModelsDir = None,
    json_output: _Json = False,
) -> None:
    """Fetch a model into the model folder and check its hash.

    Example: lpx models pull smollm2-135m
    """
    from lpx import store
    from lpx.cli.loading import pull_with_progress

    path = pull_with_progress(name, store.models_dir(models_dir))
    print(json.dumps({"name": name, "path": str(path)}, ensure_ascii=False) if json_output else path)


@app.command("list")
def list_(models_dir: _ModelsDir = None, json_output: _Json = False) -> None:
    """Show the models that are here and those that can be pulled.

    Example: lpx models list --json
    """
    from lpx import store

    folder = store.models_dir(models_dir)
    models = store.list_models(folder)
    here = {model.name for model in models}
    available = [entry for entry in store.CATALOG.values() if entry.name not in here]
    if json_output:
        rows = [{**dataclasses.asdict(model), "path": str(model.path), "present": True} for model in models]
        rows += [
            {"name": entry.name, "licence": entry.licence, "file_bytes": entry.file_bytes, "present": False}
            for entry in available
        ]
        print(json.dumps({"models_dir": str(folder), "models": rows}, ensure_ascii=False, indent=2))
        return
    lines = [(model.name, f"{model.file_bytes / 1e6:.1f} MB", model.licence or "-", "here") for model in models]
    lines += [
        (entry.name, f"{entry.file_bytes / 1e6:.1f} MB", entry.licence, f"lpx models pull {entry.name}")
        for entry in available
    ]
    table = [("NAME", "SIZE", "LICENCE", "STATE"), *lines]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    for name, size, licence, state in table:
        print(f"{name:<{widths[0]}}  {size:>{widths[1]}}  {licence:<{widths[2]}}  {state}")
    print(f"\nModel folder: {folder}")


@app.command("path")
def path(
    name: Annotated[str | None, typer.Argument(help="A model in the folder; without it, the folder itself.")] = None,
    models_dir: _ModelsDir = None,
) -> None:
    """Print where the model folder, or a model in it, lies.

    Example: lpx models path smollm2-135m
    """
    from lpx import store
    from lpx.errors import ModelNotFoundError

    folder = store.models_dir(models_dir)
    if name is None:
        print(folder)
        return
    model = store.find_stored(name, folder)
    if model is None:
        raise ModelNotFoundError(f"no model called {name!r} in {folder}; `lpx models list` shows what is there")
    print(model.path)
