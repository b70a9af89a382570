"""Any value at any key of a config ends in a sound config or a ModelFileError."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpx.errors import ModelFileError
from lpx.model.config import ModelConfig
from lpx.model.gguf import GgufFile
from lpx.model.gguf_config import config_from_gguf
from lpx.model.gguf_tokenizer import tokenizer_from_gguf
from lpx.model.hf_config import config_from_hf
from tests.reference.model_files import write_model_gguf
from tests.reference.tiny_models import make_tiny

ARCHITECTURES = ("llama", "qwen2", "gemma3", "phi3_longrope")  # each kind of rules once
NUMBERS = st.one_of(
    st.integers(-(2**64), 2**64),
    st.integers(-2, 70),
    st.floats(),
    st.sampled_from([0, 1, 2, 0.0, 1.0, 0.5, 1e308, 5e-324, math.inf, math.nan, 2**31, 2**30, 4096]),
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ROPE_KEYS = (
    "type", "rope_type", "rope_theta", "factor", "attention_factor", "mscale", "mscale_all_dim", "beta_fast",
    "beta_slow", "truncate", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "short_factor",
    "long_factor", "partial_rotary_factor", "full_attention", "sliding_attention",
)  # fmt: skip
ROPE_KINDS = st.sampled_from(["default", "linear", "llama3", "yarn", "dynamic", "longrope", "su"])
ROPES = st.dictionaries(st.sampled_from(ROPE_KEYS), NUMBERS | VALUES | st.lists(NUMBERS, min_size=6, max_size=6)).map(
    dict
)
MORE_KEYS = (
    "rope_scaling", "rope_parameters", "layer_types", "sliding_window_pattern", "head_dim", "partial_rotary_factor",
    "query_pre_attn_scalar", "original_max_position_embeddings", "quantization_config", "text_config", "num_experts",
)  # fmt: skip
LENGTHS = st.none() | st.integers(1, 2**20)


def check(config: ModelConfig) -> None:
    assert config.num_heads % config.num_kv_heads == 0
    assert len(config.layers) == config.num_layers
    assert math.isfinite(config.attention_scale)
    assert config.attention_scale > 0
    assert config.max_position > 0
    for rotary in config.rotaries:
        assert all(math.isfinite(f) for f in rotary.inv_freq)
        assert math.isfinite(rotary.attention_factor)
        assert rotary.attention_factor > 0


@pytest.mark.parametrize("arch", ARCHITECTURES)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_config_json(arch: str, data: st.DataObject) -> None:
    config, _ = make_tiny(arch)
    for key in data.draw(st.lists(st.sampled_from([*config, *MORE_KEYS]), min_size=1, max_size=3)):
        config[key] = data.draw(VALUES)
    if data.draw(st.booleans()):
        rope = data.draw(ROPES) | {"rope_type": data.draw(ROPE_KINDS)}
        config[data.draw(st.sampled_from(["rope_scaling", "rope_parameters"]))] = rope
    try:
        found, _ = config_from_hf(json.loads(json.dumps(config)), "m", "config.json", data.draw(LENGTHS))
    except ModelFileError:
        return
    check(found)


@pytest.fixture(scope="module")
def ggufs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GgufFile]:
    folder: Path = tmp_path_factory.mktemp("gguf")
    return {
        arch: GgufFile(write_model_gguf(folder / f"{arch}.gguf", *make_tiny(arch, num_hidden_layers=1)))
        for arch in ARCHITECTURES
    }


GGUF_VALUES = st.one_of(
    st.booleans(),
    NUMBERS,
    st.text(max_size=8),
    st.lists(st.text(max_size=3), max_size=4),
    st.lists(st.integers(-5, 5), max_size=4).map(lambda items: np.array(items, np.int32)),
    st.lists(st.floats(width=32), max_size=4).map(lambda items: np.array(items, np.float32)),
    st.lists(st.booleans(), max_size=4).map(lambda items: np.array(items, np.bool_)),
    st.lists(st.lists(st.integers(0, 5), max_size=3).map(lambda items: np.array(items, np.int32)), max_size=3),
)
GGUF_KEYS = (
    "rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_ext_factor", "rope.scale_linear",
    "rope.freq_base_swa", "rope.dimension_count", "attention.sliding_window", "attention.sliding_window_pattern",
    "attention.key_length", "attention.value_length", "attention.scale", "attn_logit_softcapping", "expert_count",
)  # fmt: skip


@pytest.mark.parametrize("arch", ARCHITECTURES)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_gguf_metadata(arch: str, ggufs: dict[str, GgufFile], data: st.DataObject) -> None:
    file = ggufs[arch]
    metadata: dict[str, Any] = dict(file.metadata)
    prefix = metadata["general.architecture"]
    keys = [*metadata, *(f"{prefix}.{key}" for key in GGUF_KEYS)]
    for key in data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=3)):
        metadata[key] = data.draw(GGUF_VALUES)
    if data.draw(st.booleans()):
        metadata[f"{prefix}.rope.scaling.type"] = data.draw(st.sampled_from(["none", "linear", "yarn", "longrope"]))
    try:
        config, _ = config_from_gguf(metadata, file.tensors, "m", "m.gguf", data.draw(LENGTHS))
        check(config)
        tokenizer_from_gguf(metadata, config.vocab_size, "m.gguf")
    except ModelFileError:
        pass
