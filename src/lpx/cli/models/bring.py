"""`lpx models import` and `cp`: models that are on this machine already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lpx.cli.models.options import Json, KeepCurrent, ModelsDir, Name, Version


def import_(
    path: Annotated[Path, typer.Argument(help="A .gguf file, or a Hugging Face folder with safetensors.")],
    name: Name = None,
    version: Version = None,
    licence: Annotated[
        str | None, typer.Option("--licence", "--license", help="Its licence, for the manifest.")
    ] = None,
    link: Annotated[
        bool, typer.Option("--link", help="Share the file's bytes (a hard link) instead of copying them.")
    ] = False,
    keep_current: KeepCurrent = False,
    models_dir: ModelsDir = None,
    json_output: Json = False,
) -> None:
    """Bring a model of this machine into the model folder, as a version with a manifest.

    Example: lpx models import ~/Downloads/model-q4_k_m.gguf --name my-model --licence Apache-2.0
    """
    from lpx import store
    from lpx.cli.loading import pull_progress
    from lpx.cli.models.rows import version_row
    from lpx.store.importing import import_model

    with pull_progress("copying") as report:
        model = import_model(
            path,
            store.models_dir(models_dir),
            report,
            name=name,
            version=version,
            licence=licence,
            link=link,
            make_current=not keep_current,
        )
    print(json.dumps(version_row(model), ensure_ascii=False) if json_output else model.path)


def copy(
    source: Annotated[str, typer.Argument(metavar="MODEL", help="NAME or NAME@VERSION.")],
    name: Annotated[str, typer.Argument(metavar="NEW_NAME", help="A name that no model has.")],
    models_dir: ModelsDir = None,
    json_output: Json = False,
) -> None:
    """Give a version a second name, such as one that stays while the first goes on. Its bytes are shared, not copied.

    Example: lpx models cp smollm2-135m@b179c9523d0e smollm2-stable
    """
    from lpx import store
    from lpx.cli.models.rows import version_row
    from lpx.store.versions import copy as copy_version

    model = copy_version(store.models_dir(models_dir), source, name)
    print(json.dumps(version_row(model), ensure_ascii=False) if json_output else model.path)
