"""Converted models: the same decoder, the same tokens, and answers as near as the type allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lpx import LLM, SamplingParams
from lpx.errors import ConfigError, UnsupportedModelError
from lpx.model.files import open_model
from lpx.model.tokenizer import load_tokenizer
from lpx.store.convert import convert_model
from lpx.store.folder import list_models
from lpx.store.verify import verify
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import ARCHITECTURES, make_tiny

TEXTS = ["the and of hello 123!", "你好，世界\n\n  x", "", "  I'll DON'T\t42 <|end|>"]


def scores(model: Path) -> np.ndarray:
    """Log-probabilities of a prompt's tokens."""
    with LLM(
        str(model), max_model_len=64, threads=1, kv_cache_memory=8 << 20, speculative_config={"method": "off"}
    ) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, ignore_eos=True)
        (output,) = llm.generate([list(range(3, 40))], params)
    found = [next(iter(each.values())) for each in output.prompt_logprobs if each is not None]
    return np.array([getattr(each, "logprob", each) for each in found])


@pytest.mark.parametrize("arch", [arch for arch in ARCHITECTURES if arch != "phi3_longrope"])
def test_every_family_is_the_same_model_afterwards(tmp_path: Path, arch: str) -> None:
    source = write_hf_folder(tmp_path / "tiny", *make_tiny(arch, 3))
    model = convert_model(str(source), tmp_path / "models", "f32", name="converted")
    assert verify(model).sound
    assert model.derived_from == f"{source}, converted to f32"
    with open_model(source) as before, open_model(model.path) as after:
        one, other = load_tokenizer(before), load_tokenizer(after)
        assert [one.encode(text) for text in TEXTS] == [other.encode(text) for text in TEXTS]
        assert before.eos_token_ids <= after.eos_token_ids
        assert before.chat_template == after.chat_template
    np.testing.assert_allclose(scores(source), scores(model.path), atol=2e-3)


@pytest.mark.parametrize(("target", "tolerance"), [("f16", 0.02), ("bf16", 0.2), ("q8", 0.3)])
def test_smaller_types_are_near(tmp_path: Path, target: str, tolerance: float) -> None:
    source = write_hf_folder(tmp_path / "tiny", *make_tiny("llama", 3, hidden_size=64, intermediate_size=96))
    model = convert_model(str(source), tmp_path / "models", target)
    assert model.name == f"tiny-{target}"
    np.testing.assert_allclose(scores(source), scores(model.path), atol=tolerance)
    with open_model(model.path) as files:
        kind = {"f16": "F16", "bf16": "BF16", "q8": "Q8_0"}[target]
        assert files.weight_types[kind] > 0.9 * sum(files.weight_types.values())


def test_what_cannot_be_told_in_gguf_is_refused(tmp_path: Path) -> None:
    source = write_hf_folder(tmp_path / "tiny", *make_tiny("phi3_longrope", 3))
    with pytest.raises(UnsupportedModelError, match="would differ"):
        convert_model(str(source), tmp_path / "models", "f16")
    with pytest.raises(ConfigError, match="bf16"):
        convert_model(str(source), tmp_path / "models", "q9")
    assert list_models(tmp_path / "models") == []
