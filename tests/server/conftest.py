from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lpx.engine.async_engine import AsyncEngine
from lpx.engine.engine import Engine
from lpx.server.settings import ServerSettings
from tests.engine.fake_executor import END_OF_TURN, ByteTokenizer, FakeExecutor, LineTemplate
from tests.server.live_server import LiveServer, eventually
from tests.server.server_process import Process

StartServer = Callable[..., LiveServer]


def fake_engine(
    executor: FakeExecutor | None = None, *, add_bos: bool = False, template: bool = True, **options: Any
) -> AsyncEngine:
    """An engine on the fake model, whose tokens are bytes."""
    options.setdefault("max_model_len", 256)
    options.setdefault("max_num_seqs", 8)
    options.setdefault("max_num_batched_tokens", 64)
    options.setdefault("model_name", "fake")
    return AsyncEngine.start(
        Engine(
            executor or FakeExecutor(num_blocks=256, block_size=4),
            ByteTokenizer(add_bos),
            chat_template=LineTemplate() if template else None,
            eos_token_ids=frozenset({END_OF_TURN}),
            **options,
        )
    )


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Servers on the fake model; each must be idle at the end, with all blocks free."""
    servers: list[LiveServer] = []

    def start(
        executor: FakeExecutor | None = None,
        *,
        settings: ServerSettings | None = None,
        ends_idle: bool = True,
        **options: Any,
    ) -> LiveServer:
        server = LiveServer(fake_engine(executor, **options), settings)
        server.ends_idle = ends_idle
        servers.append(server)
        return server

    yield start
    for server in servers:
        if server.ends_idle:
            eventually(lambda server=server: server.idle, "an idle engine")
        server.close()


@pytest.fixture(scope="module")
def shared_server() -> Iterator[LiveServer]:
    """One server for tests that leave no trace."""
    server = LiveServer(fake_engine())
    yield server
    eventually(lambda: server.idle, "an idle engine")
    server.close()


@pytest.fixture
def start() -> Iterator[type[Process]]:
    started: list[Process] = []

    class Tracked(Process):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    yield Tracked
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.wait(120)
