"""Load on a server that speaks OpenAI's API or LPX's own, and what it answers to it."""

from lpx.bench.load.report import LoadReport
from lpx.bench.load.run import LoadProgress, measure_load
from lpx.bench.load.settings import LoadSettings

__all__ = ["LoadProgress", "LoadReport", "LoadSettings", "measure_load"]
