"""Loading the server's engines: the same options each time, and the model as its name means it at that moment."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lpx.errors import LpxError, ModelNotFoundError

if TYPE_CHECKING:
    from lpx.engine.async_engine import AsyncEngine
    from lpx.options import EngineOptions

logger = logging.getLogger("lpx.server")

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Target:
    """A model as it lies on the disk at one moment."""

    path: Path
    served_name: str | None  # that clients see; None: as the file has it
    identity: tuple[int, ...]  # differs when other files are meant, or the same one was replaced


class ModelLoader:
    """Makes engines for one server. Its methods take long and are for threads; one runs at a time."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._model = options.model  # as it was last asked for: a path, a name, or a name with a version
        self._is_stored = False  # asked for over HTTP: a name of the model folder, and never a path
        self.loaded: Target | None = None  # what the last engine was made from, where that is known

    def __call__(self, progress: Progress) -> AsyncEngine:
        """The first engine."""
        with contextlib.suppress(LpxError, OSError):
            self.loaded = self.target()
        return self._load(self._options, progress)

    def target(self, model: str | None = None) -> Target:
        """What `NAME` or `NAME@VERSION` of the model folder means now; None means what was loaded last.

        Raises ModelNotFoundError. A model that is asked for is only ever looked up among those that are stored.
        """
        from lpx.model.files import resolve_model
        from lpx.model.models_dir import models_dir
        from lpx.store import find_stored

        folder = models_dir(self._options.models_dir)
        if model is None and self._is_stored:
            model = self._model
        if model is None:
            stored = None if Path(self._model).exists() else find_stored(self._model, folder)
            path = resolve_model(self._model, folder)
        else:
            stored = find_stored(model, folder)
            if stored is None:
                raise ModelNotFoundError("there is no such model or version in the model folder: `lpx models list`")
            path = stored.path
        return Target(path, self._served_name(None if stored is None else stored.name), _identity(path))

    def check(self, target: Target) -> None:
        """Raise ModelFileError when the model cannot be opened."""
        from lpx.model.files import open_model

        open_model(target.path, max_model_len=self._options.max_model_len).close()

    def load(self, target: Target, progress: Progress) -> AsyncEngine:
        """An engine on `target`. Raises what `Engine.load` does."""
        options = replace(self._options, model=str(target.path), served_model_name=target.served_name)
        return self._load(options, progress)

    def remember(self, target: Target, model: str | None) -> None:
        """`target` serves, and was asked for as `model` (None: as before), which is what is meant from now on."""
        if model is not None:
            self._model, self._is_stored = model, True
        self.loaded = target

    def _served_name(self, stored_name: str | None) -> str | None:
        """The name that was set with --served-model-name stays; one that follows from the model's follows it."""
        from lpx.model.models_dir import split_version

        given = self._options.served_model_name
        followed = split_version(self._options.model)[0]
        return stored_name if stored_name is not None and given in (None, followed, self._options.model) else given

    def _load(self, options: EngineOptions, progress: Progress) -> AsyncEngine:
        from lpx.engine.async_engine import AsyncEngine
        from lpx.engine.engine import Engine

        begin = time.perf_counter()
        last = 0

        def note(done: int, total: int) -> None:
            nonlocal last
            progress(done, total)
            percent = 100 * done // total if total else 0
            if percent >= last + 10 and percent < 100:
                last = percent
                name = Path(options.model).name
                logger.info("loading %s: %d %% (%.0f of %.0f MB)", name, percent, done / 1e6, total / 1e6)

        engine = AsyncEngine.start(Engine.load(options, note))
        logger.info("loaded %s in %.2f s", engine.info.model, time.perf_counter() - begin)
        return engine


def _identity(path: Path) -> tuple[int, ...]:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    statuses = [os.stat(file) for file in files]
    return tuple(number for each in statuses for number in (each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns))
