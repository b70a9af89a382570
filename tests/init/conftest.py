"""A working folder with a tiny model, and an `lpx` on its path that is the one under test."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from lpx.init import make_folder
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config, weights = make_tiny("llama", seed=1)
    return write_hf_folder(tmp_path_factory.mktemp("models") / "tiny", config, weights, chat_template=False)


@pytest.fixture
def work(tmp_path: Path, tiny_model: Path) -> Path:
    """What `lpx init --model tiny` makes in a path with all kinds of characters, its models on another disk."""
    folder = tmp_path / "工作 100% (a)"
    write_environment(folder / ".venv")
    (folder / "models").symlink_to(tiny_model.parent)
    make_folder(str(folder), "tiny", 8080)
    return folder


def write_environment(folder: Path) -> None:
    """An environment whose `lpx` and `python3` are this Python with this package."""
    (folder / "bin").mkdir(parents=True)
    path = ":".join(each for each in sys.path if each)
    for name, arguments in (("lpx", "-m lpx"), ("python3", "")):
        file = folder / "bin" / name
        file.write_text(f"#!/bin/sh\nPYTHONPATH='{path}' exec '{sys.executable}' {arguments} \"$@\"\n")
        file.chmod(0o755)


def free_port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
