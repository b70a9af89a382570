"""`lpx init`: a folder from which LPX is operated on this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from lpx.store.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from lpx.init import MadeFolder


def init(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder; made when it is not there.")],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="The model to serve: a name that `lpx models list` shows, or the name that you will pull one under.",
            metavar="NAME",
        ),
    ] = DEFAULT_MODEL,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Where the server is to listen.")] = 8080,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a working folder: profile, scripts, example inputs, a systemd unit, Dockerfiles and a README that walks.

    Example: lpx init ~/lpx-work

    Files that are there are never changed: those that differ are named, and nothing is written.
    """
    from lpx.init import make_folder

    done = make_folder(folder, model, port)
    if json_output:
        print(json.dumps(_as_json(done, model, port), ensure_ascii=False))
    else:
        _print(done, model, port)


def _as_json(done: MadeFolder, model: str, port: int) -> dict[str, object]:
    return {
        "folder": str(done.path),
        "made": done.made,
        "kept": done.kept,
        "environment": None if done.environment is None else str(done.environment),
        "model": model,
        "port": port,
    }


def _print(done: MadeFolder, model: str, port: int) -> None:
    import shlex

    from lpx.cli.tables import count_of

    if not done.made:
        print(f"{done.path}: everything is there already")
    else:
        print(f"{done.path}: {count_of(len(done.made), 'file')} for {model} on port {port}")
        if done.kept:
            print(f"kept as they were: {', '.join(done.kept)}")
        if done.environment is not None:
            print(f".venv leads to the LPX that made this: {done.environment}")
    print(f"\nThe README there goes on from here. It begins with:\n  cd {shlex.quote(str(done.path))}")
    print("  . scripts/env.sh\n  lpx doctor")
