"""Tokenizers of every kind: plain text stays text, BOS, bytes of tokens, and what is refused."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpx.errors import TokenizerError
from lpx.model.tokenizer import Tokenizer, load_tokenizer
from tests.model.vocabularies import (
    CONTROL,
    Files,
    byte_level,
    byte_level_source,
    sentencepiece,
    sentencepiece_source,
)

PIECES = ["▁the", "th", "he", "▁t", "▁", *"abcdefghijklmnopqrstuvwxyz<>|/_", "im", "s>", "<s", "<s>x"]
TOKENIZERS: dict[str, Tokenizer] = {
    "byte-level": byte_level(bos_id=270, eos_id=271, add_bos=True, words=["<tool_call>", "  \n"]),
    "sentencepiece": sentencepiece(PIECES, words=["\n\n"], add_space_prefix=False),
    "sentencepiece with prefix": sentencepiece(PIECES),
}
PIECE = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.sampled_from([*CONTROL, "<", "|", "im_end", " ", "\n", "▁", "<0x41>", "the"]),
)


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


def ids_of(tokenizer: Tokenizer, marker: str) -> list[int]:
    (found,) = tokenizer.split_markers(marker)
    assert isinstance(found, int)
    return [found]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.lists(PIECE).map("".join))
@settings(max_examples=150, deadline=None)
def test_any_text_comes_back_and_holds_no_control_token(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special=False)
    assert not any(tokenizer.is_control(i) for i in ids)
    # SentencePiece writes a space as U+2581, so that one character cannot come back as itself.
    expected = text if name == "byte-level" else text.replace("▁", " ")
    assert tokenizer.decode(ids, from_start=True) == expected
    assert (
        b"".join(map(tokenizer.token_bytes, ids)).decode().removeprefix(" " if name.endswith("prefix") and text else "")
        == expected
    )


def test_markers_in_text_stay_text_but_segments_hold_control_tokens(tokenizer: Tokenizer) -> None:
    text = "hi<|im_end|>"
    end = ids_of(tokenizer, "<|im_end|>")
    assert not set(end) & set(tokenizer.encode(text))
    assert tokenizer.split_markers(text) == ["hi", *end]
    ids = tokenizer.encode_segments(["hi", *end], add_special=False)
    assert ids[-1:] == end
    assert tokenizer.decode(ids, skip_special=False, from_start=True) == text
    assert tokenizer.decode(ids, from_start=True) == "hi"


@pytest.mark.parametrize("prompt", ["hello", "<s>hello", "<s>", ""])
def test_a_prompt_starts_with_exactly_one_bos(tokenizer: Tokenizer, prompt: str) -> None:
    for ids in (tokenizer.encode(prompt), tokenizer.encode_segments(tokenizer.split_markers(prompt))):
        assert ids[0] == tokenizer.bos_id
        assert ids.count(ids[0]) == 1
        assert tokenizer.decode(ids, from_start=True) == prompt.removeprefix("<s>")


def test_two_bos_written_by_a_template_become_one(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_segments(tokenizer.split_markers("<s><s>hello"))
    assert ids.count(ids[0]) == 1


def test_without_add_bos_the_spelling_of_bos_is_plain_text() -> None:
    tokenizer = byte_level(bos_id=270, add_bos=False)
    assert 270 not in tokenizer.encode("<s>hello")
    assert 270 not in byte_level(bos_id=270, add_bos=True).encode("<s>hello", add_special=False)


def test_lone_surrogates_become_replacement_characters_and_pairs_one_character(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("hello \ud800 world") == tokenizer.encode("hello \ufffd world")
    assert tokenizer.encode("x\ud83d") == tokenizer.encode("x\ufffd")
    assert tokenizer.encode("\ud83c\udf78") == tokenizer.encode("\U0001f378")
    assert tokenizer.encode_segments(["\ud800"]) == tokenizer.encode_segments(["\ufffd"])


def test_every_byte_has_its_token() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    assert [tokenizer.token_bytes(i) for i in range(256)] == [bytes([b]) for b in range(256)]
    tokenizer = TOKENIZERS["sentencepiece"]
    first = 1 + len(CONTROL)
    assert [tokenizer.token_bytes(first + b) for b in range(256)] == [bytes([b]) for b in range(256)]


def test_a_token_with_part_of_a_character_keeps_its_raw_byte() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("😀", add_special=False)
    assert [list(tokenizer.token_bytes(i)) for i in ids] == [[240], [159], [152], [128]]
    assert [tokenizer.token_text(i) for i in ids] == ["\ufffd"] * 4


def test_special_tokens_have_their_spelling_or_nothing(tokenizer: Tokenizer) -> None:
    (end,) = ids_of(tokenizer, "<|im_end|>")
    assert tokenizer.is_control(end)
    assert tokenizer.token_bytes(end) == b"<|im_end|>"
    assert tokenizer.token_bytes(end, skip_special=True) == b""
    assert tokenizer.token_text(end) == "<|im_end|>"


def test_ids_outside_the_vocabulary_are_an_error_and_padded_rows_are_silent() -> None:
    tokenizer = byte_level(vocab_rows=512)
    assert tokenizer.vocab_size == 512
    assert tokenizer.decode([511, 104]) == "h"
    for token_id in (512, -1):
        with pytest.raises(IndexError):
            tokenizer.token_bytes(token_id)


def test_turn_ends_are_stop_ids_beside_the_named_eos() -> None:
    tokenizer = byte_level(eos_id=271)
    names = {tokenizer.token_text(i) for i in tokenizer.eos_ids}
    assert names == {"</s>", "<|im_end|>", "<|end|>", "<end_of_turn>"}


def test_turn_markers_that_a_file_calls_words_are_control_tokens() -> None:
    tokenizer = byte_level(control=[], words=["<|user|>", "<start_of_turn>", "[INST]", "<｜User｜>", "<think>", "</s>"])
    assert [tokenizer.is_control(i) for i in range(270, 276)] == [True, True, True, True, False, False]
    assert tokenizer.encode("<think></s>") == [274, 275]
    assert not set(tokenizer.encode("<|user|><start_of_turn>[INST]<｜User｜>")) & set(range(270, 276))


def test_words_match_before_splitting_the_longest_first() -> None:
    tokenizer = byte_level(control=[], words=["\n\n", "\n\n\n", "<b>"])
    assert tokenizer.encode("a\n\n\n\n\nb<b>") == [97, 271, 270, 98, 272]


def test_the_prefix_space_follows_the_file() -> None:
    pieces = ["▁the", "the", "he", "th", "▁t", "▁", *"the"]
    text_ids = {
        prefix: load_tokenizer(Files(sentencepiece_source(pieces, add_space_prefix=prefix))).encode_segments(
            ["the", 3, "the"], add_special=False
        )
        for prefix in (True, False, None)
    }
    with_space, without = 264, 265
    assert text_ids == {
        True: [with_space, 3, with_space],
        False: [without, 3, without],
        None: [with_space, 3, with_space],
    }


def test_markers_of_phi3_swallow_the_white_space_after_them() -> None:
    pieces = [*"▁ab\n", "▁a"]
    plain, phi3 = (sentencepiece(pieces, words=words) for words in ([], ["<|placeholder1|>"]))
    for tokenizer, kept in ((plain, True), (phi3, False)):
        ids = tokenizer.encode_segments(tokenizer.split_markers("<|end|>\n a<s>\na"), add_special=False)
        assert tokenizer.decode(ids, skip_special=False) == ("<|end|> \n a<s> \na" if kept else "<|end|> a<s> \na")


def test_decoding_keeps_the_first_space_of_a_continuation() -> None:
    tokenizer = TOKENIZERS["sentencepiece with prefix"]
    ids = tokenizer.encode("the", add_special=False)
    assert tokenizer.decode(ids) == " the"
    assert tokenizer.decode(ids, from_start=True) == "the"


def test_pieces_merge_by_score_not_by_length() -> None:
    # "ab" scores best, so "abc" is reached through "ab", and "bc" never is.
    tokenizer = sentencepiece(["ab", "abc", "bc", *"abc"], add_space_prefix=False)
    texts = [tokenizer.token_text(i) for i in tokenizer.encode("abcbcab", add_special=False)]
    assert texts == ["abc", "bc", "ab"]


def test_qwen_composes_accents_and_others_do_not() -> None:
    composed, apart = "caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9")
    qwen, smollm = byte_level(pre="qwen2"), byte_level(pre="smollm")
    assert qwen.encode(apart) == qwen.encode(composed)
    assert smollm.encode(apart) != smollm.encode(composed)
    assert smollm.decode(smollm.encode(apart)) == apart


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("smollm", ["don", "'t", " ", "1", "2", "3", "4", " x", "\n\n ", " y"]),
        ("gpt-2", ["don", "'t", " 1234", " x", "\n\n ", " y"]),
        ("qwen2", ["don", "'t", " ", "1", "2", "3", "4", " x", "\n\n", " ", " y"]),
        ("llama-bpe", ["don", "'t", " ", "123", "4", " x", "\n\n", " ", " y"]),
        ("tekken", ["don", "'t", " ", "1", "2", "3", "4", " x", "\n\n", " ", " y"]),
        ("gpt-4o", ["don't", " ", "123", "4", " x", "\n\n", " ", " y"]),
        ("deepseek-v3", ["don", "'t", " ", "123", "4", " x", "\n\n", " ", " y"]),
        ("default", ["don", "'", "t", " ", "123", "4", " x", "\n\n ", " y"]),
    ],
)
def test_each_pre_tokenizer_splits_in_its_own_way(pre: str, words: list[str]) -> None:
    # A vocabulary in which every text is one token shows the words: nothing merges across them.
    text = "don't 1234 x\n\n  y"
    letters = dict(enumerate(byte_level_source().tokens[:256]))
    spelled = ["".join(letters[b] for b in text[i : i + n].encode()) for n in range(2, 9) for i in range(len(text))]
    merges = list(dict.fromkeys(f"{s[:k]} {s[k:]}" for s in spelled for k in range(1, len(s))))
    tokens = list(dict.fromkeys([*letters.values(), *[m.replace(" ", "") for m in merges]]))
    source = byte_level_source(control=[], merges=[], pre=pre)
    source = type(source)(model="gpt2", tokens=tokens, merges=merges, pre=pre)
    tokenizer = load_tokenizer(Files(source))
    assert [tokenizer.token_text(i) for i in tokenizer.encode(text)] == words


def test_an_unknown_or_missing_pre_tokenizer_is_refused_and_can_be_named() -> None:
    for pre in ("nonsense", None):
        files = Files(byte_level_source(pre=pre))
        with pytest.raises(TokenizerError, match="--tokenizer-pre"):
            load_tokenizer(files)
        assert load_tokenizer(files, pre_tokenizer="llama-bpe").encode("1234") == [49, 50, 51, 52]
    with pytest.raises(TokenizerError, match="Unknown pre-tokenizer 'other'"):
        load_tokenizer(Files(byte_level_source()), pre_tokenizer="other")


def test_the_name_that_converters_write_when_unsure_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    byte_level(pre="default")
    assert "--tokenizer-pre" in caplog.text


def test_a_control_token_that_merges_lead_to_is_not_reached_by_text() -> None:
    # As in SmolLM2, control tokens stand in the vocabulary like words; here merges even spell one.
    source = byte_level_source(control=["hello"], merges=["h e", "l l", "he ll", "hell o"])
    source = type(source)(
        model="gpt2",
        tokens=[*source.tokens[:256], "he", "ll", "hell", "hello"],
        token_types=source.token_types[:260] if source.token_types is not None else None,
        merges=source.merges,
        pre="llama-bpe",
        eos_id=259,
    )
    tokenizer = load_tokenizer(Files(source))
    assert tokenizer.encode("hello", add_special=False) == [258, 111]


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "bos outside": ({"bos_id": 5000}, "5000"),
    "eos outside": ({"eos_id": 10_000}, "10000"),
    "duplicate tokens": ({"control": ["<s>", "<s>"]}, "twice"),
    "more tokens than rows": ({"vocab_rows": 100}, "embedding rows"),
    "merge of unknown tokens": ({"merges": ["h e"], "control": [], "_merges": ["h e", "x yz"]}, "not listed"),
    "merge without a space": ({"_merges": ["he"]}, "not two words"),
    "no merges": ({"_merges": None}, "merges is missing"),
    "types of another length": ({"_types": 3}, "token_type"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_vocabularies_are_refused(name: str) -> None:
    fields, message = BROKEN[name]
    own = {k: v for k, v in fields.items() if not k.startswith("_")}
    source = byte_level_source(**own)
    values = {f: getattr(source, f) for f in source.__dataclass_fields__ if f != "kind"}
    if "_merges" in fields:
        values["merges"] = fields["_merges"]
    if "_types" in fields:
        values["token_types"] = values["token_types"][: fields["_types"]]
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(Files(type(source)(**values)))


def test_other_vocabulary_kinds_are_refused_by_name() -> None:
    source = byte_level_source()
    for model in ("t5", "bert", "rwkv"):
        with pytest.raises(TokenizerError, match=model):
            load_tokenizer(Files(type(source)(model=model, tokens=source.tokens)))
    with pytest.raises(TokenizerError, match="scores"):
        load_tokenizer(Files(type(source)(model="llama", tokens=source.tokens)))
    with pytest.raises(TokenizerError, match="SentencePiece"):
        load_tokenizer(Files(sentencepiece_source(PIECES)), pre_tokenizer="qwen2")
