"""Commands that only look something up start without what computes or serves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "numpy",
    "lpx._native",
    "tokenizers",
    "jinja2",
    "pydantic",
    "fastapi",
    "uvicorn",
    "httpx",
    "matplotlib",
    "click",
)
PROGRAM = f"""
import atexit, sys
from lpx.cli import main
atexit.register(lambda: print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr))
main()
"""


@pytest.mark.parametrize("arguments", [("--version",), ("run", "--help"), ("models", "list"), ("bench", "history")])
def test_looking_something_up_imports_nothing_heavy(arguments: tuple[str, ...], tmp_path: Path) -> None:
    folders = {"LPX_MODELS_DIR": str(tmp_path), "LPX_LEDGER": str(tmp_path / "ledger.sqlite")}
    (tmp_path / "split-00001-of-00002.gguf").touch()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, env={**os.environ, **folders}
    )
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == "[]", done.stderr
