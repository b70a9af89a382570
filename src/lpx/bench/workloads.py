"""Measuring again what a measurement measured: its `kind` and its `settings` are all that is needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from lpx.bench.measurement import Measurement
from lpx.errors import ConfigError

# Kind, and where the function lies that takes the settings: modules are imported when they are needed.
_MEASURES = {
    "latency": ("lpx.bench.latency", "measure_latency_again"),
    "roofline": ("lpx.bench.roofline", "measure_roofline_again"),
    "serve": ("lpx.bench.load", "measure_load_again"),
    "tune": ("lpx.bench.tune.measurement", "measure_tune_again"),
    "decode": ("lpx.bench.load", "measure_decode_again"),
    "eval": ("lpx.bench.evaluation", "measure_evaluation_again"),
}


def measure_again(kind: str, settings: Mapping[str, Any]) -> Measurement:
    """Run the workload that `settings` of a `Measurement` of this kind describe.

    Raises ConfigError for a kind that cannot be run again, and what the measurement raises.
    """
    if kind not in _MEASURES:
        able = ", ".join(_MEASURES)
        raise ConfigError(f"a measurement of the kind {kind!r} cannot be run again; those of {able} can")
    module, name = _MEASURES[kind]
    measure: Callable[[Mapping[str, Any]], Measurement] = getattr(importlib.import_module(module), name)
    return measure(settings)
