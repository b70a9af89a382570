"""`lpx models show`: one model, and each of its versions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpx.cli.models.options import Json, ModelsDir

if TYPE_CHECKING:
    from pathlib import Path

    from lpx.store.folder import StoredModel


def show(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="NAME, or NAME@VERSION.")],
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure how fast it decodes here, and note that in its manifest.")
    ] = False,
    models_dir: ModelsDir = None,
    json_output: Json = False,
) -> None:
    """Show a model's versions, where they come from, their hashes and the speed that was measured.

    Example: lpx models show smollm2-135m
    """
    from lpx import store
    from lpx.cli.models.rows import size, speed, version_row
    from lpx.cli.tables import print_table, print_wrapped
    from lpx.store.versions import require

    folder = store.models_dir(models_dir)
    model = require(folder, name)
    if measure:
        _measure(model, folder)
        model = require(folder, name)
    versions = store.list_versions(folder, model.name)
    if json_output:
        print(
            json.dumps({**version_row(model), "versions": [version_row(each) for each in versions]}, ensure_ascii=False)
        )
        return
    for label, value in _facts(model):
        print_wrapped(f"{label:<13}{value}", " " * 13)
    print()
    rows = [
        ("*" if each.current else "", each.version, (each.created or "-")[:10], size(each.file_bytes), speed(each))
        for each in versions
    ]
    print_table(("", "VERSION", "CREATED", "SIZE", "SPEED"), rows, right=("SIZE", "SPEED"), cut=("VERSION",))


def _facts(model: StoredModel) -> list[tuple[str, str]]:
    from lpx.cli.models.rows import size
    from lpx.model.in_use import holders

    facts = [
        ("model", model.spelled + ("" if model.current else " (not current)")),
        ("path", str(model.path)),
        ("format", f"{model.format}, {size(model.file_bytes)}"),
        ("licence", model.licence or "-"),
        ("source", model.source or "put there by hand"),
        ("revision", model.revision or "-"),
        ("sha256", model.sha256 or "of each file, in its manifest" if model.source else model.sha256 or "-"),
        ("tokenizer", model.tokenizer_sha256 or "-"),
        ("created", model.created or "-"),
    ]
    if model.derived_from:
        facts.append(("derived from", model.derived_from))
    if pids := holders(model.path):
        facts.append(("in use by", "process " + ", ".join(map(str, pids))))
    return facts


def _measure(model: StoredModel, folder: Path) -> None:
    from lpx.bench.latency import measure_latency
    from lpx.cli.loading import load_engine
    from lpx.cli.status_line import StatusLine
    from lpx.options import EngineOptions
    from lpx.store.importing import check_has_manifest, note_speed
    from lpx.store.manifest import now

    check_has_manifest(model)
    options = EngineOptions(str(model.path), models_dir=folder, max_model_len=512, measure_steps=False)
    engine = load_engine(options)
    try:
        with StatusLine() as status:
            measured = measure_latency(engine, input_len=128, output_len=64, repeats=3, progress=status.show)
        info = engine.info
    finally:
        engine.close()
    figures: dict[str, Any] = {
        "when": now(),
        "decode_tokens_per_second": round(measured.decode_tokens_per_second.median, 1),
        "prefill_tokens_per_second": round(measured.prefill_tokens_per_second.median, 1),
        "input_len": 128,
        "output_len": 64,
        "device": info.device,
        "isa": info.isa,
        "threads": info.threads,
    }
    note_speed(folder, model, figures)
