"""From config.json and GGUF keys to the model's config: the layouts there are, and what is refused with which words."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpx.errors import ModelFileError, UnsupportedModelError
from lpx.model.config import ModelConfig
from lpx.model.files import open_model
from lpx.model.hf_config import config_from_hf
from tests.reference.gguf_writer import Typed
from tests.reference.model_files import write_hf_folder, write_model_gguf
from tests.reference.rope import scaled_frequencies
from tests.reference.tiny_models import make_tiny


def from_json(arch: str, drop: tuple[str, ...] = (), max_model_len: int | None = None, **changes: Any) -> ModelConfig:
    config, _ = make_tiny(arch)
    config |= changes
    for key in drop:
        del config[key]
    return config_from_hf(json.loads(json.dumps(config)), "m", "config.json", max_model_len)[0]


def gguf_error(path: Path, arch: str, metadata: dict[str, Any], error: type[Exception] = ModelFileError) -> str:
    config, weights = make_tiny(arch, num_hidden_layers=1)
    write_model_gguf(path / "m.gguf", config, weights, metadata=metadata)
    with pytest.raises(error) as info:
        open_model(path / "m.gguf")
    return str(info.value)


# --- rotary scaling


@pytest.mark.parametrize("spelling", ["type", "rope_type"])
@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "linear", "factor": 4.0},
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        {"type": "yarn", "factor": 64.0, "attention_factor": 1.0, "original_max_position_embeddings": 64},
        {"type": "yarn", "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707},
        {"type": "yarn", "factor": 8.0, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
        {
            "type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
        {"type": "default"},
    ],
)
def test_scaling_in_old_and_new_layouts(spelling: str, scaling: dict[str, Any]) -> None:
    scaling = {spelling if key == "type" else key: value for key, value in scaling.items()}
    inv_freq, factor = scaled_frequencies(500.0, 12, scaling, 512, 1)
    old = from_json("llama", rope_theta=500.0, rope_scaling=scaling)
    new = from_json("llama", drop=("rope_theta",), rope_parameters={"rope_theta": 500.0, **scaling})
    for found in (old, new):
        np.testing.assert_allclose(found.rotaries[0].inv_freq, inv_freq, rtol=1e-12)
        assert found.rotaries[0].attention_factor == pytest.approx(factor)
    assert old == new


def test_scaling_says_how_far_the_model_reaches() -> None:
    assert from_json("llama", rope_scaling={"type": "linear", "factor": 4.0}).max_position == 2048
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert from_json("llama", rope_scaling=yarn).max_position == 2048
    assert from_json("llama3").max_position == 512


def test_dynamic_scaling_is_only_good_for_the_own_context() -> None:
    scaling = {"type": "dynamic", "factor": 4.0}
    plain = from_json("llama")
    for length in (None, 512):
        assert from_json("llama", rope_scaling=scaling, max_model_len=length) == plain
    with pytest.raises(UnsupportedModelError, match=r"dynamic.*513"):
        from_json("llama", rope_scaling=scaling, max_model_len=513)


@pytest.mark.parametrize("scaling", [{"type": "mrope"}, {"rope_type": "proportional"}, {"type": "ntk"}, {"type": ""}])
def test_unknown_scaling_is_refused_by_name(scaling: dict[str, Any]) -> None:
    name = scaling.get("type", scaling.get("rope_type"))
    with pytest.raises(UnsupportedModelError, match=repr(name)):
        from_json("llama", rope_scaling=scaling)
    with pytest.raises(UnsupportedModelError, match=repr(name)):
        from_json("llama", rope_parameters={"rope_theta": 1e4, **scaling})


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"type": "linear"}, "factor is missing"),
        ({"type": "linear", "factor": 0}, "factor"),
        ({"type": "linear", "factor": "4"}, "factor"),
        ({"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}, "high_freq_factor is missing"),
        ({"type": 4}, "type"),
        ("linear", "rope_scaling"),
    ],
)
def test_broken_scaling_is_refused_by_key(scaling: Any, named: str) -> None:
    with pytest.raises(ModelFileError, match=named):
        from_json("llama", rope_scaling=scaling)


def test_longrope_needs_a_factor_for_each_pair() -> None:
    broken = {"type": "longrope", "short_factor": [1.0] * 5, "long_factor": [1.0] * 6}
    with pytest.raises(ModelFileError, match=r"short_factor.* list of 6 numbers"):
        from_json("phi3_longrope", rope_scaling=broken)


def test_gemma3_scales_its_global_layers_only() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = from_json("gemma3", rope_scaling=scaling)
    new = from_json(
        "gemma3",
        drop=("rope_theta", "rope_local_base_freq"),
        rope_parameters={
            "full_attention": {"rope_theta": 100_000.0, **scaling},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
        },
    )
    np.testing.assert_allclose(old.rotaries[0].inv_freq, scaled_frequencies(1e5, 20, None, 512, 1)[0] / 8)
    np.testing.assert_allclose(old.rotaries[1].inv_freq, scaled_frequencies(1e3, 20, None, 512, 1)[0])
    assert old == new
    assert old.max_position == 512


def test_gemma3_gguf_scales_its_global_layers_only(tmp_path: Path) -> None:
    config, weights = make_tiny("gemma3")
    metadata = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    with open_model(write_model_gguf(tmp_path / "m.gguf", config, weights, metadata=metadata)) as model:
        rotaries = model.config.rotaries
    np.testing.assert_allclose(rotaries[0].inv_freq, scaled_frequencies(1e5, 20, None, 512, 1)[0] / 8)
    np.testing.assert_allclose(rotaries[1].inv_freq, scaled_frequencies(1e3, 20, None, 512, 1)[0])


def test_phi3_rotates_a_part_of_each_head(tmp_path: Path) -> None:
    config, weights = make_tiny("phi3", hidden_size=64, partial_rotary_factor=0.75)
    for path in (
        write_hf_folder(tmp_path / "hf", config, weights),
        write_model_gguf(tmp_path / "m.gguf", config, weights),
    ):
        with open_model(path) as model:
            expected = scaled_frequencies(1e4, 12, None, 512, 1)[0]
            np.testing.assert_allclose(model.config.rotaries[0].inv_freq, expected)
            assert model.config.head_dim == 16
    with pytest.raises(UnsupportedModelError, match="partial_rotary_factor"):
        from_json("llama", partial_rotary_factor=0.5)


def test_gguf_scaling(tmp_path: Path) -> None:
    config, weights = make_tiny("qwen2")

    def rotary(**values: Any) -> Any:
        metadata = {f"qwen2.rope.scaling.{key}": value for key, value in values.items()}
        with open_model(write_model_gguf(tmp_path / "m.gguf", config, weights, metadata=metadata)) as model:
            return model.config.rotaries[0], model.config.max_position

    plain = scaled_frequencies(1e4, 12, None, 512, 1)[0]
    np.testing.assert_allclose(rotary(type="none")[0].inv_freq, plain)
    np.testing.assert_allclose(rotary(type="linear", factor=2.0)[0].inv_freq, plain / 2)
    np.testing.assert_allclose(rotary(factor=2.0)[0].inv_freq, plain / 2)
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    expected, factor = scaled_frequencies(1e4, 12, scaling, 512, 1)
    found, positions = rotary(type="yarn", factor=4.0, original_context_length=512)
    np.testing.assert_allclose(found.inv_freq, expected, rtol=1e-6)
    assert found.attention_factor == pytest.approx(factor)
    assert positions == 2048
    found, _ = rotary(type="yarn", factor=4.0, original_context_length=512, attn_factor=0.5)
    assert found.attention_factor == pytest.approx(factor / 2)
    with pytest.raises(UnsupportedModelError, match=r"rope\.scaling\.type = 'dynamic'"):
        rotary(type="dynamic")
    with pytest.raises(UnsupportedModelError, match="yarn_log_multiplier"):
        rotary(type="yarn", factor=4.0, yarn_log_multiplier=0.1)


# --- windows


def test_windows_follow_the_config() -> None:
    assert [x.window for x in from_json("mistral").layers] == [19] * 3
    assert [x.window for x in from_json("mistral", sliding_window=None).layers] == [0] * 3
    assert [x.window for x in from_json("qwen2").layers] == [0] * 3
    assert [x.window for x in from_json("qwen2", use_sliding_window=True).layers] == [0, 0, 64]
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert [x.window for x in from_json("mistral", layer_types=kinds).layers] == [19, 0, 19]
    gemma = from_json("gemma3", num_hidden_layers=4, sliding_window_pattern=2)
    assert [(x.window, x.rotary) for x in gemma.layers] == [(19, 1), (0, 0), (19, 1), (0, 0)]
    assert [x.window for x in from_json("phi3", sliding_window=7).layers] == [7] * 3
    with pytest.raises(UnsupportedModelError, match="'chunked_attention' of layer 1"):
        from_json("mistral", layer_types=["full_attention", "chunked_attention", "full_attention"])
    with pytest.raises(ModelFileError, match="layer_types must name the type of each of 3 layers"):
        from_json("mistral", layer_types=["full_attention"])
    with pytest.raises(ModelFileError, match="sliding_window is missing"):
        from_json("gemma2", sliding_window=None)


def test_gguf_windows(tmp_path: Path) -> None:
    config, weights = make_tiny("mistral")
    path = write_model_gguf(tmp_path / "m.gguf", config, weights, metadata={"llama.attention.sliding_window": 9})
    with open_model(path) as model:
        assert [x.window for x in model.config.layers] == [9] * 3
    config, weights = make_tiny("gemma3", num_hidden_layers=3)
    pattern = {"gemma3.attention.sliding_window_pattern": [True, False, True]}
    with open_model(write_model_gguf(tmp_path / "m.gguf", config, weights, metadata=pattern)) as model:
        assert [(x.window, x.rotary) for x in model.config.layers] == [(19, 1), (0, 0), (19, 1)]


# --- soft caps (M10)


@pytest.mark.parametrize("off", [None, 0, 0.0])
def test_soft_caps_can_be_off(off: float | None) -> None:
    found = from_json("gemma2", attn_logit_softcapping=off, final_logit_softcapping=off)
    assert (found.attention_softcap, found.logit_softcap) == (0.0, 0.0)


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan, "50", True])
@pytest.mark.parametrize("key", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_other_soft_caps_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=key):
        from_json("gemma2", **{key: value})


def test_gguf_soft_caps(tmp_path: Path) -> None:
    config, weights = make_tiny("gemma2")

    def caps(**metadata: float) -> tuple[float, float]:
        values = {f"gemma2.{key}": value for key, value in metadata.items()}
        with open_model(write_model_gguf(tmp_path / "m.gguf", config, weights, metadata=values)) as model:
            return model.config.attention_softcap, model.config.logit_softcap

    assert caps(attn_logit_softcapping=0.0) == (0.0, 3.0)
    for value in (-1.0, math.inf, math.nan):
        assert "final_logit_softcapping" in gguf_error(tmp_path, "gemma2", {"gemma2.final_logit_softcapping": value})


# --- heads (M06, M07)


def test_query_scale_of_gemma() -> None:
    assert from_json("gemma2", query_pre_attn_scalar=144).attention_scale == pytest.approx(1 / 12)
    assert from_json("gemma3", query_pre_attn_scalar=168).attention_scale == pytest.approx(168**-0.5)


@pytest.mark.parametrize(("heads", "kv_heads"), [(33, 2), (3, 2)])
def test_heads_that_cannot_share_are_refused(tmp_path: Path, heads: int, kv_heads: int) -> None:
    with pytest.raises(ModelFileError, match=f"{heads} attention heads cannot share {kv_heads}"):
        from_json("llama", num_attention_heads=heads, num_key_value_heads=kv_heads, hidden_size=heads * 4)
    metadata = {
        "qwen3.attention.head_count": heads,
        "qwen3.attention.head_count_kv": kv_heads,
        "qwen3.embedding_length": 48,
    }
    assert f"{heads} attention heads cannot share {kv_heads}" in gguf_error(tmp_path, "qwen3", metadata)


def test_head_dimension_is_taken_from_the_config() -> None:
    assert from_json("mistral", head_dim=32).head_dim == 32
    assert from_json("qwen3").head_dim == 20
    with pytest.raises(ModelFileError, match="cannot be split among 5 heads"):
        from_json("llama", num_attention_heads=5, num_key_value_heads=5)
    with pytest.raises(ModelFileError, match="21 rotated dimensions are no whole pairs"):
        from_json("qwen3", head_dim=21)


def test_values_of_another_width_than_keys_are_refused(tmp_path: Path) -> None:
    message = gguf_error(tmp_path, "qwen3", {"qwen3.attention.value_length": 24}, UnsupportedModelError)
    assert "keys of 20 and values of 24" in message


def test_counts_that_differ_between_layers_are_refused(tmp_path: Path) -> None:
    config, weights = make_tiny("llama")
    same = {"llama.attention.head_count_kv": [2, 2, 2]}
    with open_model(write_model_gguf(tmp_path / "m.gguf", config, weights, metadata=same)) as model:
        assert model.config.num_kv_heads == 2
    differs = {"llama.attention.head_count_kv": [2, 1, 2]}
    assert "differs between layers" in gguf_error(tmp_path, "llama", differs, UnsupportedModelError)


# --- values out of range


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", -48),
        ("hidden_size", 1 << 40),
        ("hidden_size", "48"),
        ("hidden_size", None),
        ("hidden_size", True),
        ("hidden_size", 48.5),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", 1 << 31),
        ("num_attention_heads", [4]),
        ("vocab_size", 0),
        ("vocab_size", 1 << 60),
        ("rms_norm_eps", 0.0),
        ("rms_norm_eps", math.nan),
        ("rms_norm_eps", 2.0),
        ("rope_theta", 0.0),
        ("rope_theta", 1.0),
        ("rope_theta", math.inf),
        ("max_position_embeddings", 0),
        ("tie_word_embeddings", "yes"),
        ("hidden_act", 3),
    ],
)
def test_bad_values_are_refused_by_key(key: str, value: Any) -> None:
    value = {"list": value} if isinstance(value, list) else value
    with pytest.raises(ModelFileError, match=key):
        from_json("llama", **{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.embedding_length", Typed("UINT64", 1 << 50)),
        ("llama.embedding_length", 0),
        ("llama.block_count", Typed("UINT32", 4_000_000_000)),
        ("llama.block_count", -1),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count", "four"),
        ("llama.attention.layer_norm_rms_epsilon", math.nan),
        ("llama.rope.freq_base", -1.0),
        ("llama.rope.dimension_count", 13),
        ("llama.context_length", 0),
        ("general.architecture", 7),
    ],
)
def test_bad_gguf_values_are_refused_by_key(tmp_path: Path, key: str, value: Any) -> None:
    assert key in gguf_error(tmp_path, "llama", {key: value})


# --- what LPX cannot run


@pytest.mark.parametrize("name", ["mamba", "qwen2_moe", "gemma", "phi", "deepseek_v3", "gpt2", "smollm3", "qwen2_vl"])
def test_other_architectures_are_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"architecture '{name}' is not supported. LPX runs llama"):
        from_json("llama", model_type=name)
    assert f"architecture '{name}'" in gguf_error(
        tmp_path, "llama", {"general.architecture": name}, UnsupportedModelError
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu'"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "hidden_act"),
        ({"num_local_experts": 8}, "mixtures of experts"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized by 'gptq'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized by 'awq'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "GGUF"),
    ],
)
def test_options_that_lpx_lacks_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        from_json("llama", **changes)


@pytest.mark.parametrize(
    ("key", "value"), [("llama.expert_count", 8), ("llama.logit_scale", 0.5), ("llama.residual_scale", 0.2)]
)
def test_gguf_options_that_lpx_lacks_are_refused_by_name(tmp_path: Path, key: str, value: float) -> None:
    assert key in gguf_error(tmp_path, "llama", {key: value}, UnsupportedModelError)


def test_published_gemma3_configs_leave_out_the_defaults_of_their_class() -> None:
    """The layout of a multimodal checkpoint: only what differs from the class is in text_config."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = {"model_type": "gemma3", "eos_token_id": [1, 106], "text_config": text, "vision_config": {}}
    found, tied = config_from_hf(config, "m", "config.json")
    assert (found.num_heads, found.num_kv_heads, found.head_dim, found.vocab_size) == (8, 4, 256, 262_208)
    assert (found.max_position, found.attention_scale, found.tied_head, tied) == (131_072, 1 / 16, True, None)
    assert [layer.window for layer in found.layers[:7]] == [1024] * 5 + [0, 1024]
    assert found.rotaries[0].inv_freq[0] == pytest.approx(1 / 8)
    assert found.rotaries[1].inv_freq[0] == 1.0
