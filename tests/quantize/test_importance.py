"""Importance comes from the same arithmetic as the model's answers."""

import numpy as np
import pytest

from lpx.errors import InvalidRequestError
from lpx.model.files import open_model
from lpx.model.tokenizer import load_tokenizer
from lpx.quality import Text, bundled_texts
from lpx.quantize.float_decoder import decode, run_layers
from lpx.quantize.importance import calibration_texts, measure_importance
from tests.reference.model_files import write_hf_folder
from tests.reference.numpy_model import ReferenceModel
from tests.reference.tiny_models import ARCHITECTURES, make_tiny, random_prompt


@pytest.mark.parametrize("arch", [name for name in ARCHITECTURES if name != "phi3_longrope"])
def test_inputs_of_the_head_give_the_reference_logits(arch, tmp_path):
    config, weights = make_tiny(arch, 4)
    ids = random_prompt(config, 40)
    seen = {}
    with open_model(write_hf_folder(tmp_path / "model", config, weights)) as files:
        tensors = {weight.name: weight for weight in files.weights()}
        # A second text beside it: texts do not see each other.
        run_layers(files.config, tensors, [ids, ids[:7]], lambda n, x: seen.setdefault(n, x), threads=2)
        logits = seen["head"] @ decode(tensors.get("head", tensors["embedding"])).T
        if cap := files.config.logit_softcap:
            logits = cap * np.tanh(logits / cap)
    expected = ReferenceModel(config, weights).logits(ids)
    np.testing.assert_allclose(logits, expected, atol=2e-4 * np.abs(expected).max())


def test_mean_squares_of_every_matrix(sources):
    with open_model(sources.gguf) as files:
        tokenizer = load_tokenizer(files)
        found = measure_importance(files, tokenizer, [Text("sea", "The sea is calm. 海很平静。" * 4)], threads=1)
        names = {weight.name for weight in files.weights() if len(weight.shape) == 2} - {"embedding"}
        assert set(found.columns) == names
        assert found.of("embedding") is None  # this model has a head of its own
        for weight in files.weights():
            if weight.name in names:
                columns = found.of(weight.name)
                assert columns.shape == weight.shape[1:]
                assert (columns > 0).all()
    assert found.of("layers.0.k") is found.of("layers.0.q")
    assert found.of("layers.1.up") is found.of("layers.1.gate")
    assert found.tokens > 20


def test_calibration_never_sees_what_the_gate_compares_on():
    compared = {line.strip() for text in bundled_texts() for line in text.content.splitlines() if len(line) > 20}
    seen = {line.strip() for text in calibration_texts(None) for line in text.content.splitlines()}
    assert not compared & seen


def test_calibration_file_is_named_when_it_cannot_be_used(tmp_path):
    path = tmp_path / "校准.txt"
    with pytest.raises(InvalidRequestError, match=r"校准\.txt cannot be read"):
        calibration_texts(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidRequestError, match="not valid UTF-8"):
        calibration_texts(path)
