"""Runs `serve` in a process of its own, on the fake model. Arguments: port, and what happens to the load."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lpx.engine.engine import Engine
from lpx.errors import MemoryLimitError
from lpx.options import EngineOptions
from lpx.server import ServerSettings, serve
from lpx.server.settings import Limits, Tls
from tests.engine.fake_executor import ByteTokenizer, FakeExecutor, LineTemplate


def load(options: EngineOptions, progress: Callable[[int, int], None] | None = None) -> Engine:
    mode = sys.argv[2]
    if mode == "fail":
        raise MemoryLimitError("the model needs 900 GB and this machine has 2 GB")
    if mode == "crash":
        raise KeyError("a bug")
    if mode == "hang":
        time.sleep(60)
    assert progress is not None
    progress(1, 2)
    before_step = (lambda _: time.sleep(0.02)) if mode == "slow" else None
    executor = FakeExecutor(num_blocks=500, block_size=64, before_step=before_step)
    return Engine(executor, ByteTokenizer(), chat_template=LineTemplate(), max_model_len=30_000, model_name="fake")


def settings_from_environment(grace_seconds: float) -> ServerSettings:
    given = json.loads(os.environ.get("LPX_TEST_SETTINGS", "{}"))
    for name in ("api_key_file", "log_requests_to", "data_dir"):
        if name in given:
            given[name] = Path(given[name])
    for name, kind in (("tls", Tls), ("limits", Limits)):
        if name in given:
            given[name] = kind(**given[name])
    return ServerSettings(**{"grace_seconds": grace_seconds, **given})


if __name__ == "__main__":
    if limit := os.environ.get("LPX_TEST_FILE_BYTES"):  # stands for a full disk: no file grows beyond it
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    Engine.load = staticmethod(load)  # type: ignore[method-assign]
    host = sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1"
    grace = 0.3 if sys.argv[2] == "slow" else 30.0
    sys.exit(
        serve(
            EngineOptions(model="fake"),
            host,
            int(sys.argv[1]),
            settings=settings_from_environment(grace),
            insecure_no_auth="insecure" in sys.argv,
            access_log="access" in sys.argv,
        )
    )
