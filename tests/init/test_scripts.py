"""The scripts of the folder as people run them: real processes, a tiny model, and servers that do not do their work."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.init.conftest import free_port
from tests.server.live_server import eventually

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("LPX_")}


def script(work: Path, name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [work / "scripts" / name, *arguments],
        env={**ENVIRONMENT, **variables},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_it_starts_answers_reloads_and_ends(work: Path) -> None:
    profile = work / "config" / "lpx.toml"
    profile.write_text(
        profile.read_text().replace("port = 8080", f"port = {free_port()}").replace("# api-key-file", "api-key-file")
    )
    log = work / "logs" / "serve.log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            [work / "scripts" / "start.sh"], env=ENVIRONMENT, cwd="/", stderr=file, start_new_session=True
        )
    try:
        done = script(work, "smoke-test.sh")
        assert (done.returncode, done.stderr) == (0, ""), log.read_text()
        assert done.stdout.startswith("smoke test passed: 8 tokens in English and 8 tokens in Chinese from http://127.")
        assert done.stdout.count("\n") == 1
        assert re.search(r" \([\w.-]+\)$", done.stdout)
        assert (work / "logs" / "serve.pid").read_text() == f"{server.pid}\n"
        server.send_signal(signal.SIGHUP)
        eventually(lambda: "nothing to reload" in log.read_text(), "the reload")
        (work / "config" / "keys.txt").write_text("another:key-that-is-not-the-servers\n")
        refused = script(work, "smoke-test.sh")
        assert refused.returncode == 1
        assert "answers 401" in refused.stderr
    finally:
        server.terminate()
        code = server.wait(120)
    assert log.read_text().splitlines()[-1].endswith("the server has ended")
    assert code == 0
    down = script(work, "smoke-test.sh", "--wait", "0")
    assert down.returncode == 1
    assert down.stderr.startswith("smoke test failed: http://127.0.0.1:")
    assert "cannot be reached" in down.stderr
    assert down.stderr.count("\n") == 1


def test_options_go_through_and_beat_the_profile(work: Path) -> None:
    done = script(work, "start.sh", "--port", "0", "--host", "0.0.0.0")
    assert done.returncode == 2
    assert "LPX-E042" in done.stderr
    assert "overruled: host, port" in done.stderr


@contextmanager
def answering(
    ready: int, status: int, body: bytes | None, models: bytes = b"{}"
) -> Iterator[tuple[str, list[str | None]]]:
    """A server with one answer for everything; its address, and the keys that it was shown."""
    keys: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(ready, models if self.path == "/v1/models" else b"{}")

        def do_POST(self) -> None:
            keys.append(self.headers["Authorization"])
            if body is not None:  # None: it closes without a word
                self._answer(status, body)

        def _answer(self, code: int, data: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", keys
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("ready", "status", "body", "told"),
    [
        (503, 200, b"", "is not ready after 0 s: it answers 503"),
        (200, 500, b'{"error": {"message": "broken"}}', "no answer in English: http://127.0.0.1:"),
        (200, 200, b'{"usage": {"completion_tokens": 0}}', "no answer in English: it has no tokens"),
        (200, 200, b'{"usage": null}', "what came is no completion"),
        (200, 200, b"", "what came is no completion"),
        (200, 200, None, "no answer in English: Remote end closed connection"),
    ],
)
def test_the_smoke_test_fails_when_nothing_is_answered(
    work: Path, ready: int, status: int, body: bytes | None, told: str
) -> None:
    with answering(ready, status, body) as (url, keys):
        done = script(work, "smoke-test.sh", "--wait", "0", LPX_URL=url)
    assert done.returncode == 1
    assert told in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert set(keys) <= {None}  # the key of this folder is for the server of this folder


def test_a_proxy_is_not_asked_and_a_key_of_the_environment_is_shown(work: Path) -> None:
    body = json.dumps({"usage": {"completion_tokens": 3}}).encode()
    with answering(200, 200, body) as (url, keys):
        done = script(work, "smoke-test.sh", LPX_URL=url, LPX_API_KEY="one two", http_proxy="http://127.0.0.1:1")
    assert done.stdout == f"smoke test passed: 3 tokens in English and 3 tokens in Chinese from {url}\n"
    assert keys == ["Bearer one"] * 2


def test_the_smoke_test_names_the_version_that_answered(work: Path) -> None:
    body = b'{"usage": {"completion_tokens": 3}}'
    with answering(200, 200, body, b'{"data": [{"id": "m", "version": "f896947e5bd1"}]}') as (url, _):
        done = script(work, "smoke-test.sh", LPX_URL=url)
    assert done.stdout.endswith(f" from {url} (m, version f896947e5bd1)\n")


def test_the_smoke_test_needs_no_installation_of_lpx(work: Path) -> None:
    """As on a machine where LPX runs in a container alone."""
    shutil.rmtree(work / ".venv")
    (work / "bin").mkdir()
    (work / "bin" / "python3").symlink_to(sys.executable)
    with answering(200, 200, b'{"usage": {"completion_tokens": 3}}') as (url, _):
        done = script(work, "smoke-test.sh", LPX_URL=url, PATH=f"{work}/bin:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr


def test_the_environment_is_that_of_the_folder_one_stands_in(work: Path, tmp_path: Path) -> None:
    def source(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        command = '. "$0/scripts/env.sh" && . "$0/scripts/env.sh" && env'
        given = {"PATH": "/usr/bin:/bin", **variables}
        return subprocess.run(["sh", "-c", command, work], cwd=folder, env=given, capture_output=True, text=True)

    done = source(work, LPX_MODELS_DIR="/of/another/folder")
    assert done.returncode == 0, done.stderr
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert variables["LPX_MODELS_DIR"] == f"{work}/models"
    assert variables["LPX_LEDGER"] == f"{work}/outputs/ledger.sqlite"
    assert variables["LPX_PROFILE"] == f"{work}/config/lpx.toml"
    assert variables["PATH"] == f"{work}/.venv/bin:/usr/bin:/bin"
    elsewhere = source(tmp_path)
    assert elsewhere.returncode == 1
    assert "change into the working folder first" in elsewhere.stderr
    shutil.rmtree(work / ".venv")
    if shutil.which("lpx", path="/usr/bin:/bin") is None:
        assert "there is no lpx: install it with" in source(work).stderr
