"""`lpx models list` and `path`: what is here, what can be had, and where it is."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from lpx.cli.models.options import Json, ModelsDir
from lpx.plain_text import plain_text


def list_(models_dir: ModelsDir = None, json_output: Json = False) -> None:
    """Show the models that are here, with their current version, and those that can be pulled by name.

    Example: lpx models list --json
    """
    from lpx import store
    from lpx.cli.models.rows import size, speed, version_row
    from lpx.cli.tables import print_table
    from lpx.store.folder import version_counts

    folder = store.models_dir(models_dir)
    models = store.list_models(folder)
    counts = version_counts(folder)
    here = {model.name for model in models}
    available = [entry for entry in store.CATALOG.values() if entry.name not in here]
    if json_output:
        rows = [{**version_row(model), "versions": counts.get(model.name, 1)} for model in models]
        rows += [
            {"name": entry.name, "licence": entry.licence, "file_bytes": entry.file_bytes, "present": False}
            for entry in available
        ]
        print(json.dumps({"models_dir": str(folder), "models": rows}, ensure_ascii=False, indent=2))
        return
    lines = [
        (
            model.name,
            (model.version if model.current else "none is current") + _more(counts.get(model.name, 1)),
            size(model.file_bytes),
            model.licence or "-",
            speed(model),
        )
        for model in models
    ]
    lines += [(entry.name, "not here", size(entry.file_bytes), entry.licence, "-") for entry in available]
    print_table(
        ("NAME", "VERSION", "SIZE", "LICENCE", "SPEED"),
        lines,
        right=("SIZE", "SPEED"),
        cut=("NAME", "VERSION"),
        folded=("LICENCE",),
    )
    print(f"\n{plain_text(f'Model folder: {folder}')}")
    for entry in available:
        print(f"To fetch {entry.name}: lpx models pull {entry.name}")


def _more(versions: int) -> str:
    return "" if versions < 2 else f" (+{versions - 1})"


def path(
    name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="NAME or NAME@VERSION; without it, the folder itself.")
    ] = None,
    models_dir: ModelsDir = None,
) -> None:
    """Print where the model folder, or a model in it, lies.

    Example: lpx models path smollm2-135m
    """
    from lpx import store
    from lpx.store.versions import require

    folder = store.models_dir(models_dir)
    print(folder if name is None else require(folder, name).path)
