"""`GET /health` through the server's life, and `GET /v1/models`."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lpx.engine.async_engine import AsyncEngine
from lpx.errors import ModelFileError
from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import StartServer, fake_engine
from tests.server.live_server import LiveServer, eventually


def test_models_tell_what_is_in_use(shared_server: LiveServer) -> None:
    answer = shared_server.get("/v1/models").json()
    assert answer["object"] == "list"
    [card] = answer["data"]
    assert card["id"] == "fake"
    assert card["object"] == "model"
    assert card["owned_by"] == "lpx"
    assert isinstance(card["created"], int)
    assert card["max_model_len"] == 256
    assert (card["quantization"], card["isa"], card["threads"]) == ("F32 100%", "fake", 1)
    assert card["kv_cache"] == {
        "dtype": "f16",
        "block_size": 4,
        "num_blocks": 256,
        "bytes": 1024,
        "prefix_caching": True,
    }
    assert shared_server.get("/v1/models/fake").json() == card
    assert shared_server.get("/v1/models/other").status_code == 404


def test_version(shared_server: LiveServer) -> None:
    from lpx import __version__

    assert shared_server.get("/version").json() == {"version": __version__}


def test_health_answers_get_and_head(shared_server: LiveServer) -> None:
    assert shared_server.get("/health").json() == {"status": "ok"}
    head = shared_server.client.head("/health")
    assert (head.status_code, head.content) == (200, b"")


def test_health_says_loading_until_the_model_answers() -> None:
    go_on = threading.Event()
    halfway = threading.Event()

    def load(progress: Callable[[int, int], None]) -> AsyncEngine:
        progress(50, 200)
        halfway.set()
        assert go_on.wait(120)
        return fake_engine()

    server = LiveServer(load, wait_ready=False)
    try:
        assert halfway.wait(120)
        response = server.get("/health")
        assert response.status_code == 503
        assert response.json() == {
            "status": "loading",
            "phase": "loading",
            "progress": 0.25,
            "loaded_bytes": 50,
            "total_bytes": 200,
        }
        assert server.get("/health/live").json() == {"status": "alive"}
        ready = server.get("/health/ready")
        assert (ready.status_code, ready.json(), ready.headers["retry-after"]) == (503, response.json(), "1")
        for early in (server.get("/v1/models"), server.post("/generate", {"prompt": "a"})):
            assert early.status_code == 503
            assert early.json()["error"]["code"] == "loading"
            assert early.headers["retry-after"] == "1"
        go_on.set()
        eventually(lambda: server.get("/health").status_code == 200)
        assert server.post("/generate", {"prompt": "a"}).status_code == 200
    finally:
        go_on.set()
        server.close()


def test_ready_only_after_a_token_was_generated() -> None:
    go_on = threading.Event()
    executor = FakeExecutor(num_blocks=64, before_step=lambda _: go_on.wait(120))
    server = LiveServer(lambda progress: fake_engine(executor), wait_ready=False)
    try:
        eventually(lambda: server.get("/health").json().get("phase") == "warming up")
        assert server.post("/generate", {"prompt": "a"}).status_code == 503
        go_on.set()
        eventually(lambda: server.get("/health").status_code == 200)
        assert len(executor.steps) == 1
        ready = server.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (200, "ok")
        assert ready.json()["warm_up_token_ms"] > 0
    finally:
        go_on.set()
        server.close()


def test_failed_load_is_told_by_health() -> None:
    def load(progress: Callable[[int, int], None]) -> AsyncEngine:
        raise ModelFileError("the tensor layers.0.q is cut off in /home/somebody/model.gguf")

    server = LiveServer(load, wait_ready=False)
    try:
        eventually(lambda: server.get("/health").json() == {"status": "failed"})
        response = server.get("/v1/models")
        assert response.status_code == 503
        assert "somebody" not in response.text
    finally:
        server.close()


def test_failed_engine_is_told_by_health(start_server: StartServer) -> None:
    server = start_server(FakeExecutor(num_blocks=64, fail_at_step=3), ends_idle=False)
    response = server.post("/generate", {"prompt": "a", "max_tokens": 50})
    assert response.status_code in (500, 503)
    assert response.json()["error"]["type"] == "server_error"
    assert "injected" not in response.text
    eventually(lambda: server.get("/health").status_code == 503)
    assert server.get("/health").json() == {"status": "failed"}
    assert server.post("/generate", {"prompt": "a"}).status_code == 503
