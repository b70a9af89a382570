"""What a name means: files, folders, configs, names of the store, known models, numbers of parameters."""

from __future__ import annotations

import json

import pytest

from lpx import store
from lpx.bench.fit.subject import known_names, resolve_subject
from lpx.errors import ConfigError, LpxError
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny

# As published with the models; the shapes of the table must come to them.
PARAMETERS = {
    "SmolLM2-135M": 134.5e6,
    "SmolLM2-360M": 361.8e6,
    "SmolLM2-1.7B": 1.711e9,
    "Qwen2.5-0.5B": 494.0e6,
    "Qwen2.5-1.5B": 1.544e9,
    "Qwen2.5-3B": 3.086e9,
    "Qwen2.5-7B": 7.616e9,
    "Qwen3-0.6B": 596.0e6,
    "Qwen3-1.7B": 1.721e9,
    "Qwen3-4B": 4.022e9,
    "Qwen3-8B": 8.191e9,
    "Llama-3.2-1B": 1.236e9,
    "Llama-3.2-3B": 3.213e9,
    "Llama-3.1-8B": 8.030e9,
    "Llama-2-7B": 6.738e9,
    "Mistral-7B-v0.3": 7.248e9,
    "Phi-3-mini": 3.821e9,
    "gemma-2-2b": 2.614e9,
    "gemma-3-270m": 268.1e6,
    "gemma-3-1b": 999.9e6,
    "gemma-3-4b": 3.880e9,
}


@pytest.fixture
def resolve(tmp_path):
    return lambda name: resolve_subject(str(name), tmp_path / "models")


def test_known_shapes_come_to_the_published_numbers_of_parameters(resolve):
    assert set(known_names()) == set(PARAMETERS)
    for name, published in PARAMETERS.items():
        model = resolve(name)
        assert model.origin == "known"
        assert model.parameters == pytest.approx(published, rel=1e-3), name


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B"),
        ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "Qwen2.5-0.5B"),
        ("meta-llama/Llama-3.2-1B", "Llama-3.2-1B"),
        ("google/gemma-3-1b-it", "gemma-3-1b"),
        ("smollm2 360m", "SmolLM2-360M"),
    ],
)
def test_names_of_one_shape_lead_to_it(resolve, spelled, name):
    assert resolve(spelled).name == name


def test_a_folder_a_config_and_a_folder_without_weights_are_one_model(resolve, tmp_path):
    config, weights = make_tiny("qwen3", seed=1)
    folder = write_hf_folder(tmp_path / "tiny", config, weights)
    whole = resolve(folder)
    by_config = resolve(folder / "config.json")
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))
    without = resolve(bare)
    assert (whole.origin, by_config.origin, without.origin) == ("file", "config", "config")
    assert whole.parameters == by_config.parameters == without.parameters
    assert "awq" in without.notes[0]
    assert {kind for _, kind, _ in whole.matrices} == {"F32"}


def test_a_model_of_the_store_is_found_by_name(tmp_path, smollm2_path, models_folder):
    model = resolve_subject(store.DEFAULT_MODEL, models_folder)
    assert (model.name, model.origin, model.path) == (store.DEFAULT_MODEL, "file", smollm2_path)
    assert resolve_subject(store.DEFAULT_MODEL, tmp_path).notes == ("98 MB as lpx models pull smollm2-135m brings it",)


def test_a_number_of_parameters_borrows_a_shape_and_says_so(resolve):
    model = resolve("7.1B")
    assert (model.origin, model.parameters) == ("count", 7.1e9)
    assert "Mistral-7B-v0.3" in model.notes[0]
    assert resolve("500m").parameters == 5e8
    assert len(resolve("70B").notes) == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("7Q", "no known model"),
        ("", "is empty"),
        ("qwen2.5-7c", "near are Qwen2.5-7B"),
        ("通义千问", "no known model"),
        ("5k", "from 1M to 1T"),
        ("99999T", "from 1M to 1T"),
        ("../../no/such/model", "no known model"),
    ],
)
def test_what_is_no_model_is_refused(resolve, name, said):
    with pytest.raises(ConfigError, match=said):
        resolve(name)


def test_broken_configs_are_refused_by_name(resolve, tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{}")
    with pytest.raises(LpxError, match="model_type is missing"):
        resolve(path)
    path.write_text("[1]")
    with pytest.raises(LpxError, match=r"config\.json"):
        resolve(path)
