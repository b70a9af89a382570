"""Forms on real models and their vocabularies: texts have them, and drafts change nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lpx.engine.llm import LLM
from lpx.engine.sampling_params import SamplingParams

pytestmark = pytest.mark.model

PROMPTS = ["A person as JSON: ", "请用 JSON 描述一座城市：", "def person():\n    return "]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 1, "maxItems": 3},
        "kind": {"enum": ["person", "猫", "thing"]},
    },
    "required": ["name", "age", "tags", "kind"],
}
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.2, "seed": 5},
    {"temperature": 0.8, "seed": 9, "top_k": 30, "top_p": 0.9, "repetition_penalty": 1.1},
]


def is_of_schema(text: str) -> bool:
    value = json.loads(text)
    return (
        list(value) == ["name", "age", "tags", "kind"]
        and len(value["name"]) <= 12
        and 0 <= value["age"] <= 130
        and 1 <= len(value["tags"]) <= 3
        and value["kind"] in SCHEMA["properties"]["kind"]["enum"]  # type: ignore[index]
    )


def test_texts_have_their_form_and_drafts_change_nothing(real_model_path: Path) -> None:
    config = {"method": "suffix", "num_speculative_tokens": 6, "suffix_decoding_min_token_prob": 0}
    with LLM(
        real_model_path, max_model_len=512, kv_cache_memory=128 << 20, threads=2, speculative_config=config
    ) as llm:
        for others in PARAMS:
            outcomes = []
            for mode, logprobs in (("off", None), ("auto", None), ("auto", 1)):
                params = SamplingParams(
                    max_tokens=150,
                    structured_outputs={"json": SCHEMA},  # type: ignore[arg-type]
                    speculative=mode,  # type: ignore[arg-type]
                    logprobs=logprobs,
                    **others,
                )
                outputs = [output.outputs[0] for output in llm.generate(PROMPTS, params, use_tqdm=False)]
                outcomes.append([(output.text, output.token_ids, output.finish_reason) for output in outputs])
            assert outcomes[0] == outcomes[1] == outcomes[2]
            for text, _, reason in outcomes[0]:
                assert reason == "stop"
                assert is_of_schema(text), text
        assert llm.stats().drafts.accepted > 0


def test_expressions_choices_and_grammars(smollm2_path: Path) -> None:
    forms: list[tuple[dict[str, Any], str]] = [
        ({"regex": r"[A-Z][a-z]{2,8}, \d{4}-\d{2}-\d{2}"}, r"[A-Z][a-z]{2,8}, \d{4}-\d{2}-\d{2}"),
        ({"choice": ["positive", "negative", "中性"]}, "positive|negative|中性"),
        ({"grammar": 'root ::= ("- " [a-z ]{3,12} "\\n"){2}'}, "(- [a-z ]{3,12}\n){2}"),
    ]
    with LLM(smollm2_path, max_model_len=256, kv_cache_memory=64 << 20, threads=2) as llm:
        for form, expression in forms:
            params = [
                SamplingParams(max_tokens=60, structured_outputs=form, seed=seed)  # type: ignore[arg-type]
                for seed in range(len(PROMPTS))
            ]
            for output in llm.generate(PROMPTS, params, use_tqdm=False):
                assert re.fullmatch(expression, output.outputs[0].text), output.outputs[0].text
