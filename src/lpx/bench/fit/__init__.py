"""What a model needs and how fast it can be at most, before it is downloaded or loaded.

`subject` finds out what is meant, `precisions` what its weights take in each precision, `target` what a machine or a
card offers, and `estimate` puts them together. Nothing is loaded; the memory is that of `lpx.runtime.memory`'s plan.
"""

from __future__ import annotations

from lpx.bench.fit.estimate import FitReport, FitRow, estimate_fit
from lpx.bench.fit.subject import FitModel, resolve_subject
from lpx.bench.fit.target import FitTarget, gpu_target, machine_target

__all__ = [
    "FitModel",
    "FitReport",
    "FitRow",
    "FitTarget",
    "estimate_fit",
    "gpu_target",
    "machine_target",
    "resolve_subject",
]
