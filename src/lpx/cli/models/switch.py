"""`lpx models use` and `rollback`: which version a name means."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from lpx.cli.models.options import Json, ModelsDir


def use(
    spelled: Annotated[str, typer.Argument(metavar="NAME@VERSION", help="The beginning of the version will do.")],
    models_dir: ModelsDir = None,
    json_output: Json = False,
) -> None:
    """Make a version the current one, which the name alone means from now on.

    Example: lpx models use smollm2-135m@b179c9523d0e

    Servers that run go on with what they have until they are told: POST /admin/models/reload.
    """
    from lpx import store
    from lpx.cli.models.rows import version_row
    from lpx.errors import ModelNameError
    from lpx.model.models_dir import split_version
    from lpx.store.versions import use as use_version

    name, version = split_version(spelled)
    if version is None:
        raise ModelNameError(
            f"{spelled[:80]!r} names no version; `lpx models show NAME` lists them, write NAME@VERSION"
        )
    model = use_version(store.models_dir(models_dir), name, version)
    if json_output:
        print(json.dumps(version_row(model), ensure_ascii=False))
    else:
        print(f"{model.name} is {model.version} now")


def rollback(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model.")],
    models_dir: ModelsDir = None,
    json_output: Json = False,
) -> None:
    """Go back to the version that was current before. Nothing is fetched or copied.

    Example: lpx models rollback smollm2-135m
    """
    from lpx import store
    from lpx.cli.models.rows import version_row
    from lpx.store.versions import rollback as roll_back

    was, now = roll_back(store.models_dir(models_dir), name)
    if json_output:
        print(json.dumps({**version_row(now), "previous_version": was.version}, ensure_ascii=False))
    else:
        print(f"{now.name} is {now.version} again, and was {was.version}")
