"""Whether the streams of a measurement fit the engine that is to run them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lpx.errors import ConfigError


def check_room(info: Mapping[str, Any], input_len: int, output_len: int, batch_size: int) -> None:
    """Raises ConfigError where the context, the streams at once or the KV blocks do not suffice.

    `info` is `EngineInfo` as a mapping, as engines in other processes tell it.
    """
    length = input_len + output_len
    if length > info["max_model_len"]:
        raise ConfigError(
            f"{input_len} tokens in and {output_len} out do not fit the context of {info['max_model_len']}; "
            "lower --input-len or --output-len, or raise --max-model-len"
        )
    if batch_size > info["max_num_seqs"]:
        raise ConfigError(
            f"a batch of {batch_size} needs --max-num-seqs {batch_size}: the engine runs {info['max_num_seqs']} at once"
        )
    needed = batch_size * -(-length // info["block_size"])
    if needed > info["num_blocks"]:
        raise ConfigError(
            f"{batch_size} streams of {length} tokens need {needed} KV blocks and there are {info['num_blocks']}; "
            "raise --kv-cache-memory, or lower --batch-size, --input-len or --output-len"
        )
