"""What a KV cache with 4-bit keys or values costs in quality, from a table of measured figures.

`kv_quality.json` holds them; `benchmarks/kv_cache.py --update-table` refreshes it. A model is known by its architecture
and shape, which all its files share, whatever the precision of their weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lpx.model.config import ModelConfig

TABLE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True, slots=True)
class KvQuality:
    """Distance of next-token distributions from those with a cache of f16, over the texts of lpx.quality."""

    model: str  # name of the file that was measured
    architecture: str
    num_layers: int
    hidden_size: int
    kv_cache_dtype: str
    kl: float  # mean KL(f16 || this type), in nats
    top1: float  # share of positions with the same likeliest token


def read_table(path: Path = TABLE) -> list[KvQuality]:
    return [KvQuality(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def describe_kv_loss(config: ModelConfig, kv_cache_dtype: str, path: Path = TABLE) -> str | None:
    """One sentence about the quality of a cache that holds 4-bit keys or values; None for the other types."""
    if "q4" not in kv_cache_dtype.split(","):
        return None
    for row in read_table(path):
        measured = (row.architecture, row.num_layers, row.hidden_size, row.kv_cache_dtype)
        if measured == (config.architecture, config.num_layers, config.hidden_size, kv_cache_dtype):
            return (
                f"KV cache {kv_cache_dtype} loses quality: measured on {row.model}, mean KL {row.kl:.4f} nats from "
                f"f16, the same likeliest token at {row.top1:.1%} of positions; q8 loses next to nothing "
                "(lpx explain LPX-E051)"
            )
    return (
        f"KV cache {kv_cache_dtype} loses quality, which was not measured for this model; small models lose much, "
        "and q8 next to nothing (lpx explain LPX-E051)"
    )
