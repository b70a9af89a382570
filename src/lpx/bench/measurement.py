"""What every measurement comes to, whichever command made it: the ledger keeps it, `compare` and `gate` judge by it.

Figures are flat, named `<what>_<unit>` with `_mean`, `_median`, `_p90`, `_p95`, `_p99` behind where one figure has
several: `decode_tokens_per_second`, `prefill_tokens_per_second`, `output_tokens_per_second`, `requests_per_second`,
`ttft_ms_p99`, `tpot_ms_median`, `itl_ms_p95`, `e2el_ms_mean`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

# The command that measured; `gate` measures what its baseline did, or compares.
KINDS = ("latency", "roofline", "serve", "decode", "compare", "naive", "tune", "eval")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Which model was measured on what, as far as it is known: the servers of others tell little."""

    model: str
    engine: str  # "lpx", "llama.cpp", "vllm", "transformers", …; "unknown" for a server that does not say
    engine_version: str | None = None
    model_sha256: str | None = None  # of the file; of a folder, of the hashes of its files
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    device: str | None = None  # "cpu", or the card
    isa: str | None = None
    threads: int | None = None
    url: str | None = None  # of a server, without credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One run of one workload."""

    kind: str  # of KINDS
    subject: Subject
    settings: Mapping[str, Any]  # JSON values; all that is needed to run the same workload again
    figures: Mapping[str, float]
    samples: Mapping[str, tuple[float, ...]] = field(
        default_factory=dict
    )  # what figures come from: a repeat or request each
    errors: Mapping[str, int] = field(default_factory=dict)  # by kind
    batch_size: int | None = None  # sequences, or concurrent requests
    input_len: int | None = None  # tokens, the mean where they differ
    output_len: int | None = None
    started: datetime  # UTC
    seconds: float  # by the monotonic clock
