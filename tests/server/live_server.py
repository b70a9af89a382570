"""A real server on a free port, for tests: the same parser, gate and application as `lpx serve` has, in a thread."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import httpx
import uvicorn

from lpx.engine.async_engine import AsyncEngine
from lpx.server.app import create_app
from lpx.server.http_protocol import QuietServer, QuietWebSocketProtocol, bounded_protocol, run_on_new_loop
from lpx.server.listen import bind_socket
from lpx.server.settings import ServerSettings

T = TypeVar("T")

PATIENCE_S = 120.0  # a machine may be busy with other things; only a failure waits this long


def eventually(condition: Callable[[], object], what: str = "the condition") -> None:
    """Wait for `condition`, and fail if it does not come true."""
    deadline = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true"
        pause.wait(0.005)


class LiveServer:
    """Runs until `close`; `engine` is None when it is the loader's to give."""

    def __init__(
        self,
        engine: AsyncEngine | Callable[..., AsyncEngine],
        settings: ServerSettings | None = None,
        *,
        wait_ready: bool = True,
        **more: Any,
    ) -> None:
        """`more` is for uvicorn's `Config`."""
        self.engine = engine
        self.ends_idle = True
        self.listener = listener = bind_socket("127.0.0.1", 0)
        self.port: int = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.app = create_app(engine, settings)
        config = uvicorn.Config(
            self.app,
            http=bounded_protocol(self.app.state.service.settings),
            ws=QuietWebSocketProtocol,
            ws_max_size=self.app.state.service.settings.max_body_bytes,
            ws_per_message_deflate=False,
            log_config=None,
            access_log=False,
            lifespan="on",
            **more,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: QuietServer | None = None

        async def run() -> None:
            self._server = QuietServer(config)
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[listener])

        self._thread = threading.Thread(target=lambda: run_on_new_loop(run()), name="test-server", daemon=True)
        self._thread.start()
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False)
        if wait_ready:
            eventually(lambda: self.get("/health").status_code == 200, "readiness")

    # --- requests ---

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(path, **options)

    def post(self, path: str, body: object = None, **options: Any) -> httpx.Response:
        return self.client.post(path, json=body, **options)

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """All events of a stream; the last is "[DONE]" where the stream ended well."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            response.read()
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return list(parse_events(response.content))

    def raw(self, data: bytes) -> socket.socket:
        """A connection that has sent `data`."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        connection.sendall(data)
        return connection

    def send_json(self, path: str, body: dict[str, Any]) -> socket.socket:
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        return self.raw(head.encode() + data)

    # --- state ---

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing waits, every block is free."""
        assert isinstance(self.engine, AsyncEngine)
        stats = self.engine.stats()
        return stats.running == 0 and stats.waiting == 0 and stats.free_blocks == stats.total_blocks

    def on_loop(self, function: Callable[[], object]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(function)

    def await_on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs on the server's loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    @property
    def server(self) -> QuietServer:
        assert self._server is not None
        return self._server

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self.client.close()
        if self._thread.is_alive():
            self.on_loop(self.server.exit_soon)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server did not end"


def parse_events(data: bytes) -> Iterator[Any]:
    """Events of a server-sent event stream; bytes that do not belong to one are a failure."""
    *records, rest = data.split(b"\n\n")
    assert rest == b"", "the stream ends inside an event"
    for record in records:
        assert record.startswith(b"data: "), record
        text = record.removeprefix(b"data: ").decode()
        assert len(text.splitlines()) == 1, "a line end inside an event"
        yield text if text == "[DONE]" else json.loads(text)


def counted(usage: dict[str, Any]) -> tuple[int, int]:
    """Tokens of prompt and answer in a usage object, whose other figures must go with them."""
    assert set(usage) == {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
    return usage["prompt_tokens"], usage["completion_tokens"]


def reset(connection: socket.socket) -> None:
    """Close with RST instead of FIN, as a killed client's machine does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
