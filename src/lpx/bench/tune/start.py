"""The options to begin with: those wanted, with a KV cache just large enough, since two engines are loaded at once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from lpx.bench.tune.goal import Goal

if TYPE_CHECKING:
    from lpx.options import EngineOptions

_MOST_CONTEXT = 4096  # tokens; no prompt of the set comes near it
_TOKENS_OF_A_REQUEST = 1536  # of prompt and answer, for tokenizers that split Chinese into bytes


def tuning_options(options: EngineOptions, goal: Goal) -> EngineOptions:
    """`options` with context and cache for the tuning, where they leave these open. Raises what opening the model
    raises."""
    from lpx import _native
    from lpx.bench.engine_subject import model_path
    from lpx.model.files import open_model
    from lpx.options import parse_kv_cache_dtype
    from lpx.runtime.memory import native_config

    with open_model(model_path(options)) as files:
        config = files.config
    max_model_len = options.max_model_len or min(_MOST_CONTEXT, config.max_position)
    memory = options.kv_cache_memory
    if memory is None:
        tokens = max(max_model_len, min(goal.concurrency, options.max_num_seqs) * _TOKENS_OF_A_REQUEST)
        blocks = -(-tokens // _native.KV_BLOCK_SIZE) + 1
        memory = blocks * native_config(config).kv_block_bytes(*parse_kv_cache_dtype(options.kv_cache_dtype))
    return dataclasses.replace(options, max_model_len=max_model_len, kv_cache_memory=memory)
