"""Another version of the model, on a server that goes on answering: real models, real requests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from lpx.batch.line_request import LineRequest
from lpx.errors import MemoryLimitError, ModelInUseError
from lpx.model.in_use import holders
from lpx.options import EngineOptions
from lpx.server.caller import ANYBODY
from lpx.server.in_process import EndpointTarget
from lpx.server.model_loader import ModelLoader
from lpx.server.settings import ServerSettings
from lpx.store import list_models
from lpx.store.importing import import_model
from lpx.store.versions import remove, rollback, use
from tests.reference.model_files import write_model_gguf
from tests.reference.tiny_models import make_tiny
from tests.server.live_server import LiveServer, eventually

ADMIN, PLAIN = "sk-admin-0123456789", "sk-plain-0123456789"
AS_ADMIN = {"authorization": f"Bearer {ADMIN}"}
AS_PLAIN = {"authorization": f"Bearer {PLAIN}"}
RELOAD = "/admin/models/reload"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with two versions of `tiny`: `one` is current."""
    folder = tmp_path / "models"
    for number, version in ((2, "two"), (1, "one")):
        config, weights = make_tiny("llama", number)
        path = write_model_gguf(tmp_path / f"{version}.gguf", config, weights)
        import_model(path, folder, name="tiny", version=version)
    return folder


class Loader(ModelLoader):
    """Waits at `gate` before it loads another model; `error` is raised instead."""

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options)
        self.gate = threading.Event()
        self.gate.set()
        self.loading = threading.Event()
        self.errors: list[Exception] = []

    def load(self, *arguments: Any) -> Any:
        self.loading.set()
        assert self.gate.wait(120)
        if self.errors:
            raise self.errors.pop()
        return super().load(*arguments)


def options(folder: Path, **more: Any) -> EngineOptions:
    given = {"model": "tiny", "max_model_len": 256, "threads": 1, "kv_cache_memory": 8 << 20, "measure_steps": False}
    return EngineOptions(**{**given, "models_dir": folder, "served_model_name": "tiny", **more})


@pytest.fixture
def loader(folder: Path) -> Loader:
    return Loader(options(folder))


@pytest.fixture
def server(loader: Loader) -> Iterator[LiveServer]:
    server = LiveServer(loader)
    yield server
    loader.gate.set()
    server.close()


def version(server: LiveServer) -> str:
    return str(server.get("/v1/models").json()["data"][0]["version"])


def generate(server: LiveServer, **more: Any) -> dict[str, Any]:
    body = {"prompt": "abc", "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}
    answer = server.post("/generate", body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def in_background(call: Any) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


def test_reload_serves_what_the_name_means_now(server: LiveServer, folder: Path) -> None:
    assert version(server) == "one"
    first = generate(server)["token_ids"]
    use(folder, "tiny", "two")
    assert version(server) == "one"  # until it is told
    done = server.post(RELOAD, {}).json()
    assert (done["changed"], done["version"], done["previous"]["version"]) == (True, "two", "one")
    assert version(server) == "two"
    second = generate(server)["token_ids"]
    assert second != first
    assert 'version="two"' in server.get("/metrics").text
    rollback(folder, "tiny")
    assert server.post(RELOAD, {}).json()["version"] == "one"
    assert generate(server)["token_ids"] == first


def test_reload_of_the_same_does_nothing_unless_forced(server: LiveServer) -> None:
    engine = server.app.state.service.engine
    assert server.post(RELOAD, {}).json()["changed"] is False
    assert server.app.state.service.engine is engine
    assert server.post(RELOAD, {"force": True}).json()["changed"] is True
    assert server.app.state.service.engine is not engine


def test_a_version_can_be_named(server: LiveServer) -> None:
    assert server.post(RELOAD, {"model": "tiny@two"}).json()["version"] == "two"
    assert server.post(RELOAD, {}).json()["changed"] is False  # that version stays meant


def test_running_requests_finish_on_the_old_engine(server: LiveServer, folder: Path) -> None:
    whole = generate(server, max_tokens=200)["token_ids"]
    old = server.app.state.service.engine
    body = {"prompt": "abc", "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", "/generate", json=body) as stream:
        lines = stream.iter_lines()
        received = [next(line for line in lines if line.startswith("data: "))]
        assert server.post(RELOAD, {"model": "tiny@two"}).json()["changed"] is True
        assert generate(server, max_tokens=4)["token_ids"] != whole[:4]  # new requests have the new engine
        received += [line for line in lines if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in received if "[DONE]" not in line]
    assert [token for event in events for token in event.get("token_ids", ())][: len(whole)] == whole
    eventually(lambda: server.get(RELOAD).json()["engines_ending"] == 0, "the end of the old engine")
    with pytest.raises(Exception, match="shut"):
        old._engine.check_open()


def test_no_request_is_lost_while_versions_change(server: LiveServer) -> None:
    stop = threading.Event()

    def ask() -> list[int]:
        statuses = []
        with httpx.Client(base_url=server.url, trust_env=False, timeout=120) as client:
            while not stop.is_set():
                body = {"prompt": "abc", "max_tokens": 3, "ignore_eos": True}
                statuses.append(client.post("/generate", json=body).status_code)
        return statuses

    askers = [in_background(ask) for _ in range(3)]
    for number in range(6):
        done = server.post(RELOAD, {"model": f"tiny@{('two', 'one')[number % 2]}", "drain": number % 3 == 2})
        assert done.status_code == 200, done.text
    stop.set()
    for thread, results in askers:
        thread.join(120)
        assert results
        assert set(results[0]) == {200}


def test_memory_for_both_is_asked_for_first(server: LiveServer, loader: Loader) -> None:
    loader.errors = [MemoryLimitError("tiny needs 900.0 MiB: weights 800.0 MiB; only 300.0 MiB can be had")]
    refused = server.post(RELOAD, {"model": "tiny@two"})
    assert refused.status_code == 409
    error = refused.json()["error"]
    assert error["code"] == "not_enough_memory"
    assert "900.0 MiB" in error["message"]
    assert '{"drain": true}' in error["message"]
    assert version(server) == "one"
    generate(server)
    assert server.get(RELOAD).json()["last"]["error"] == error["message"]
    assert server.post(RELOAD, {"model": "tiny@two", "drain": True}).json()["version"] == "two"


def test_requests_wait_while_one_engine_is_exchanged_for_another(server: LiveServer, loader: Loader) -> None:
    loader.gate.clear()
    reload, outcome = in_background(lambda: server.post(RELOAD, {"model": "tiny@two", "drain": True}).json())
    assert loader.loading.wait(120)
    assert server.get("/health").json()["status"] == "reloading"
    assert server.get("/v1/models").status_code == 503
    assert server.get(RELOAD).json() | {"last": None} == {
        "state": "loading",
        "progress": 0.0,
        "model": None,
        "version": None,
        "engines_ending": 0,
        "last": None,
    }
    asked, answer = in_background(lambda: generate(server))
    service = server.app.state.service
    eventually(lambda: service._gate is not None, "the gate")
    assert answer == []
    loader.gate.set()
    asked.join(120)
    reload.join(120)
    assert outcome[0]["version"] == "two"
    assert answer[0]["token_ids"] == generate(server)["token_ids"]


def test_an_old_engine_serves_again_when_the_new_one_cannot_be_loaded(server: LiveServer, loader: Loader) -> None:
    first = generate(server)["token_ids"]
    loader.errors = [MemoryLimitError("too large")]
    assert server.post(RELOAD, {"model": "tiny@two", "drain": True}).status_code == 409
    assert version(server) == "one"
    assert generate(server)["token_ids"] == first


def test_a_broken_version_changes_nothing(server: LiveServer, folder: Path) -> None:
    (file,) = (folder / "tiny" / "two").glob("*.gguf")
    file.write_bytes(file.read_bytes()[:5000])
    for drain in (False, True):
        refused = server.post(RELOAD, {"model": "tiny@two", "drain": drain})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "model_not_loadable")
        assert str(folder) not in refused.text
    assert version(server) == "one"
    generate(server)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc", "..%2f", "a\0b", "C:\\x", "x" * 5000, "no-such", "tiny@three", "link", ""]
)
def test_names_never_leave_the_folder(server: LiveServer, folder: Path, name: str) -> None:
    (folder / "link").symlink_to("/etc")
    refused = server.post(RELOAD, {"model": name})
    assert refused.status_code == 404
    assert str(folder) not in refused.text


def test_one_reload_at_a_time(server: LiveServer, loader: Loader) -> None:
    loader.gate.clear()
    first, outcome = in_background(lambda: server.post(RELOAD, {"model": "tiny@two"}).json())
    assert loader.loading.wait(120)
    assert server.post(RELOAD, {"model": "tiny@two"}).status_code == 409
    assert server.get(RELOAD).json()["state"] == "loading"
    generate(server)  # on the old one
    loader.gate.set()
    first.join(120)
    assert outcome[0]["changed"] is True


def test_a_version_in_use_is_not_removed(server: LiveServer, folder: Path) -> None:
    use(folder, "tiny", "two")
    (model,) = [each for each in list_models(folder) if each.name == "tiny"]
    running = folder / "tiny" / "one" / model.path.name.replace("two", "one")
    assert holders(running) == [os.getpid()]
    with pytest.raises(ModelInUseError, match=f"in use by process {os.getpid()}"):
        remove(folder, "tiny", "one")
    assert running.is_file()
    assert server.post(RELOAD, {}).json()["version"] == "two"
    eventually(lambda: not holders(running), "the end of the old engine")
    remove(folder, "tiny", "one")
    assert not running.exists()


def test_a_given_name_stays_and_a_models_own_follows(folder: Path, tmp_path: Path) -> None:
    config, weights = make_tiny("llama", 3)
    import_model(write_model_gguf(tmp_path / "other.gguf", config, weights), folder, name="other")
    for given, expected in (("tiny", "other"), ("my-model", "my-model")):
        server = LiveServer(Loader(options(folder, served_model_name=given)))
        try:
            assert server.post(RELOAD, {"model": "other"}).json()["model"] == expected
            assert server.post("/generate", {"prompt": "a", "max_tokens": 1, "model": expected}).status_code == 200
        finally:
            server.close()


# --- who may ---


def guarded(loader: Loader, tmp_path: Path, **settings: Any) -> LiveServer:
    return LiveServer(loader, ServerSettings(**settings), wait_ready=True)


def test_an_admin_key_is_needed_where_there_are_keys(loader: Loader, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"ops:{ADMIN} admin\nuser:{PLAIN}\n")
    for settings in ({"api_key_file": keys}, {"api_keys": (PLAIN,), "admin_api_keys": (ADMIN,)}):
        server = guarded(loader, tmp_path, **settings)
        try:
            assert server.post(RELOAD, {}).status_code == 401
            refused = server.post(RELOAD, {}, headers=AS_PLAIN)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_needed")
            assert server.post(RELOAD, {}, headers=AS_ADMIN).json()["changed"] is False
            assert server.post("/generate", {"prompt": "a", "max_tokens": 1}, headers=AS_ADMIN).status_code == 200
            assert server.post("/generate", {"prompt": "a", "max_tokens": 1}).status_code == 401
        finally:
            server.close()


def test_keys_without_an_admin_among_them_may_not(loader: Loader, tmp_path: Path) -> None:
    server = guarded(loader, tmp_path, api_keys=(PLAIN,))
    try:
        refused = server.post(RELOAD, {}, headers=AS_PLAIN)
        assert refused.status_code == 403
        assert "--admin-api-key" in refused.text
    finally:
        server.close()


def test_an_admin_key_alone_leaves_the_rest_open(loader: Loader, tmp_path: Path) -> None:
    server = guarded(loader, tmp_path, admin_api_keys=(ADMIN,))
    try:
        assert server.post("/generate", {"prompt": "a", "max_tokens": 1}).status_code == 200
        assert server.post(RELOAD, {}).status_code == 401
        assert server.post(RELOAD, {}, headers=AS_ADMIN).status_code == 200
    finally:
        server.close()


def test_without_keys_only_this_machine_may(server: LiveServer) -> None:
    for headers in ({"x-forwarded-for": "203.0.113.9"}, {"forwarded": "for=203.0.113.9"}):
        assert server.post(RELOAD, {}, headers=headers).status_code == 403
    assert server.post(RELOAD, {}, headers={"origin": "https://evil.example"}).status_code == 403
    assert server.client.post(RELOAD, content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    assert server.post(RELOAD, {}).status_code == 200


def test_a_server_that_was_given_its_engine_says_so(shared_server: LiveServer) -> None:
    assert shared_server.post(RELOAD, {}).json()["error"]["code"] == "not_supported"


# --- a real process ---


def test_a_server_process_reloads_on_sighup(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lpx", "serve", "--model", "tiny", "--models-dir", str(folder), "--port", "0"]
    command += ["--max-model-len", "256", "--threads", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, start_new_session=True, env=environment)

    def logged(pattern: str) -> re.Match[str] | None:
        assert process.poll() is None, (tmp_path / "log").read_text()
        return re.search(pattern, (tmp_path / "log").read_text())

    try:
        eventually(lambda: logged("ready on"), "readiness")
        found = logged(r"listening on (http://\S+)")
        assert found is not None
        use(folder, "tiny", "two")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: logged(r"serving tiny \(version two\) now"), "the other version")
        card = httpx.get(found[1] + "/v1/models", trust_env=False, timeout=120).json()["data"][0]
        assert (card["id"], card["version"]) == ("tiny", "two")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: logged("nothing to reload"), "the answer")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait(120)


def test_memory_comes_back_after_a_reload(smollm2_path: Path, tmp_path: Path) -> None:
    """With weights that count: what the process holds does not grow with reloads."""
    folder = tmp_path / "models"
    import_model(smollm2_path, folder, name="smol", link=True)
    server = LiveServer(ModelLoader(options(folder, model="smol", served_model_name="smol", kv_cache_memory=64 << 20)))
    try:
        generate(server)
        weights = server.get("/v1/models").json()["data"][0]["weight_bytes"]
        held = []
        for drain in (False, False, True):
            assert server.post(RELOAD, {"force": True, "drain": drain}).json()["changed"] is True
            eventually(lambda: server.get(RELOAD).json()["engines_ending"] == 0, "the end of the old engine")
            generate(server)
            held.append(psutil.Process().memory_info().rss)
        assert held[-1] < held[0] + weights // 2
    finally:
        server.close()


def test_lines_of_batches_wait_for_the_exchange_and_none_is_lost(server: LiveServer, loader: Loader) -> None:
    target = EndpointTarget(server.app, ANYBODY)
    line = LineRequest(
        None, "/v1/completions", {"prompt": "abc", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    )
    loader.gate.clear()
    reload, outcome = in_background(lambda: server.post(RELOAD, {"model": "tiny@two", "drain": True}).json())
    assert loader.loading.wait(120)
    asked, answers = in_background(lambda: server.await_on_loop(target.send(line, "line-1")))
    service = server.app.state.service
    eventually(lambda: service._gate is not None, "the gate")
    assert answers == []
    loader.gate.set()
    asked.join(120)
    reload.join(120)
    assert outcome[0]["version"] == "two"
    assert answers[0].status == 200
    assert answers[0].body["choices"][0]["text"] == generate(server)["text"]
