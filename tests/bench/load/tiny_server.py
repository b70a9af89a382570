"""A real server on a tiny random model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lpx.engine.async_engine import AsyncEngine
from lpx.engine.engine import Engine
from lpx.options import EngineOptions
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny
from tests.server.live_server import LiveServer, eventually


@contextmanager
def tiny_server(folder: Path) -> Iterator[LiveServer]:
    """Must be idle at the end."""
    config, weights = make_tiny("llama", seed=1)
    path = write_hf_folder(folder, config, weights)
    options = EngineOptions(
        model=str(path), threads=1, kv_cache_memory=16 * 2**20, max_model_len=512, served_model_name="tiny"
    )
    server = LiveServer(AsyncEngine.start(Engine.load(options)))
    try:
        yield server
        eventually(lambda: server.idle, "an idle engine")
    finally:
        server.close()
