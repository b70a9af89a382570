"""`lpx models rm`: a version, or a model whole."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from lpx.cli.models.options import Json, ModelsDir


def remove(
    names: Annotated[list[str], typer.Argument(metavar="MODEL...", help="NAME (all its versions) or NAME@VERSION.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    models_dir: ModelsDir = None,
    json_output: Json = False,
) -> None:
    """Remove models from the model folder. What a process uses stays, and so does the current of several versions.

    Example: lpx models rm smollm2-135m@b179c9523d0e
    """
    from lpx import store
    from lpx.cli.models.rows import size, version_row
    from lpx.errors import ConfigError
    from lpx.model.models_dir import split_version
    from lpx.plain_text import plain_text
    from lpx.store.versions import matching
    from lpx.store.versions import remove as remove_version

    folder = store.models_dir(models_dir)
    doomed = matching(folder, names)
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("nobody can be asked here; --yes removes the models without asking")
        for model in doomed:
            print(plain_text(f"{model.spelled}  {size(model.file_bytes)}  {model.path}"), file=sys.stderr)
        typer.confirm("remove?", abort=True, err=True)
    removed = []
    for spelled in dict.fromkeys(names):
        name, version = split_version(spelled)
        removed += remove_version(folder, name, version)
    if json_output:
        print(json.dumps([version_row(model) for model in removed], ensure_ascii=False))
        return
    for model in removed:
        print(plain_text(f"removed {model.spelled} ({size(model.file_bytes)})"))
