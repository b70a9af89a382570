"""What model files say about embeddings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lpx.errors import ModelFileError, UnsupportedModelError
from lpx.model.pooling import Pooling, pooling_from_folder, pooling_from_gguf


@pytest.mark.parametrize(("value", "kind"), [(None, "mean"), (0, "mean"), (1, "mean"), (2, "first"), (3, "last")])
def test_gguf_names_the_pooling(value: int | None, kind: Any) -> None:
    metadata = {"general.architecture": "qwen3"} | ({} if value is None else {"qwen3.pooling_type": value})
    assert pooling_from_gguf(metadata, 7, False, "x") == Pooling(kind)
    assert pooling_from_gguf(metadata, 7, True, "x") == Pooling(kind, (7,))


@pytest.mark.parametrize("value", [4, 5, -1, True, "mean", [1]])
def test_gguf_pooling_that_is_none_of_ours_is_refused(value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="pooling_type"):
        pooling_from_gguf({"general.architecture": "qwen3", "qwen3.pooling_type": value}, None, False, "x")


def write(folder: Path, modes: dict[str, Any], tokenizer: dict[str, Any]) -> Path:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<end>", "type_id": 0}}],
    "special_tokens": {"<end>": {"id": "<end>", "ids": [9], "tokens": ["<end>"]}},
}


@pytest.mark.parametrize(
    "processor", [TEMPLATE, {"type": "Sequence", "processors": [{"type": "ByteLevel"}, TEMPLATE]}], ids=["one", "list"]
)
def test_sentence_transformers_folder_names_the_pooling_and_the_end(tmp_path: Path, processor: dict[str, Any]) -> None:
    modes = {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_lasttoken": True}
    assert pooling_from_folder(write(tmp_path, modes, {"post_processor": processor})) == Pooling("last", (9,))


def test_other_folders_are_averaged(tmp_path: Path) -> None:
    assert pooling_from_folder(tmp_path) == Pooling("mean")
    modes = {"pooling_mode_mean_tokens": True}
    assert pooling_from_folder(write(tmp_path, modes, {"post_processor": None})) == Pooling("mean")


@pytest.mark.parametrize(
    "modes", [{}, {"pooling_mode_max_tokens": True}, {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True}]
)
def test_folder_pooling_that_is_none_of_ours_is_refused(tmp_path: Path, modes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="1_Pooling"):
        pooling_from_folder(write(tmp_path, modes, {}))


def test_a_post_processor_that_makes_no_sense_is_an_error(tmp_path: Path) -> None:
    broken = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<end>"}}]}
    with pytest.raises(ModelFileError, match="post_processor"):
        pooling_from_folder(write(tmp_path, {"pooling_mode_lasttoken": True}, {"post_processor": broken}))
