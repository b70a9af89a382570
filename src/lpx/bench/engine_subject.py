"""An engine of this process as the subject of a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lpx.bench.measurement import Subject

if TYPE_CHECKING:
    from lpx.engine.outputs import EngineInfo
    from lpx.options import EngineOptions


def engine_subject(info: EngineInfo, model_sha256: str | None = None) -> Subject:
    """What is really in use, as the engine says it."""
    from lpx import __version__

    return Subject(
        model=info.model,
        engine="lpx",
        engine_version=__version__,
        model_sha256=model_sha256,
        quantization=info.quantization,
        kv_cache_dtype=info.kv_cache_dtype,
        device=info.device,
        isa=info.isa,
        threads=info.threads,
    )


def model_path(options: EngineOptions) -> Path:
    """The file or folder that an engine with these options loads. Raises ModelNotFoundError."""
    from lpx.model.files import resolve_model
    from lpx.model.models_dir import models_dir

    return resolve_model(options.model, models_dir(options.models_dir)).absolute()


def multiply_adds_per_token(model: Path) -> int:
    """Of the matrices, for one token: every weight is used once, but those of an embedding that is only looked up.

    Raises what opening the model raises.
    """
    from lpx.model.files import open_model

    with open_model(model) as files:
        sizes = {name: rows * cols for name, _, (rows, cols) in files.matrix_shapes()}
    if "head" in sizes:
        sizes.pop("embedding", None)
    return sum(sizes.values())
