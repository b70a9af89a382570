"""Finding options that make a model faster on this machine: one variable at a time, against the best so far.

`goal` says what is wanted, `workload` what is run, `variables` what is tried, `comparison` how two engines are told
apart, `state` what an interrupted run leaves, and `tuner` goes through it all.
"""

from __future__ import annotations

from lpx.bench.tune.goal import Goal, Slo
from lpx.bench.tune.state import TuneState
from lpx.bench.tune.tuner import Outcome, Step, Tuner

__all__ = ["Goal", "Outcome", "Slo", "Step", "TuneState", "Tuner"]
