"""Real processes of `python -m lpx`, on the real model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench.tune.made_up_machine import machine, tiny_model
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny

__all__ = ["machine", "tiny_model"]

Lpx = Callable[..., "subprocess.CompletedProcess[str]"]

COMMAND = [sys.executable, "-m", "lpx"]


@pytest.fixture
def environment(models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose model folder holds SmolLM2, with a ledger of its own and no other LPX variable."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LPX_")}
    return {
        **kept,
        "LPX_MODELS_DIR": str(models_folder),
        "LPX_MAX_MODEL_LEN": "1024",
        "LPX_THREADS": "1",
        "LPX_LEDGER": str(tmp_path_factory.mktemp("ledger") / "ledger.sqlite"),
    }


@pytest.fixture
def lpx(environment: dict[str, str]) -> Lpx:
    """Run the command line to its end."""

    def call(*arguments: str, input: str | bytes = b"", **variables: str) -> subprocess.CompletedProcess[str]:
        data = input.encode() if isinstance(input, str) else input
        done = subprocess.run(
            [*COMMAND, *arguments], input=data, capture_output=True, env={**environment, **variables}, timeout=120
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return call


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model without a chat template."""
    config, weights = make_tiny("llama", seed=1)
    return write_hf_folder(tmp_path_factory.mktemp("base-model"), config, weights, chat_template=False)
