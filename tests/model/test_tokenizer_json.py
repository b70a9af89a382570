"""Tokenizers from tokenizer.json: flags of added tokens, normalisers, prefixes, BOS, and broken files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Reference

from lpx.errors import TokenizerError
from lpx.model.tokenizer import Tokenizer, load_tokenizer
from lpx.model.tokenizer_source import HfTokenizerSource
from tests.model.text_corpus import TEXTS, random_texts
from tests.model.vocabularies import Files, added_token, byte_level_json, from_json

MARKERS = [added_token(270, "<s>"), added_token(271, "</s>"), added_token(272, "<|end|>", rstrip=True)]
BOS_FIRST = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [270], "tokens": ["<s>"]}},
}
SPACE = "▁"


def spm_json(*, prefix: str | None, legacy: bool = False) -> dict[str, Any]:
    """A SentencePiece-style file: Metaspace with a prepend scheme, or the older normalizer."""
    pieces = [SPACE, *"abcdefghijklmnopqrstuvwxyz", f"{SPACE}a", f"{SPACE}b", "ab", f"{SPACE}ab"]
    vocab = ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)], *pieces]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": prefix, "split": False}
    return {
        "version": "1.0",
        "added_tokens": [added_token(i, t) for i, t in enumerate(("<unk>", "<s>", "</s>"))],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace]}
        if legacy
        else None,
        "pre_tokenizer": None if legacy else metaspace,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "byte_fallback": True,
            "fuse_unk": True,
            "vocab": {t: i for i, t in enumerate(vocab)},
            "merges": ["a b", f"{SPACE} ab", f"{SPACE} a", f"{SPACE} b"],
        },
    }


def trusted(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of text whose markers are meant, as the reference makes them of any text."""
    return tokenizer.encode_segments(tokenizer.split_markers(text), add_special=False)


@pytest.mark.parametrize(
    "data",
    [
        byte_level_json(MARKERS),
        byte_level_json(MARKERS, normalizer={"type": "NFC"}),
        byte_level_json([*MARKERS, added_token(273, "<b>", special=False), added_token(274, "\n\n", special=False)]),
        byte_level_json([added_token(270, "<mask>", lstrip=True), added_token(271, "<x>", lstrip=True, rstrip=True)]),
        byte_level_json([added_token(270, "is", special=False, single_word=True, lstrip=True)]),
        spm_json(prefix="first"),
        spm_json(prefix="always"),
        spm_json(prefix="never"),
        spm_json(prefix=None, legacy=True),
    ],
    ids=["plain", "nfc", "words", "strip", "single word", "first", "always", "never", "legacy"],
)
def test_ids_equal_the_reference(data: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = from_json(data, tmp_path)
    reference = Reference.from_str(json.dumps(data))
    markers = [t["content"] for t in data["added_tokens"]]
    texts = [*TEXTS.values(), *random_texts(60, seed=5), "e\u0301 \u00e9", "is <mask> . this is  <x>\n\u200b x"]
    texts += [f"ab{m} ab {m}\n{m}{m} a" for m in markers] + [f"{m}ab b" for m in markers]
    for text in texts:
        assert trusted(tokenizer, text) == reference.encode(text, add_special_tokens=False).ids, text


def test_stripping_leaves_what_only_looks_like_white_space(tmp_path: Path) -> None:
    tokenizer = from_json(byte_level_json(MARKERS), tmp_path)
    assert trusted(tokenizer, "<|end|> \n\u2003x") == [272, *tokenizer.encode("x")]
    assert trusted(tokenizer, "<|end|>\u200bx") == [272, *tokenizer.encode("\u200bx")]
    assert trusted(tokenizer, "<|end|>\x1cx") == [272, *tokenizer.encode("\x1cx")]


def test_text_holds_no_special_token_but_may_hold_words(tmp_path: Path) -> None:
    data = byte_level_json(
        [*MARKERS, added_token(273, "<think>", special=False), added_token(274, "<｜User｜>", special=False)]
    )
    tokenizer = from_json(data, tmp_path)
    ids = tokenizer.encode("<think></s><|end|><｜User｜>")
    assert ids[0] == 273
    assert not {270, 271, 272, 274} & set(ids)
    assert [tokenizer.is_control(i) for i in range(270, 275)] == [True, True, True, False, True]


def test_look_alikes_merge_like_any_other_text(tmp_path: Path) -> None:
    marked = from_json(byte_level_json([added_token(270, "hellox"), added_token(271, "the>")]), tmp_path)
    text = "hellox the>x"
    assert marked.encode(text) == from_json(byte_level_json([]), tmp_path).encode(text)


def test_bos_comes_from_the_post_processor_or_the_config(tmp_path: Path) -> None:
    named = {"tokenizer_config": {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}}
    with_processor = byte_level_json(MARKERS, post_processor={"type": "Sequence", "processors": [BOS_FIRST]})
    tokenizer = from_json(with_processor, tmp_path, **named)
    assert tokenizer.encode("h") == [270, 104]
    assert tokenizer.encode("<s>h") == [270, 104]
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (270, {271, 272})
    assert tokenizer.special_texts == {"bos_token": "<s>", "eos_token": "</s>"}
    assert from_json(byte_level_json(MARKERS), tmp_path, **named).encode("h") == [104]
    for wanted in (True, False):
        config = {**named["tokenizer_config"], "add_bos_token": wanted}
        assert from_json(with_processor, tmp_path, tokenizer_config=config).add_bos is wanted


def test_ids_of_the_model_config_count_too(tmp_path: Path) -> None:
    tokenizer = from_json(byte_level_json(MARKERS), tmp_path, bos_id=270, eos_ids=frozenset({5, 271}))
    assert tokenizer.bos_id == 270
    assert tokenizer.eos_ids == {5, 271, 272}
    assert 5 not in tokenizer.encode(tokenizer.token_text(5))


def test_the_first_space_of_a_whole_text_is_dropped_on_decoding(tmp_path: Path) -> None:
    tokenizer = from_json(spm_json(prefix="first"), tmp_path)
    ids = tokenizer.encode("ab b")
    assert tokenizer.decode(ids) == " ab b"
    assert tokenizer.decode(ids, from_start=True) == "ab b"
    assert tokenizer.encode("é", add_special=False)[-2:] == [3 + 0xC3, 3 + 0xA9]
    assert tokenizer.token_bytes(3 + 0xC3) == b"\xc3"


def test_keys_may_come_in_any_order(tmp_path: Path) -> None:
    data = byte_level_json(MARKERS)
    reordered = {"model": data.pop("model"), **data}
    assert from_json(reordered, tmp_path).encode("hello</s>") == from_json(byte_level_json(MARKERS), tmp_path).encode(
        "hello</s>"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}, "WordPiece"),
        ({"decoder": None}, "decoder"),
        ({"added_tokens": [added_token(270, "<s>"), added_token(270, "<t>")]}, "twice"),
        ({"added_tokens": [added_token(270, "<s>"), added_token(271, "<s>")]}, "twice"),
        ({"added_tokens": [added_token(0, "<s>")]}, "its place in the vocabulary is 270"),
        ({"added_tokens": [added_token(2**31, "<s>")]}, "its place in the vocabulary is 270"),
        ({"added_tokens": [added_token(-1, "<s>")]}, "negative"),
        ({"added_tokens": [{"content": "<s>"}]}, "without an id"),
        ({"pre_tokenizer": {"type": "NoSuchThing"}}, "cannot be used"),
    ],
)
def test_broken_parts_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=message):
        from_json({**byte_level_json(MARKERS), **change}, tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"model": ', '{"added_tokens": [}', "\ufeff{}", '{"a": 1 "model": {}}']
)
def test_files_that_are_not_tokenizers_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load_tokenizer(Files(HfTokenizerSource(path=path)))


def test_merges_into_unknown_tokens_do_not_bring_the_process_down(tmp_path: Path) -> None:
    data = byte_level_json(MARKERS)
    data["model"]["merges"] = [*data["model"]["merges"], "hello Ġworld"]
    with pytest.raises(TokenizerError, match="cannot be used"):
        from_json(data, tmp_path)


def test_sparse_ids_do_not_make_a_huge_table(tmp_path: Path) -> None:
    data = byte_level_json([])
    data["model"]["vocab"]["hello"] = 2**31
    with pytest.raises(TokenizerError, match="go up to 2147483648"):
        from_json(data, tmp_path)
    data["model"]["vocab"]["hello"] = 0
    with pytest.raises(TokenizerError, match="stands for both"):
        from_json(data, tmp_path)


def test_ids_outside_the_embedding_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="embedding rows"):
        from_json(byte_level_json(MARKERS), tmp_path, vocab_rows=272)
    with pytest.raises(TokenizerError, match="outside"):
        from_json(byte_level_json(MARKERS), tmp_path, eos_ids=frozenset({9999}))
    with pytest.raises(TokenizerError, match="tokenizer-pre"):
        load_tokenizer(Files(HfTokenizerSource(path=tmp_path / "tokenizer.json")), pre_tokenizer="qwen2")
