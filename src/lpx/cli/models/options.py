"""Options that the commands of `lpx models` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelsDir = Annotated[
    Path | None,
    typer.Option("--models-dir", envvar="LPX_MODELS_DIR", help="The model folder. Default: the user's cache."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
KeepCurrent = Annotated[
    bool, typer.Option("--keep-current", help="Bring it in, but let the name go on meaning the version it means now.")
]
Name = Annotated[str | None, typer.Option("--name", help="Name in the model folder. Default: as the source has it.")]
Version = Annotated[
    str | None,
    typer.Option("--version", help="Name of the version. Default: the beginning of the hash of what it holds."),
]
