"""Requests to tokens: scheduling, KV block accounting, stop conditions, text, and the two front doors.

`LLM` drives an `Engine` on the caller's thread; `AsyncEngine` drives one on a thread of its own for many clients.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpx.engine.async_engine import AsyncEngine, RequestStream
    from lpx.engine.engine import Engine
    from lpx.engine.llm import LLM
    from lpx.engine.outputs import (
        CompletionOutput,
        EmbeddingOutput,
        EngineInfo,
        EngineStats,
        Logprob,
        RequestDelta,
        RequestOutput,
    )
    from lpx.engine.outputs import Timings as Timings
    from lpx.engine.sampling_params import SamplingParams

_HOMES = {
    "LLM": "llm",
    "AsyncEngine": "async_engine",
    "CompletionOutput": "outputs",
    "EmbeddingOutput": "outputs",
    "Engine": "engine",
    "EngineInfo": "outputs",
    "EngineStats": "outputs",
    "Logprob": "outputs",
    "RequestDelta": "outputs",
    "RequestOutput": "outputs",
    "RequestStream": "async_engine",
    "SamplingParams": "sampling_params",
    "Timings": "outputs",
}

__all__ = [
    "LLM",
    "AsyncEngine",
    "CompletionOutput",
    "EmbeddingOutput",
    "Engine",
    "EngineInfo",
    "EngineStats",
    "Logprob",
    "RequestDelta",
    "RequestOutput",
    "RequestStream",
    "SamplingParams",
    "Timings",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
