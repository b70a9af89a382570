"""From the options to a loaded engine: the default model, pulling what is absent, progress on the way."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpx.cli.option_groups import ModelOptions
from lpx.errors import ModelNotFoundError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from lpx.engine.engine import Engine
    from lpx.engine.outputs import EngineInfo
    from lpx.options import EngineOptions
    from lpx.store import StoredModel

_QUIET_SECONDS = 1.0  # loading that takes less shows no bar


def resolve_engine_options(
    options: ModelOptions, served_model_name: str | None = None, measure_steps: bool = True
) -> EngineOptions:
    """The engine's options with a model that is there: no model means the default one, and a name of the catalog that
    is absent is pulled. A model of the store is served under the name it has there."""
    from lpx import store
    from lpx.store.names import names_source

    folder = store.models_dir(options.models_dir)
    model = options.model or store.DEFAULT_MODEL
    if needs_pull(options):
        pull_with_progress(model, folder)
    elif names_source(model) and not os.path.exists(model):
        raise ModelNotFoundError(
            f"{model[:200]} is where a model comes from; fetch it first: lpx models pull {model[:200]}"
        )
    if served_model_name is None and not os.path.exists(model):
        stored = store.find_stored(model, folder)
        served_model_name = None if stored is None else stored.name
    return options.engine_options(model, folder, served_model_name=served_model_name, measure_steps=measure_steps)


def needs_pull(options: ModelOptions) -> bool:
    """Whether the model is one of the catalog's and neither a path nor in the model folder."""
    from lpx import store

    model = options.model or store.DEFAULT_MODEL
    folder = store.models_dir(options.models_dir)
    return model in store.CATALOG and not os.path.exists(model) and store.find_stored(model, folder) is None


def load_engine(options: EngineOptions) -> Engine:
    """Load the model, with a bar on a terminal when it takes long."""
    from lpx.engine.engine import Engine

    with ByteProgress(f"loading {_short_name(options.model)}", quiet_seconds=_QUIET_SECONDS) as bar:
        return Engine.load(options, progress=bar.update)


def pull_with_progress(reference: str, folder: Path, **options: Any) -> StoredModel:
    """See `lpx.store.fetch.fetch`."""
    from lpx import store

    entry = store.CATALOG.get(reference)
    if entry is not None and store.find_stored(options.get("name") or reference, folder) is None:
        print(f"pulling {entry.title} ({entry.licence}, {entry.file_bytes / 1e6:.0f} MB)", file=sys.stderr)
    with pull_progress("downloading") as report:
        return store.pull_version(reference, folder, report, **options)


@contextmanager
def pull_progress(description: str) -> Iterator[Callable[[str, int, int], None]]:
    """What shows the phases of a pull: a bar on a terminal, and that it waits for another one anywhere."""
    told: set[str] = set()
    with ByteProgress(description) as bar:

        def show(phase: str, done: int, total: int) -> None:
            if phase == "waiting" and phase not in told:
                told.add(phase)
                print("another process is changing this model: waiting for it", file=sys.stderr)
            bar.describe(phase)
            bar.update(done, total)

        yield show


def describe_in_use(info: EngineInfo) -> str:
    """What is really in use, as one line."""
    kv_tokens = info.num_blocks * info.block_size
    return (
        f"{info.model} ({info.architecture}) · {info.quantization} · {info.device} {info.isa}, {info.threads} "
        f"{'thread' if info.threads == 1 else 'threads'} · weights {info.weight_bytes / 2**20:.0f} MiB · "
        f"KV {info.kv_cache_dtype} {info.kv_bytes / 2**20:.0f} MiB, {kv_tokens} tokens · "
        f"context {info.max_model_len} · speculation {info.speculation}"
    )


class ByteProgress:
    """A progress bar in bytes on stderr, only where that is a terminal, and only after `quiet_seconds`."""

    def __init__(self, description: str, quiet_seconds: float = 0.0) -> None:
        self._description = description
        self._show_after = time.monotonic() + quiet_seconds if sys.stderr.isatty() else float("inf")
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ByteProgress:
        return self

    def __exit__(self, *ending: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def describe(self, description: str) -> None:
        self._description = description

    def update(self, done: int, total: int) -> None:
        if self._bar is None:
            if time.monotonic() < self._show_after:
                return
            self._start(done)
        assert self._bar is not None
        assert self._task is not None
        self._bar.update(self._task, description=self._description, completed=done, total=total or None)

    def _start(self, done: int) -> None:
        """`done` was there before: it tells nothing about the speed."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(compact=True),
        )
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self._description, total=None, completed=done)
        self._bar.start()


def _short_name(model: str) -> str:
    return Path(model).stem or model
