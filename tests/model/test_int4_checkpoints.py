"""AWQ and GPTQ checkpoints: every weight as an independent decoder has it, to the last bit; refusals by name."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lpx import _native
from lpx.errors import ModelFileError, UnsupportedModelError
from lpx.model.files import open_model
from lpx.options import EngineOptions
from lpx.quality import ScoredModel
from tests.reference.int4_checkpoints import as_checkpoint
from tests.reference.model_files import write_hf_folder
from tests.reference.numpy_model import ReferenceModel, log_softmax
from tests.reference.tiny_models import make_tiny, random_prompt

LAYER = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj"}
LAYER |= {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}


def make(folder, method, group=32, arch="llama", **more):
    config, weights = make_tiny(arch, 2, hidden_size=128, intermediate_size=256)
    write_hf_folder(folder, config, weights)
    return config, as_checkpoint(folder, method, weights, group, **more)


def edit_config(folder, **section):
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= section
    (folder / "config.json").write_text(json.dumps(config))


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("method", ["awq", "gptq", "gptq_v2"])
def test_weights_are_those_of_the_checkpoint(method, group, symmetric, tmp_path):
    v2 = method == "gptq_v2"
    _, expected = make(tmp_path, method.removesuffix("_v2"), group, symmetric=symmetric, v2=v2)
    with open_model(tmp_path) as files:
        found = {weight.name: weight for weight in files.weights()}
        assert set(files.weight_types) == {"F16", "Q4_0" if symmetric else "Q5_0"}
        for name, part in LAYER.items():
            weight = found[f"layers.1.{name}"]
            values = _native.decode_rows(weight.type, weight.shape[1], weight.data)
            assert np.array_equal(values, expected[f"model.layers.1.{part}.weight"]), name


@pytest.mark.parametrize(("method", "arch"), [("awq", "qwen2"), ("gptq", "llama")])
def test_answers_are_those_of_the_dequantized_weights(method, arch, tmp_path):
    config, weights = make(tmp_path, method, arch=arch)
    ids = random_prompt(config, 48)
    expected = log_softmax(ReferenceModel(config, weights).logits(ids))
    with ScoredModel(EngineOptions(model=str(tmp_path), threads=1), 64, dequantize=True) as model:
        model.load()
        found = log_softmax(np.concatenate(list(model.logits(ids))).astype(np.float64))
    assert (np.exp(expected) * (expected - found)).sum(axis=1).mean() < 5e-4  # float16 of the products
    with ScoredModel(EngineOptions(model=str(tmp_path), threads=1), 64) as model:  # with int8 activations
        model.load()
        found = log_softmax(np.concatenate(list(model.logits(ids))).astype(np.float64))
    assert (np.exp(expected) * (expected - found)).sum(axis=1).mean() < 0.05


def test_trivial_order_and_zero_biases_are_no_obstacle(tmp_path):
    make(tmp_path, "gptq")
    edit_config(tmp_path, desc_act=True)

    def change(tensors):
        tensors["model.layers.0.mlp.down_proj.bias"] = np.zeros(128, np.float16)
        del tensors["model.layers.0.mlp.up_proj.g_idx"]

    edit_tensors(tmp_path, change)
    with open_model(tmp_path) as files:
        assert files.weight_types


def test_columns_in_another_order_are_refused(tmp_path):
    make(tmp_path, "gptq")

    def change(tensors):
        tensors["model.layers.1.mlp.up_proj.g_idx"] = tensors["model.layers.1.mlp.up_proj.g_idx"][::-1].copy()

    edit_tensors(tmp_path, change)
    with pytest.raises(UnsupportedModelError, match=r"'model\.layers\.1\.mlp\.up_proj' has its columns .*desc_act"):
        open_model(tmp_path)


@pytest.mark.parametrize(
    ("method", "section", "message"),
    [
        ("gptq", {"bits": 8}, "quantized by 'gptq' with 8 bits"),
        ("gptq", {"group_size": -1}, "in groups of -1"),
        ("awq", {"group_size": 16}, "in groups of 16"),
        ("awq", {"version": "gemv"}, "layout 'gemv'"),
        ("gptq", {"checkpoint_format": "marlin"}, "layout 'marlin'"),
        ("gptq", {"quant_method": "bitsandbytes"}, "quantized by 'bitsandbytes'"),
    ],
)
def test_other_formats_are_refused_by_name(method, section, message, tmp_path):
    make(tmp_path, method)
    edit_config(tmp_path, **section)
    with pytest.raises(UnsupportedModelError, match=message):
        open_model(tmp_path)


def _without(part):
    return lambda tensors: tensors.pop(f"model.layers.0.self_attn.q_proj.{part}")


def _with(part, change):
    def edit(tensors):
        name = f"model.layers.0.self_attn.q_proj.{part}"
        tensors[name] = np.ascontiguousarray(change(tensors[name]))

    return edit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("scales"), "q_proj' has no scales"),
        (_without("qzeros"), "q_proj' has no qzeros"),
        (_without("qweight"), "belongs to no quantized matrix"),
        (_with("scales", lambda values: values[:1]), "scales of the shape"),
        (_with("qzeros", lambda values: values[:, :1]), "qzeros of the shape"),
        (_with("qweight", lambda values: values[:2]), "no whole words and groups"),
        (_with("scales", lambda values: values * np.float16(np.inf)), "scales that are not finite"),
        (_with("scales", lambda values: values.astype(np.float32) * np.float32(1.0001)), "float16 cannot hold"),
        (_with("qweight", lambda values: values.view(np.float32)), "qweight of type F32"),
    ],
)
def test_broken_checkpoints_are_named(change, message, tmp_path):
    make(tmp_path, "gptq")
    edit_tensors(tmp_path, change)
    with pytest.raises(ModelFileError, match=message):
        open_model(tmp_path)


def test_config_without_quantized_weights_is_refused(tmp_path):
    config, weights = make_tiny("llama", 2)
    write_hf_folder(tmp_path, config | {"quantization_config": {"quant_method": "awq", "group_size": 128}}, weights)
    with pytest.raises(ModelFileError, match="none is"):
        open_model(tmp_path)


def test_they_are_not_quantized_again(tmp_path):
    from lpx.quantize.source import open_source

    make(tmp_path, "awq")
    with pytest.raises(UnsupportedModelError, match="quantized to 4 bits already"):
        open_source(tmp_path, allow_requantize=True)
