"""The server of `benchmarks/batch_kills.py`, and the benchmark itself, for tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

_PATH = Path(__file__).parents[2] / "benchmarks" / "batch_kills.py"
_spec = importlib.util.spec_from_file_location("batch_kills", _PATH)
assert _spec is not None
assert _spec.loader is not None
batch_kills: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(batch_kills)
