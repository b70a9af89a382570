"""What an executor is told about the machine and the work to expect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Quantization = Literal["none", "q8", "q4"]


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Limits and choices of one executor; `None` leaves the choice to LPX."""

    threads: int | None = None  # None: the physical cores this process may use
    isa: str | None = None  # kernel set; None: LPX_ISA, else the best that the processor has
    quantization: str | None = None  # of float weights at load: "none", "q8", "q4"
    kv_cache_memory: int | None = None  # bytes
    kv_cache_dtype: str = "auto"  # see lpx.options.parse_kv_cache_dtype
    max_model_len: int | None = None  # positions of a sequence; None: what the model and memory allow
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512  # rows of one step
