"""The same tiny model as a Hugging Face folder and as GGUF: both must open to the same config and the same weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lpx.model.config import WeightTensor
from lpx.model.files import ModelFiles, open_model
from tests.reference.model_files import write_hf_folder, write_model_gguf
from tests.reference.rope import scaled_frequencies
from tests.reference.tiny_models import ARCHITECTURES, make_tiny

LONG = 512


def values(weight: WeightTensor) -> NDArray[np.float32]:
    """The weight as the decoder sees it."""
    assert weight.type in ("F32", "BF16", "F16")
    if weight.type == "BF16":
        array = (weight.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        array = weight.data.view({"F32": np.float32, "F16": np.float16}[weight.type]).astype(np.float32)
    array = array.reshape(weight.shape)
    return array if weight.row_map is None else array[weight.row_map]


def all_values(model: ModelFiles) -> dict[str, NDArray[np.float32]]:
    found: dict[str, NDArray[np.float32]] = {}
    for weight in model.weights():
        assert weight.name not in found
        found[weight.name] = values(weight)
    return found


def hf_names(arch: str, layer: int) -> dict[str, str]:
    """Canonical names of single matrices and vectors to Hugging Face's, written down a second time."""
    prefix = f"model.layers.{layer}"
    names = {name: f"{prefix}.self_attn.{name}_proj.weight" for name in "qkvo"}
    names |= {f"{name}_bias": f"{prefix}.self_attn.{name}_proj.bias" for name in "qkvo"}
    names |= {f"{name}_norm": f"{prefix}.self_attn.{name}_norm.weight" for name in "qk"}
    names |= {name: f"{prefix}.mlp.{name}_proj.weight" for name in ("gate", "up", "down")}
    names["attn_norm"] = f"{prefix}.input_layernorm.weight"
    if arch.startswith("gemma"):
        names["attn_post_norm"] = f"{prefix}.post_attention_layernorm.weight"
        names["ffn_norm"] = f"{prefix}.pre_feedforward_layernorm.weight"
        names["ffn_post_norm"] = f"{prefix}.post_feedforward_layernorm.weight"
    else:
        names["ffn_norm"] = f"{prefix}.post_attention_layernorm.weight"
    return {f"layers.{layer}.{name}": hf for name, hf in names.items()}


def expected_values(arch: str, config: dict[str, Any], weights: dict[str, NDArray[np.float32]]) -> dict[str, Any]:
    weights = dict(weights)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    inner = config["intermediate_size"]
    names = {"embedding": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}
    for layer in range(config["num_hidden_layers"]):
        names |= hf_names(arch, layer)
        prefix = f"model.layers.{layer}"
        if arch.startswith("phi3"):
            q, k = heads * width, kv_heads * width
            fused = weights.pop(f"{prefix}.self_attn.qkv_proj.weight")
            for name, part in (("q", fused[:q]), ("k", fused[q : q + k]), ("v", fused[q + k :])):
                weights[f"{prefix}.self_attn.{name}_proj.weight"] = part
            fused = weights.pop(f"{prefix}.mlp.gate_up_proj.weight")
            weights[f"{prefix}.mlp.gate_proj.weight"] = fused[:inner]
            weights[f"{prefix}.mlp.up_proj.weight"] = fused[inner:]
    offset = np.float32(1) if arch.startswith("gemma") else np.float32(0)
    return {
        name: weights[hf] + (offset if name.endswith("norm") else np.float32(0))
        for name, hf in names.items()
        if hf in weights
    }


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("attention_bias", [False, True])
def test_both_containers_hold_the_same_model(tmp_path: Path, arch: str, attention_bias: bool) -> None:
    if attention_bias and arch not in ("llama", "mistral", "qwen3", "llama3"):
        attention_bias = False
    config, weights = make_tiny(arch, attention_bias=attention_bias)
    expected = expected_values(arch, config, weights)
    folder = write_hf_folder(tmp_path / "hf", config, weights, shards=2)
    gguf = write_model_gguf(tmp_path / "m.gguf", config, weights)
    with open_model(folder, max_model_len=LONG) as hf, open_model(gguf, max_model_len=LONG) as gg:
        for model in (hf, gg):
            found = all_values(model)
            assert sorted(found) == sorted(expected)
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array, err_msg=f"{model.format} {name}")
            matrices = {name: shape for name, _, shape in model.matrix_shapes()}
            assert matrices == {name: array.shape for name, array in expected.items() if array.ndim == 2}
        for mine, theirs in zip(hf.config.rotaries, gg.config.rotaries, strict=True):
            np.testing.assert_allclose(mine.inv_freq, theirs.inv_freq, rtol=1e-6)
            assert mine.attention_factor == pytest.approx(theirs.attention_factor, rel=1e-6)
        layers = hf.config.layers if arch == "mistral" else gg.config.layers  # GGUF has no window for this one
        same = replace(
            gg.config,
            name=hf.config.name,
            architecture=hf.config.architecture,
            rotaries=hf.config.rotaries,
            layers=layers,
            norm_eps=hf.config.norm_eps,
        )
        assert same == hf.config
        assert gg.config.norm_eps == pytest.approx(hf.config.norm_eps)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_config_numbers(tmp_path: Path, arch: str) -> None:
    config, weights = make_tiny(arch)
    with open_model(write_hf_folder(tmp_path, config, weights), max_model_len=LONG) as model:
        found = model.config
    width = config.get("head_dim") or 12
    assert found.architecture == {"llama3": "llama", "phi3_longrope": "phi3"}.get(arch, arch)
    assert (found.hidden_size, found.intermediate_size, found.num_layers) == (48, 80, config["num_hidden_layers"])
    assert (found.num_heads, found.num_kv_heads, found.head_dim, found.vocab_size) == (4, 2, width, 330)
    assert found.norm_eps == 1e-5
    assert found.attention_scale == pytest.approx(width**-0.5)
    assert found.tied_head == config["tie_word_embeddings"]
    assert found.max_position == 512
    gemma = arch.startswith("gemma")
    assert found.activation == ("gelu_tanh" if gemma else "silu")
    assert found.embedding_scale == pytest.approx(48**0.5 if gemma else 1.0)
    caps = (5.0, 3.0) if arch == "gemma2" else (0.0, 0.0)
    assert (found.attention_softcap, found.logit_softcap) == caps
    windows = [layer.window for layer in found.layers]
    rotaries = [layer.rotary for layer in found.layers]
    if arch == "mistral":
        assert windows == [19] * 3
    elif arch == "gemma2":
        assert windows == [19, 0, 19, 0]
    elif arch == "gemma3":
        assert windows == [19] * 5 + [0, 19]
        assert rotaries == [1] * 5 + [0, 1]
    else:
        assert windows == [0] * config["num_hidden_layers"]
    if arch != "gemma3":
        assert rotaries == [0] * config["num_hidden_layers"]
    inv_freq, factor = scaled_frequencies(config["rope_theta"], width, _scaling(config), 512, LONG)
    np.testing.assert_allclose(found.rotaries[0].inv_freq, inv_freq, rtol=1e-12)
    assert found.rotaries[0].attention_factor == pytest.approx(factor)
    if arch == "gemma3":
        np.testing.assert_allclose(found.rotaries[1].inv_freq, scaled_frequencies(1000.0, width, None, 512, 1)[0])


def _scaling(config: dict[str, Any]) -> dict[str, Any] | None:
    scaling = config.get("rope_scaling")
    original = config.get("original_max_position_embeddings")
    return {"original_max_position_embeddings": original, **scaling} if scaling else None


@pytest.mark.parametrize("container", ["hf", "gguf"])
def test_longrope_factors_follow_the_length_that_is_wanted(tmp_path: Path, container: str) -> None:
    config, weights = make_tiny("phi3_longrope")
    if container == "hf":
        path = write_hf_folder(tmp_path, config, weights)
    else:
        path = write_model_gguf(tmp_path / "m.gguf", config, weights)
    plain = scaled_frequencies(config["rope_theta"], 12, None, 512, 1)[0]
    for wanted, key, positions in ((None, "short_factor", 64), (64, "short_factor", 64), (65, "long_factor", 512)):
        with open_model(path, max_model_len=wanted) as model:
            found = np.asarray(model.config.rotaries[0].inv_freq)
            np.testing.assert_allclose(found, plain / config["rope_scaling"][key], rtol=1e-6)
            assert model.config.max_position == positions


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_vectors_of_half_precision_come_as_f32(tmp_path: Path, dtype: str) -> None:
    config, weights = make_tiny("gemma2")
    with open_model(write_hf_folder(tmp_path, config, weights, dtype=dtype)) as model:
        assert set(model.weight_types) == {dtype}
        found = {weight.name: weight for weight in model.weights()}
        for weight in found.values():
            assert weight.type == (dtype if len(weight.shape) == 2 else "F32")
        norm = weights["model.norm.weight"] + 1
        np.testing.assert_allclose(values(found["final_norm"]), norm, atol=0.01)


def test_unaligned_safetensors_are_handed_out_aligned(tmp_path: Path) -> None:
    config, weights = make_tiny("llama")
    folder = write_hf_folder(tmp_path, config, weights)
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little") + 1  # one more blank at the end of the header moves all data by one
    file.write_bytes(length.to_bytes(8, "little") + raw[8 : 7 + length] + b" " + raw[7 + length :])
    with open_model(folder) as model:
        for weight in model.weights():
            assert weight.data.ctypes.data % 4 == 0
            np.testing.assert_array_equal(values(weight).size, np.prod(weight.shape))


@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (14, 2), (28, 4), (32, 8), (8, 1), (12, 12), (3, 1)])
@pytest.mark.parametrize("arch", ["llama", "phi3"])
def test_grouped_heads_keep_their_rows(tmp_path: Path, arch: str, heads: int, kv_heads: int) -> None:
    config, weights = make_tiny(
        arch, num_attention_heads=heads, num_key_value_heads=kv_heads, hidden_size=heads * 4, num_hidden_layers=1
    )
    expected = expected_values(arch, config, weights)
    with open_model(write_model_gguf(tmp_path / "m.gguf", config, weights)) as model:
        found = all_values(model)
    for name in ("q", "k", "v", "o"):
        np.testing.assert_array_equal(found[f"layers.0.{name}"], expected[f"layers.0.{name}"])
