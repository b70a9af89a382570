"""The quick start is carried out, block after block, with a tiny model under the name of the one that it names.

Only the port is another one. Installing is what .ci/run does with the README; here `python3 -m venv` leaves stand-ins.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.docs.pages import DOCS, SHELL, Block, blocks_of, commands_of
from tests.reference.model_files import write_model_gguf
from tests.reference.tiny_models import make_tiny
from tests.server.live_server import PATIENCE_S, eventually

PAGE = DOCS / "quickstart.md"

# Two kinds of command do not count as elsewhere: what gives a verdict on speed measures for a minute and refuses a
# machine that others use, and is left out; the doctor ends with 1 or 2 when it finds something on this machine.
_LPX = """#!/bin/sh
case "$1 $2" in "bench gate" | "bench baseline") exit 0 ;; esac
"{python}" -m lpx "$@"
code=$?
[ "$1" = doctor ] && [ $code -le 2 ] && exit 0
exit $code
"""
_PYTHON = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 2
mkdir -p "$3/bin"
printf '#!/bin/sh\\n' >"$3/bin/pip"
chmod +x "$3/bin/pip"
: >"$3/bin/activate"
"""


class Reader:
    """Does what the page says, in a folder of its own: blocks in a shell, a server in the background."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        programs = folder / "bin"
        programs.mkdir()
        for name, text in (("lpx", _LPX.replace("{python}", sys.executable)), ("python3", _PYTHON)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        model = folder / "models" / "smollm2-135m"
        model.mkdir(parents=True)
        tiny = make_tiny("llama", seed=3, hidden_size=64, intermediate_size=96, max_position_embeddings=2048)
        write_model_gguf(model / "tiny.gguf", *tiny)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LPX_")}
        self.environment = {
            **kept,
            "PATH": f"{programs}{os.pathsep}{kept['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "HOME": str(folder),
            "LPX_MODELS_DIR": str(model.parent),
            "LPX_LEDGER": str(folder / "ledger.sqlite"),
        }
        self.server: subprocess.Popen[str] | None = None

    def do(self, block: Block) -> str:
        """Everything that the block prints."""
        script = block.script.replace("8080", str(self.port))
        first, *others = commands_of(script)
        if first.words[:2] == ("lpx", "serve"):
            assert not others, "a server is started in a block of its own"
            self._serve(script)
            return ""
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE_S,
        )
        assert done.returncode == 0, f"{block.place}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def _serve(self, script: str) -> None:
        self.server = subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        url = f"http://127.0.0.1:{self.port}/health"

        def ready() -> bool:
            assert self.server is not None
            assert self.server.poll() is None, self.server.stderr and self.server.stderr.read()
            try:
                return httpx.get(url, trust_env=False).status_code == 200
            except httpx.ConnectError:
                return False

        eventually(ready, "readiness")

    def leave(self) -> None:
        if self.server is not None:
            os.killpg(self.server.pid, signal.SIGINT)
            self.server.communicate(timeout=PATIENCE_S)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    found = Reader(tmp_path)
    yield found
    found.leave()


def test_the_quick_start_works(reader: Reader) -> None:
    shown = [reader.do(block) for block in blocks_of(PAGE) if block.language in SHELL]
    everything = "\n".join(shown)
    assert "lpx " in shown[0]
    assert '"choices"' in everything
    results = [json.loads(line) for line in (reader.folder / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [result["custom_id"] for result in results] == ["river", "hello", "chinese"]
    assert all(result["error"] is None for result in results)
    assert "decode, tokens/s" in everything
    assert "smollm2-135m is original again" in everything
    assert (reader.folder / "candidate.gguf").is_file()


def test_the_chinese_page_shows_the_same_commands() -> None:
    """But for texts to the model, which may be Chinese."""

    def words(page: Path) -> list[list[str]]:
        shown = [command.words for block in blocks_of(page) for command in commands_of(block.script)]
        return [["{…}" if word.startswith("{") else word for word in line] for line in shown]

    assert words(DOCS / "quickstart.zh.md") == words(PAGE)


def test_the_requests_of_the_batch_page_are_requests(reader: Reader) -> None:
    (requests,) = (block for block in blocks_of(DOCS / "batch.md") if '"custom_id": "hello", "messages"' in block.text)
    (reader.folder / "in.jsonl").write_text(requests.text, encoding="utf-8")
    (check,) = (
        block
        for block in blocks_of(DOCS / "batch.md")
        if block.language in SHELL and block.script.startswith("lpx batch check")
    )
    assert "0 faulty" in reader.do(check)
