"""`lpx models convert`: safetensors to GGUF."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from lpx.cli.models.options import Json, KeepCurrent, ModelsDir, Name, Version


def convert(
    source: Annotated[str, typer.Argument(metavar="MODEL", help="A Hugging Face folder, NAME or NAME@VERSION.")],
    to: Annotated[
        str, typer.Option("--to", metavar="TYPE", help="Type of the matrices: f16, bf16, f32 or q8.")
    ] = "f16",
    name: Name = None,
    version: Version = None,
    keep_current: KeepCurrent = False,
    models_dir: ModelsDir = None,
    json_output: Json = False,
) -> None:
    """Write a safetensors model as one GGUF file, which llama.cpp reads too, and store it.

    Example: lpx models convert ./Qwen2.5-0.5B-Instruct --to f16 --name qwen2.5-0.5b-f16
    """
    from lpx import store
    from lpx.cli.loading import pull_progress
    from lpx.cli.models.rows import version_row
    from lpx.store.convert import convert_model

    with pull_progress("converting") as report:
        model = convert_model(
            source,
            store.models_dir(models_dir),
            to,
            report,
            name=name,
            version=version,
            make_current=not keep_current,
        )
    print(json.dumps(version_row(model), ensure_ascii=False) if json_output else model.path)
