"""One quantization from beginning to end, on a tiny model and real files."""

import dataclasses
import os
from types import SimpleNamespace

import numpy as np
import pytest

from lpx.errors import ConfigError, DiskSpaceError, ModelFileError, UnsupportedModelError
from lpx.model.files import open_model
from lpx.model.gguf import GgufFile
from lpx.model.tensor_types import TYPES
from lpx.quantize.job import QuantizeSettings, quantize
from lpx.quantize.plan import SCHEMES, plan_types
from lpx.quantize.source import SourceTensor, open_source
from tests.reference.ggml_blocks import dequantize
from tests.reference.gguf_variants import write_variant
from tests.reference.model_files import write_hf_folder, write_model_gguf
from tests.reference.tiny_models import ARCHITECTURES, make_tiny

MOST_KL = {"f16": 0.001, "q8": 0.01, "q6": 0.03, "q5": 0.1, "q4": 0.5, "mixed": 0.5}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_makes_a_file_that_answers_nearly_the_same(sources, tmp_path, scheme):
    report = quantize(sources.settings(tmp_path / "out.gguf", scheme=scheme))
    assert report.exit_code == 0
    assert report.evaluation.divergence.kl < MOST_KL[scheme]
    assert not report.evaluation.weights.faulty
    with GgufFile(report.path) as made:
        assert {name: tensor.type.name for name, tensor in made.tensors.items()} == {
            item.tensor.name: item.type for item in report.plan
        }
    assert os.listdir(tmp_path) == ["out.gguf"]


def test_search_and_calibration_beat_rounding_at_the_same_size(sources, tmp_path):
    rng = np.random.default_rng(6)
    # Inputs of very different sizes, as trained models have them.
    uneven = {
        name: weight * np.exp(rng.standard_normal(weight.shape)).astype(np.float32) if "layernorm" in name else weight
        for name, weight in sources.weights.items()
    }
    source = write_model_gguf(tmp_path / "uneven.gguf", sources.config, uneven)
    plain, fitted = (
        quantize(sources.settings(tmp_path / f"{search}.gguf", source=source, scheme="q4", search=search))
        for search in (False, True)
    )
    assert [item.nbytes for item in fitted.plan] == [item.nbytes for item in plain.plan]
    assert fitted.evaluation.divergence.kl < 0.9 * plain.evaluation.divergence.kl


def test_weights_of_the_file_are_those_of_the_source(sources, tmp_path):
    report = quantize(sources.settings(tmp_path / "out.gguf", scheme="q8", check=False))
    with GgufFile(sources.gguf) as source, GgufFile(report.path) as made:
        for name, tensor in source.tensors.items():
            values = dequantize(tensor.type.name, tensor.view(), tensor.shape)
            written = made.tensors[name]
            found = dequantize(written.type.name, written.view(), written.shape)
            assert np.abs(found - values).max() <= np.abs(values).max() / 100, name


@pytest.mark.parametrize("arch", [name for name in ARCHITECTURES if name != "phi3_longrope"])
def test_folder_becomes_the_same_model(arch, tmp_path):
    """Names, row orders, rotary keys, windows, tokenizer: the converted folder gives the folder's own distributions."""
    config, weights = make_tiny(arch, 5)
    folder = write_hf_folder(tmp_path / "folder", config, weights)
    with open_source(folder) as source:
        report = quantize(
            dataclasses.replace(_settings(folder, tmp_path / "out.gguf"), scheme="f16", windows=1, calibrate=False)
        )
        assert report.evaluation.divergence.kl < 2e-4
        with open_model(report.path) as made:
            assert made.eos_token_ids == source.files.eos_token_ids
            assert made.chat_template == source.files.chat_template
            assert [layer.window for layer in made.config.layers] == [
                layer.window for layer in source.files.config.layers
            ]
            assert made.config.max_position == source.files.config.max_position


def test_folder_that_gguf_cannot_tell_is_refused(tmp_path):
    folder = write_hf_folder(tmp_path / "folder", *make_tiny("phi3_longrope", 5))
    with pytest.raises(UnsupportedModelError, match="cannot be told in GGUF"):
        quantize(dataclasses.replace(_settings(folder, tmp_path / "out.gguf"), scheme="q8", calibrate=False))
    assert os.listdir(tmp_path) == ["folder"]


def _settings(source, target):
    return QuantizeSettings(source=source, target=target, threads=1)


def test_metadata_of_the_source_is_kept_and_its_own_is_added(sources, tmp_path):
    source = write_model_gguf(
        tmp_path / "named.gguf", sources.config, sources.weights,
        metadata={"general.tags": ["小", "tiny"], "quantize.imatrix.file": "old", "general.licence": "none"},
    )  # fmt: skip
    report = quantize(sources.settings(tmp_path / "out.gguf", source=source, scheme="mixed", check=False))
    with GgufFile(source) as before, GgufFile(report.path) as after:
        metadata = after.metadata
        own = {key for key in metadata if key.startswith("quantize.imatrix.")}
        assert own == {f"quantize.imatrix.{key}" for key in ("file", "dataset", "entries_count", "chunks_count")}
        assert metadata["general.file_type"] == 15
        assert metadata["general.quantization_version"] == 2
        assert metadata["quantize.imatrix.dataset"] == "text.txt"
        assert metadata["quantize.imatrix.entries_count"] == 1 + 7 * sources.config["num_hidden_layers"]
        for key, value in before.metadata.items():
            if key not in ("general.file_type", "quantize.imatrix.file"):
                assert np.array_equal(metadata[key], value), key


def test_rows_without_whole_blocks_fall_back_as_llama_cpp_does():
    def types(scheme, columns):
        tensor = SourceTensor("blk.1.attn_q.weight", (8, columns), "F16", lambda start, stop: None)
        (item,) = plan_types([tensor], scheme, 4, tied_head=False)
        return item.type, item.fallback_from

    assert types("q4", 512) == ("Q4_K", None)
    assert types("q4", 576) == ("Q5_0", "Q4_K")
    assert types("q5", 896) == ("Q5_1", "Q5_K")
    assert types("q6", 576) == ("Q8_0", "Q6_K")
    assert types("q8", 576) == ("Q8_0", None)
    assert types("q8", 72) == ("F16", "Q8_0")


def test_mixed_gives_sensitive_tensors_more_bits():
    names = ("attn_v", "ffn_down", "attn_q", "ffn_up")
    tensors = [
        SourceTensor(f"blk.{layer}.{name}.weight", (8, 256), "F16", lambda start, stop: None)
        for layer in range(16)
        for name in names
    ]
    tensors += [
        SourceTensor("token_embd.weight", (8, 256), "F16", lambda start, stop: None),
        SourceTensor("output_norm.weight", (256,), "F32", lambda start, stop: None),
    ]
    plan = {item.tensor.name: item.type for item in plan_types(tensors, "mixed", 16, tied_head=True)}
    higher = [layer for layer in range(16) if plan[f"blk.{layer}.ffn_down.weight"] == "Q6_K"]
    assert higher == [0, 1, 4, 7, 10, 13, 14, 15]
    assert all(plan[f"blk.{layer}.attn_v.weight"] == plan[f"blk.{layer}.ffn_down.weight"] for layer in range(16))
    assert {plan[f"blk.{layer}.{name}.weight"] for layer in range(16) for name in names[2:]} == {"Q4_K"}
    assert plan["token_embd.weight"] == "Q6_K"
    assert plan["output_norm.weight"] == "F32"


def test_failed_bound_keeps_the_file_aside(sources, tmp_path):
    target = tmp_path / "out.gguf"
    report = quantize(sources.settings(target, scheme="q4", bounds=("kl:0.00001", "top1:0.01")))
    assert report.exit_code == 1
    assert [verdict.outcome for verdict in report.verdicts] == ["failed", "passed"]
    assert report.path == tmp_path / "out.gguf.rejected"
    assert os.listdir(tmp_path) == ["out.gguf.rejected"]
    with GgufFile(report.path) as made:
        assert made.tensors


def test_target_that_is_there_is_never_touched(sources, tmp_path):
    target = tmp_path / "out.gguf"
    target.write_bytes(b"mine")
    with pytest.raises(ConfigError, match="is there already"):
        quantize(sources.settings(target))

    def appear(plan):
        target.write_bytes(b"somebody else's")

    target.unlink()
    with pytest.raises(ConfigError, match="has appeared meanwhile"):
        quantize(sources.settings(target, check=False, calibrate=False), planned=appear)
    assert target.read_bytes() == b"somebody else's"
    assert os.listdir(tmp_path) == ["out.gguf"]


def test_full_disk_is_refused_before_work_and_cleaned_up_after(sources, tmp_path, monkeypatch):
    settings = sources.settings(tmp_path / "out.gguf", check=False, calibrate=False)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    planned = []
    with pytest.raises(DiskSpaceError, match="has 0 MB left"):
        quantize(settings, planned=planned.append)
    assert not planned
    monkeypatch.undo()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskSpaceError, match="cannot be written: No space left"):
        quantize(settings)
    assert os.listdir(tmp_path) == []


def test_interrupt_leaves_nothing_behind(sources, tmp_path):
    def interrupt(what, done, total):
        if what.startswith("quantizing") and done >= 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(sources.settings(tmp_path / "out.gguf", check=False, calibrate=False), progress=interrupt)
    assert os.listdir(tmp_path) == []


def test_quantized_source_needs_insisting(sources, tmp_path):
    once = quantize(sources.settings(tmp_path / "once.gguf", scheme="q4", check=False, calibrate=False)).path
    with pytest.raises(ConfigError, match=r"quantized already .*--allow-requantize"):
        quantize(sources.settings(tmp_path / "twice.gguf", source=once))
    again = sources.settings(tmp_path / "twice.gguf", source=once, check=False, calibrate=False, allow_requantize=True)
    assert quantize(again).exit_code == 0


def test_broken_weights_are_named(sources, tmp_path):
    def broken(name, kind, shape, data):
        data = bytearray(data)
        if name == "blk.1.ffn_up.weight":
            data[:4] = np.float32(np.inf).tobytes()
        return kind, data

    source = write_variant(sources.gguf, tmp_path / "broken.gguf", broken)
    with pytest.raises(ModelFileError, match=r"blk\.1\.ffn_up\.weight of the source holds values that are not finite"):
        quantize(sources.settings(tmp_path / "out.gguf", source=source, check=False, calibrate=False))
    assert os.listdir(tmp_path) == ["broken.gguf"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"scheme": "q3"}, "there is no scheme 'q3'"),
        ({"bounds": ("kl",)}, "the bound 'kl' is not known"),
        ({"windows": 0}, "windows must be at least 1, not 0"),
        ({"threads": 0}, "threads must be a whole number of at least 1"),
    ],
)
def test_wrong_values_are_refused(sources, tmp_path, more, message):
    with pytest.raises(ConfigError, match=message):
        quantize(sources.settings(tmp_path / "out.gguf", **more))


@pytest.mark.parametrize("name", ["out.bin", "nowhere/out.gguf"])
def test_wrong_targets_are_refused(sources, tmp_path, name):
    with pytest.raises(ConfigError, match=r"must end in \.gguf|there is no folder"):
        quantize(sources.settings(tmp_path / name))


def test_types_can_be_given_tensor_by_tensor(sources, tmp_path):
    with GgufFile(sources.gguf) as source:
        types = {name: "Q5_1" if len(tensor.shape) == 2 else "F32" for name, tensor in source.tensors.items()}
    report = quantize(sources.settings(tmp_path / "out.gguf", types=types, check=False))
    assert {item.type for item in report.plan} == {"Q5_1", "F32"}
    assert report.nbytes > sum(item.nbytes for item in report.plan)
    assert all(item.type in TYPES for item in report.plan)
