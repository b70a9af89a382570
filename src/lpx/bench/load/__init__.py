"""Load on a server that speaks OpenAI's API or LPX's own, and what it answers to it."""

from lpx.bench.load.decode import DecodeSettings, measure_decode, measure_decode_again
from lpx.bench.load.report import LoadReport
from lpx.bench.load.run import LoadProgress, measure_load, measure_load_again
from lpx.bench.load.settings import LoadSettings

__all__ = [
    "DecodeSettings",
    "LoadProgress",
    "LoadReport",
    "LoadSettings",
    "measure_decode",
    "measure_decode_again",
    "measure_load",
    "measure_load_again",
]
