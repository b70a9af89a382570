"""Finding and opening models: names and paths, missing and unexpected tensors, ends of text, templates, split files."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpx.errors import ModelFileError, ModelNotFoundError, TokenizerError, UnsupportedModelError
from lpx.model.files import open_model, resolve_model
from tests.reference import tiny_tokenizer
from tests.reference.gguf_writer import Typed, write_gguf
from tests.reference.model_files import gguf_metadata, gguf_name, write_hf_folder, write_model_gguf
from tests.reference.tiny_models import make_tiny


def error_of(path: Path, kind: type[Exception] = ModelFileError) -> str:
    with pytest.raises(kind) as info:
        open_model(path)
    return str(info.value)


class Canary:
    """Unpickling this leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


# --- where a model is


def test_a_model_is_found_by_path_and_by_name(tmp_path: Path) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1)
    gguf = write_model_gguf(tmp_path / "one.gguf", config, weights)
    folder = write_hf_folder(tmp_path / "hf", config, weights)
    (tmp_path / "held").mkdir()
    held = write_model_gguf(tmp_path / "held" / "inner.gguf", config, weights)
    assert resolve_model(str(gguf)) == gguf
    assert resolve_model(str(folder)) == folder
    assert resolve_model(str(tmp_path / "held")) == held
    for name, path in (("one", gguf), ("one.gguf", gguf), ("hf", folder), ("held", held)):
        assert resolve_model(name, tmp_path) == path


def test_an_unknown_model_is_reported_with_the_places_searched(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError) as info:
        resolve_model("nothing-here", tmp_path)
    for place in ("nothing-here", str(tmp_path / "nothing-here"), str(tmp_path / "nothing-here.gguf")):
        assert place in str(info.value)
    with pytest.raises(ModelNotFoundError):
        open_model(tmp_path / "absent.gguf")


def test_a_name_cannot_leave_the_model_directory(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    config, weights = make_tiny("llama", num_hidden_layers=1)
    write_model_gguf(tmp_path / "secret.gguf", config, weights)
    with pytest.raises(ModelNotFoundError):
        resolve_model("../secret", tmp_path / "models")
    with pytest.raises(ModelNotFoundError):
        resolve_model("", tmp_path / "models")


def test_a_folder_with_several_models_needs_a_choice(tmp_path: Path) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1)
    for name in ("a", "b"):
        write_model_gguf(tmp_path / f"{name}.gguf", config, weights)
    with pytest.raises(ModelNotFoundError, match=r"a\.gguf, b\.gguf"):
        resolve_model(str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFoundError, match="neither"):
        resolve_model(str(tmp_path / "empty"))


# --- pickle (G10)


def test_pickle_files_are_refused_and_never_loaded(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for name in ("pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"):
        file = folder / name
        file.write_bytes(pickle.dumps(Canary(canary)))
        for attempt in (resolve_model, lambda path: open_model(Path(path))):
            with pytest.raises(UnsupportedModelError, match="pickle checkpoints run code"):
                attempt(str(file))
        with pytest.raises(UnsupportedModelError, match=f"{name}.*pickle"):
            resolve_model(str(folder))
        file.unlink()
    assert not canary.exists()


def test_pickle_files_beside_safetensors_are_left_alone(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    config, weights = make_tiny("llama", num_hidden_layers=1)
    folder = write_hf_folder(tmp_path / "model", config, weights)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Canary(canary)))
    with open_model(resolve_model(str(folder))) as model:
        assert len(list(model.weights())) == 12
    assert not canary.exists()


# --- tensors


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"])
def test_every_tensor_is_needed(tmp_path: Path, arch: str) -> None:
    """Whichever tensor is left out, the error names it; but an absent head is the embedding."""
    config, weights = make_tiny(arch, num_hidden_layers=1, tie_word_embeddings=True)
    weights.pop("lm_head.weight", None)
    folder = tmp_path / "hf"
    for name in weights:
        less = {key: value for key, value in weights.items() if key != name}
        if ".bias" not in name or arch == "qwen2":
            assert name in error_of(write_hf_folder(folder, config, less))
            assert gguf_name(config, name) in error_of(write_model_gguf(tmp_path / "m.gguf", config, less))


def test_missing_tensors_are_listed(tmp_path: Path) -> None:
    config, weights = make_tiny("llama")
    less = {name: value for name, value in weights.items() if "layers.2." not in name}
    message = error_of(write_hf_folder(tmp_path, config, less))
    assert "9 tensors are missing" in message
    assert "and 1 more" in message
    assert "model.layers.2.self_attn.q_proj.weight" not in message or message.count("layers.2.") == 8


def test_unexpected_tensors_are_listed(tmp_path: Path) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1)
    extra = weights | {"model.layers.0.self_attn.sinks": np.zeros(4, np.float32), "adapter": np.zeros(4, np.float32)}
    message = error_of(write_hf_folder(tmp_path, config, extra), UnsupportedModelError)
    assert "2 tensors are not known for llama: adapter, model.layers.0.self_attn.sinks" in message


def test_a_layer_more_than_the_config_says_is_unexpected(tmp_path: Path) -> None:
    config, weights = make_tiny("llama")
    config["num_hidden_layers"] = 2
    assert "9 tensors are not known" in error_of(write_hf_folder(tmp_path, config, weights), UnsupportedModelError)


def test_biases_of_some_layers_only_are_refused(tmp_path: Path) -> None:
    config, weights = make_tiny("llama", attention_bias=True)
    del weights["model.layers.1.self_attn.k_proj.bias"]
    message = error_of(write_hf_folder(tmp_path, config, weights))
    assert "1 tensors are missing: model.layers.1.self_attn.k_proj.bias" in message


def test_biases_of_the_feed_forward_part_are_refused_by_name(tmp_path: Path) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1)
    extra = weights | {"model.layers.0.mlp.up_proj.bias": np.zeros(80, np.float32)}
    message = error_of(write_hf_folder(tmp_path, config, extra), UnsupportedModelError)
    assert "'model.layers.0.mlp.up_proj.bias': biases in the feed-forward part" in message


def test_shapes_must_be_those_of_the_config(tmp_path: Path) -> None:
    config, weights = make_tiny("qwen3", num_hidden_layers=1)
    for name, wrong in (
        ("model.layers.0.self_attn.q_proj.weight", (48, 48)),
        ("model.layers.0.self_attn.q_proj.weight", (48, 80)),
        ("model.layers.0.self_attn.q_norm.weight", (48,)),
        ("model.norm.weight", (48, 1)),
        ("model.embed_tokens.weight", (331, 48)),
    ):
        changed = weights | {name: np.ones(wrong, np.float32)}
        message = error_of(write_hf_folder(tmp_path, config, changed))
        assert f"tensor {name!r} has the shape {list(wrong)}" in message


def test_known_leftovers_are_ignored_and_said(tmp_path: Path) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1)
    buffer = "model.layers.0.self_attn.rotary_emb.inv_freq"
    folder = write_hf_folder(tmp_path, config, weights | {buffer: np.ones(6, np.float32)})
    with open_model(folder) as model:
        assert model.ignored_tensors == (buffer,)
        assert buffer not in {weight.name for weight in model.weights()}


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_vision_tower_of_gemma3_is_ignored(tmp_path: Path, prefix: str) -> None:
    text, weights = make_tiny("gemma3", num_hidden_layers=1)
    config = {"model_type": "gemma3", "text_config": text, "vocab_size": text["vocab_size"]}
    renamed = {name.replace("model.", prefix, 1): value for name, value in weights.items()}
    outer = "model." if prefix.startswith("model.") else ""
    tower = [f"{outer}multi_modal_projector.mm_input_projection_weight", f"{outer}vision_tower.encoder.x.weight"]
    renamed |= {name: np.zeros((2, 2), np.float32) for name in tower}
    with open_model(write_hf_folder(tmp_path / "a", config, renamed)) as model:
        assert list(model.ignored_tensors) == tower
        assert len(list(model.weights())) == 2 + 13
        assert model.config.tied_head
    # A text model has no vision tower, and nobody knows what the tensor is for.
    with_tower = weights | {tower[1]: np.zeros((2, 2), np.float32)}
    assert tower[1] in error_of(write_hf_folder(tmp_path / "b", text, with_tower), UnsupportedModelError)
    unknown = renamed | {"audio_tower.x": np.zeros((2, 2), np.float32)}
    assert "audio_tower.x" in error_of(write_hf_folder(tmp_path / "c", config, unknown), UnsupportedModelError)


def test_the_head_follows_the_config_and_the_file(tmp_path: Path) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1)
    headless = {name: value for name, value in weights.items() if name != "lm_head.weight"}

    def has_head(tied: bool | None, tensors: dict[str, Any]) -> bool:
        changed = {key: value for key, value in config.items() if key != "tie_word_embeddings"}
        if tied is not None:
            changed["tie_word_embeddings"] = tied
        with open_model(write_hf_folder(tmp_path / "hf", changed, tensors)) as model:
            names = {weight.name for weight in model.weights()}
            assert model.config.tied_head == ("head" not in names)
            return "head" in names

    assert has_head(False, weights)
    assert has_head(None, weights)
    assert not has_head(None, headless)
    assert not has_head(True, headless)
    assert not has_head(True, weights)  # the config ties it: the copy in the file counts for nothing
    config["tie_word_embeddings"] = False
    assert "'lm_head.weight' is missing" in error_of(write_hf_folder(tmp_path / "hf", config, headless))


def test_vectors_with_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1)
    weights["model.norm.weight"][3] = np.nan
    with (
        open_model(write_hf_folder(tmp_path, config, weights)) as model,
        pytest.raises(ModelFileError, match=r"'model\.norm\.weight'.*not finite"),
    ):
        list(model.weights())


def test_vectors_in_a_block_format_are_refused(tmp_path: Path) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1, hidden_size=64)
    path = write_model_gguf(tmp_path / "m.gguf", config, weights, encoded={"model.norm.weight": ("Q8_0", bytes(68))})
    assert "vector of type Q8_0" in error_of(path, UnsupportedModelError)


def test_types_and_sizes_are_summed_up(tmp_path: Path) -> None:
    config, weights = make_tiny("phi3", num_hidden_layers=2)
    with open_model(write_model_gguf(tmp_path / "m.gguf", config, weights)) as model:
        assert model.weight_types == {"F32": sum(weight.nbytes for weight in weights.values())}
        assert model.file_bytes == (tmp_path / "m.gguf").stat().st_size
        assert (model.format, model.name) == ("gguf", "m")


def test_weights_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    config, weights = make_tiny("phi3", num_hidden_layers=2)
    with open_model(write_model_gguf(tmp_path / "m.gguf", config, weights)) as model:
        places = [w.data.ctypes.data for w in model.weights() if len(w.shape) == 2]
    assert places == sorted(places)


def test_weights_stay_readable_after_closing(tmp_path: Path) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1)
    with open_model(write_model_gguf(tmp_path / "m.gguf", config, weights)) as model:
        first = next(weight for weight in model.weights() if weight.name == "embedding")
    np.testing.assert_array_equal(first.data.view(np.float32), weights["model.embed_tokens.weight"].ravel())
    with pytest.raises(ModelFileError, match="closed"):
        next(model.weights())


def test_a_file_cut_while_open_is_an_error_not_a_crash(tmp_path: Path) -> None:
    config, weights = make_tiny("llama")
    path = write_model_gguf(tmp_path / "m.gguf", config, weights)
    with open_model(path) as model:
        iterator = model.weights()
        next(iterator)
        with path.open("r+b") as file:
            file.truncate(8192)
        with pytest.raises(ModelFileError, match="shrank"):
            list(iterator)


# --- ends of text (M11)


def test_gguf_ends_are_the_union_of_all_that_the_file_names(tmp_path: Path) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1)
    metadata = {
        "tokenizer.ggml.eos_token_id": 258,
        "tokenizer.ggml.eot_token_id": 256,
        "tokenizer.ggml.eom_token_id": 40,
    }
    with open_model(write_model_gguf(tmp_path / "m.gguf", config, weights, metadata=metadata)) as model:
        # 257 is <|end|>, a control token that ends turns wherever it exists.
        assert model.eos_token_ids == {258, 256, 40, 257}
        assert model.tokenizer_source.eos_ids == model.eos_token_ids


def test_hugging_face_ends_are_the_union_of_all_files(tmp_path: Path) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1, eos_token_id=[10, 11])
    folder = write_hf_folder(tmp_path, config, weights, generation_config={"eos_token_id": [11, 12, 13]})
    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer_config["added_tokens_decoder"] = {
        "257": {"content": tokenizer_config["eos_token"]},
        "256": {"content": "x"},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    with open_model(folder) as model:
        assert model.eos_token_ids == {10, 11, 12, 13, 257}
    config["eos_token_id"] = 400
    assert "eos_token_id is 400" in error_of(write_hf_folder(folder, config, weights))


# --- vocabulary (G05)


@pytest.mark.parametrize("key", ["bos", "eos", "unknown", "padding", "eot"])
def test_ids_beyond_the_vocabulary_are_refused(tmp_path: Path, key: str) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1)
    metadata = {f"tokenizer.ggml.{key}_token_id": 340}
    path = write_model_gguf(tmp_path / "m.gguf", config, weights, metadata=metadata)
    assert f"tokenizer.ggml.{key}_token_id is 340, but there are only 330 tokens" in error_of(path, TokenizerError)
    for none in (Typed("INT32", -1), Typed("UINT32", 2**32 - 1)):
        metadata = {f"tokenizer.ggml.{key}_token_id": none}
        open_model(write_model_gguf(tmp_path / "m.gguf", config, weights, metadata=metadata)).close()


def test_equal_tokens_are_refused(tmp_path: Path) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1)
    tokens, _ = tiny_tokenizer.vocabulary(330)
    tokens[300] = tokens[70]
    path = write_model_gguf(tmp_path / "m.gguf", config, weights, metadata={"tokenizer.ggml.tokens": tokens})
    assert f"tokens 70 and 300 are both {tokens[70]!r}" in error_of(path, TokenizerError)


def test_embeddings_may_have_more_rows_than_there_are_tokens_but_not_less(tmp_path: Path) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1)

    def vocabulary(size: int) -> dict[str, Any]:
        tokens, _ = tiny_tokenizer.vocabulary(size)
        return {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * size}

    with open_model(write_model_gguf(tmp_path / "m.gguf", config, weights, metadata=vocabulary(320))) as model:
        assert model.config.vocab_size == 330
        assert model.tokenizer_source.vocab_rows == 330
        assert len(model.tokenizer_source.tokens) == 320
    path = write_model_gguf(tmp_path / "m.gguf", config, weights, metadata=vocabulary(331))
    assert "331 tokens, but the embedding has only 330 rows" in error_of(path, TokenizerError)


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"tokenizer.ggml.token_type": [1] * 329}, "token_type has 329 entries for 330 tokens"),
        ({"tokenizer.ggml.token_type": [9] * 330}, "token_type holds values outside"),
        ({"tokenizer.ggml.token_type": [1.0] * 330}, "token_type must be an array of int32"),
        ({"tokenizer.ggml.scores": [1] * 330}, "scores must be an array of float32"),
        ({"tokenizer.ggml.scores": [float("nan")] * 330}, "not numbers"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokens must be an array of strings"),
        ({"tokenizer.ggml.tokens": []}, "tokens"),
        ({"tokenizer.ggml.add_bos_token": 1}, "add_bos_token"),
        ({"tokenizer.ggml.pre": 1}, "pre"),
        ({"tokenizer.chat_template": 1}, "chat_template"),
    ],
)
def test_broken_tokenizer_keys_are_refused_by_name(tmp_path: Path, metadata: dict[str, Any], named: str) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1)
    assert named in error_of(write_model_gguf(tmp_path / "m.gguf", config, weights, metadata=metadata))


# --- chat templates


def test_templates_come_as_shipped(tmp_path: Path) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1)
    with open_model(write_model_gguf(tmp_path / "m.gguf", config, weights)) as model:
        assert model.chat_template == tiny_tokenizer.CHAT_TEMPLATE
    folder = write_hf_folder(tmp_path / "hf", config, weights)

    def template(**files: Any) -> str | None:
        for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
            (folder / name).unlink(missing_ok=True)
        for name, value in files.items():
            name = name.replace("__", ".")
            (folder / name).write_text(value if name.endswith("jinja") else json.dumps(value))
        with open_model(folder) as model:
            return model.chat_template

    assert template() is None
    assert template(tokenizer_config__json={"chat_template": "A"}) == "A"
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert template(tokenizer_config__json={"chat_template": named}) == "D"
    assert template(chat_template__jinja="J", tokenizer_config__json={"chat_template": "A"}) == "J"
    assert template(chat_template__json={"chat_template": "P"}) == "P"
    with pytest.raises(ModelFileError, match="called 'default'"):
        template(tokenizer_config__json={"chat_template": named[:1]})
    with pytest.raises(ModelFileError, match="chat_template is not a string"):
        template(tokenizer_config__json={"chat_template": 3})


def test_a_folder_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1)
    folder = write_hf_folder(tmp_path, config, weights)
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json is missing" in error_of(folder, TokenizerError)
    (folder / "config.json").write_text('{"model_type": "llama", "model_type": "mistral"}')
    assert "the key 'model_type' twice" in error_of(folder)


# --- split GGUF


def write_split(folder: Path, count: int = 3) -> Path:
    config, weights = make_tiny("llama")
    whole = write_model_gguf(folder / "whole.gguf", config, weights)
    with open_model(whole) as model:
        stored = [(t.name, t.type.name, t.shape, t.view().tobytes()) for t in model._tensors.values()]
    whole.unlink()
    for index in range(count):
        metadata = gguf_metadata(config) if index == 0 else {}
        metadata |= {
            "split.no": Typed("UINT16", index),
            "split.count": Typed("UINT16", count),
            "split.tensors.count": Typed("INT32", len(stored)),
        }
        write_gguf(folder / f"big-{index + 1:05}-of-{count:05}.gguf", metadata, stored[index::count])
    return folder / f"big-00001-of-{count:05}.gguf"


def test_split_files_are_one_model(tmp_path: Path) -> None:
    first = write_split(tmp_path)
    assert resolve_model(str(tmp_path)) == first
    with open_model(first) as model:
        _, weights = make_tiny("llama")
        found = {weight.name: weight.data for weight in model.weights()}
        assert len(found) == len(weights)
        np.testing.assert_array_equal(found["embedding"].view(np.float32), weights["model.embed_tokens.weight"].ravel())
        assert model.file_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())


def test_split_files_must_be_complete_and_named_as_usual(tmp_path: Path) -> None:
    first = write_split(tmp_path)
    second = first.with_name("big-00002-of-00003.gguf")
    third = first.with_name("big-00003-of-00003.gguf")
    assert "open the first" in error_of(second)
    content = second.read_bytes()
    second.write_bytes(third.read_bytes())
    assert "do not call it part 2 of 3" in error_of(first)
    second.unlink()
    assert "big-00002-of-00003.gguf is missing" in error_of(first)
    second.write_bytes(content)
    renamed = first.rename(tmp_path / "other.gguf")
    assert "must be named like" in error_of(renamed)
