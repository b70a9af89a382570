"""Drafts on a real model: texts to the bit, and a draft model that is the model itself is always right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lpx.engine.llm import LLM
from lpx.engine.outputs import RequestOutput
from lpx.engine.sampling_params import SamplingParams
from lpx.errors import ConfigError
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny

pytestmark = pytest.mark.model

CODE = "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return "
QUESTIONS = [
    "Repeat this three times: the quick brown fox jumps over the lazy dog.",
    f"Rename the function area to surface and give the whole code again.\n\n{CODE}width * height * depth\n",
    "请把下面的句子重复两遍：春眠不觉晓，处处闻啼鸟。",
    "Write a short poem about rain.",
]
PARAMS = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 11, "top_p": 0.95},
    {"temperature": 0.6, "seed": 3, "top_k": 20, "presence_penalty": 0.5, "repetition_penalty": 1.1},
]


def load(path: Path, config: dict[str, Any]) -> LLM:
    return LLM(path, max_model_len=512, kv_cache_memory=128 << 20, threads=2, speculative_config=config)


def ask(llm: LLM, params: dict[str, Any], mode: str) -> list[RequestOutput]:
    return llm.generate(
        QUESTIONS,
        SamplingParams(max_tokens=32, logprobs=2, speculative=mode, **params),  # type: ignore[arg-type]
        use_tqdm=False,
    )


@pytest.mark.parametrize(
    "config",
    [
        {"method": "auto"},
        {"method": "suffix", "num_speculative_tokens": 8, "suffix_decoding_min_token_prob": 0},
        {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1},
    ],
    ids=lambda config: config["method"],
)
def test_drafts_change_nothing_but_the_speed(real_model_path: Path, config: dict[str, Any]) -> None:
    with load(real_model_path, config) as llm:
        for params in PARAMS:
            plain, drafted = ask(llm, params, "off"), ask(llm, params, "auto")
            for one, other in zip(plain, drafted, strict=True):
                assert one.outputs == other.outputs
        counts = llm.stats().drafts
        assert config["method"] == "auto" or 0 < counts.accepted < counts.drafted
        assert all(output.timings is not None and not output.timings.drafted_tokens for output in plain)


def test_a_model_that_drafts_for_itself_is_always_right(smollm2_path: Path) -> None:
    config = {"method": "draft_model", "model": str(smollm2_path), "num_speculative_tokens": 4}
    with load(smollm2_path, config) as llm:
        for params in PARAMS[:2]:
            plain, drafted = ask(llm, params, "off"), ask(llm, params, "auto")
            assert [output.outputs for output in plain] == [output.outputs for output in drafted]
        counts = llm.stats().drafts
        assert counts.drafted > 100
        assert counts.accepted == counts.drafted  # it draws with the same seeds: right at every temperature
        assert llm.info.speculation == "draft_model"


def test_a_draft_model_of_another_vocabulary_is_refused(smollm2_path: Path, tmp_path: Path) -> None:
    config, weights = make_tiny("llama", num_hidden_layers=1)
    other = write_hf_folder(tmp_path, config, weights)
    with pytest.raises(ConfigError, match="another vocabulary: id 0 is"):
        load(smollm2_path, {"method": "draft_model", "model": str(other)})
