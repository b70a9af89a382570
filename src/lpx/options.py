"""The options of an engine, as the command line, the service and `LLM` share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from lpx.errors import ConfigError
from lpx.speculative_config import SpeculativeConfig

DTYPES = {
    "auto": None,
    "float32": "F32",
    "f32": "F32",
    "float16": "F16",
    "f16": "F16",
    "half": "F16",
    "bfloat16": "BF16",
    "bf16": "BF16",
}
QUANTIZATIONS = ("none", "q8", "q4")
KV_CACHE_DTYPES = ("auto", "f16", "bf16", "q8", "q4")
_MOST = {
    "max_model_len": 2**31 - 1,
    "max_num_seqs": 2**16,
    "max_num_batched_tokens": 2**20,
    "kv_cache_memory": 2**60,
    "threads": 1024,
}


@dataclass(slots=True)
class EngineOptions:
    """How to load a model and how much of the machine to give it; `None` leaves the choice to LPX.

    Wrong values raise `ConfigError`, at construction where they can be seen without the model.
    """

    model: str
    models_dir: Path | None = None
    dtype: str = "auto"  # unquantized weights run in the type of the file; another type than the file's is refused
    quantization: str | None = None  # at load, for safetensors: "none", "q8", "q4"
    max_model_len: int | None = None  # tokens of prompt and output together; None: what the model and memory allow
    max_num_seqs: int = 64  # sequences that run at once
    max_num_batched_tokens: int = 512  # rows of one step
    kv_cache_memory: int | None = None  # bytes
    kv_cache_dtype: str = "auto"  # of keys and values, or both apart as "q8,q4"; auto is f16
    itl_target_ms: float | None = None  # longest step of streams while prompts are computed; None: as measured
    enable_prefix_caching: bool = True  # keep computed blocks and share them with prompts that begin in the same way
    threads: int | None = None  # None: the physical cores this process may use
    isa: str | None = None  # kernel set; None: the best that the processor has
    seed: int | None = None  # makes requests without a seed reproducible
    served_model_name: str | None = None
    chat_template: str | None = None  # a path or the template itself; None: the model's own
    tokenizer_pre: str | None = None  # overrides an unknown pre-tokenizer name
    max_waiting: int = 1024  # requests that may queue before new ones are refused
    # How tokens are drafted; JSON text or a mapping becomes a SpeculativeConfig.
    speculative_config: SpeculativeConfig | Mapping[str, Any] | str = field(default_factory=SpeculativeConfig)
    measure_steps: bool = True  # at load, for speculation: half a second at most; else it learns as it goes

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError(f"model must be a path or a name, not {self.model!r}")
        if self.models_dir is not None:
            self.models_dir = Path(self.models_dir)
        self.speculative_config = SpeculativeConfig.parse(self.speculative_config)
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype {self.dtype!r} is not known; use one of {', '.join(DTYPES)}")
        if self.quantization is not None and self.quantization not in QUANTIZATIONS:
            raise ConfigError(f"quantization {self.quantization!r} is not known; use one of {', '.join(QUANTIZATIONS)}")
        parse_kv_cache_dtype(self.kv_cache_dtype)
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_memory", "threads"):
            value = getattr(self, name)
            if value is None and name not in ("max_num_seqs", "max_num_batched_tokens"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}")
            if value > (most := _MOST[name]):
                raise ConfigError(f"{name} must be at most {most}, not {value}")
        if isinstance(self.max_waiting, bool) or not isinstance(self.max_waiting, int) or self.max_waiting < 0:
            raise ConfigError(f"max_waiting must be a whole number of at least 0, not {self.max_waiting!r}")
        target = self.itl_target_ms
        if target is not None and (
            isinstance(target, bool) or not isinstance(target, (int, float)) or not 0 < target < inf
        ):
            raise ConfigError(f"itl_target_ms must be a finite number above 0, not {target!r}")
        if not isinstance(self.enable_prefix_caching, bool):
            raise ConfigError(f"enable_prefix_caching must be true or false, not {self.enable_prefix_caching!r}")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise ConfigError(f"seed must be a whole number, not {self.seed!r}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): every running sequence needs one row in each step"
            )


def parse_kv_cache_dtype(text: str) -> tuple[str, str]:
    """The types of keys and of values that `text` means: one of `KV_CACHE_DTYPES`, or two with a comma between.

    Raises ConfigError for anything else.
    """
    parts = text.split(",") if isinstance(text, str) else []
    names = [part.strip() for part in parts]
    if len(names) not in (1, 2) or any(name not in KV_CACHE_DTYPES for name in names):
        raise ConfigError(
            f"kv_cache_dtype {text!r} is not known; use one of {', '.join(KV_CACHE_DTYPES)}, or two of them as K,V, "
            "such as q8,q4"
        )
    key, value = ("f16" if name == "auto" else name for name in (names[0], names[-1]))
    return key, value
