"""Options of the tiny model that is tuned."""

from __future__ import annotations

import pytest

from lpx.options import EngineOptions
from tests.bench.tune.made_up_machine import machine, tiny_model

__all__ = ["machine", "tiny_model"]


@pytest.fixture
def options(tiny_model):
    return EngineOptions(model=str(tiny_model), threads=2, kv_cache_memory=4 << 20, measure_steps=False)
