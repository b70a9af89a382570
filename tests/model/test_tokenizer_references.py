"""Ids equal those of the reference tokenizers, recorded by `record_text_references.py`."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpx.model.files import open_model
from lpx.model.tokenizer import load_tokenizer
from lpx.model.tokenizer_source import GgufTokenizerSource
from tests.model.record_text_references import digest
from tests.model.text_corpus import LONG_TEXTS
from tests.model.vocabularies import DATA, Files

SENTENCEPIECE = json.loads((DATA / "sentencepiece_ids.json").read_text())
LLAMA = json.loads((DATA / "llama_ids.json").read_text())


def differences(tokenizer: Any, texts: list[str], wanted: list[list[int]]) -> list[str]:
    pairs = zip(texts, wanted, strict=True)
    return [text for text, ids in pairs if tokenizer.encode(text, add_special=False) != ids]


@pytest.mark.parametrize("name", SENTENCEPIECE["vocabularies"])
def test_ids_equal_sentencepiece(name: str) -> None:
    data = SENTENCEPIECE["vocabularies"][name]
    source = GgufTokenizerSource(
        model="llama",
        tokens=data["tokens"],
        token_types=np.array(data["types"], np.int32),
        scores=np.array(data["scores"], np.float32),
        bos_id=data["bos"],
        eos_id=data["eos"],
        unk_id=data["unk"],
        add_space_prefix=data["prefix"],
    )
    assert differences(load_tokenizer(Files(source)), SENTENCEPIECE["texts"], data["ids"]) == []


@pytest.mark.model
def test_ids_equal_llama_cpp(real_model_path: Path) -> None:
    with open_model(real_model_path) as files:
        tokenizer = load_tokenizer(files)
    recorded = LLAMA["models"][real_model_path.name]
    texts, wanted = LLAMA["texts"], recorded["ids"]
    if files.config.architecture.startswith("qwen"):
        # llama.cpp leaves out the NFC step of this family.
        composed = [i for i, t in enumerate(texts) if unicodedata.is_normalized("NFC", t)]
        assert len(composed) > 0.9 * len(texts)
        texts, wanted = [texts[i] for i in composed], [wanted[i] for i in composed]
    assert differences(tokenizer, texts, wanted) == []
    assert {n: digest(tokenizer.encode(t, add_special=False)) for n, t in LONG_TEXTS.items()} == recorded["long"]
    for text in [*texts, *LONG_TEXTS.values()]:
        assert tokenizer.decode(tokenizer.encode(text), from_start=True) == text
