"""The tokenizer of a Hugging Face folder as GGUF metadata.

GGUF names the way in which text is split where `tokenizer.json` spells it out. So every way that is known by name is
tried on a text that tells them apart, and the one that gives the same ids is taken; if none does the model is refused,
since another split would give worse answers without any error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from lpx.errors import LpxError, TokenizerError
from lpx.model.gguf_tokenizer import tokenizer_from_gguf
from lpx.model.pre_tokenizers import known_names, split_rule
from lpx.model.special_tokens import looks_like_marker
from lpx.model.tokenizer import Tokenizer
from lpx.model.tokenizer_gguf import build_from_gguf
from lpx.model.tokenizer_json import build_from_json, steps_of
from lpx.model.tokenizer_source import (
    TOKEN_BYTE,
    TOKEN_CONTROL,
    TOKEN_NORMAL,
    TOKEN_UNKNOWN,
    TOKEN_UNUSED,
    TOKEN_USER_DEFINED,
    HfTokenizerSource,
)

# The names that files of the supported families have come first; of several that split alike, the first is taken.
_USUAL = ("llama-bpe", "qwen2", "smollm", "gpt-2", "tekken", "gpt-4o")
_PROBE = (
    "The quick brown fox jumps over the lazy dog, and the rest of the text is what it is: in other words, nothing new. "
    "Hello, World! I'LL we're  DON'T it's 1234567 3.14 ½ x=42;\n\n\t if (a != b) { return a->b; }\r\n"
    "  你好，世界！这是一个测试。 日本語テスト 한국어 Ünïcödé e\u0301 नमस्ते สวัสดี "
    "https://example.com/a_b?c=d&e=f #tag @user … — “quoted” 🙂👩‍👩‍👧 \u00a0end   "
)


def vocabulary_metadata(source: HfTokenizerSource, vocab_rows: int) -> dict[str, Any]:
    """The `tokenizer.ggml.*` keys for a model with `vocab_rows` rows of embeddings. Raises TokenizerError."""
    vocabulary = build_from_json(source)
    whole = json.loads(source.path.read_text("utf-8"))
    model = whole["model"]
    if model.get("type") not in (None, "BPE") or "merges" not in model:
        raise TokenizerError(f"{source.path}: a vocabulary of kind {model.get('type')!r} cannot be converted")
    tokens, types = _tokens(whole, vocab_rows)
    for token_id in {*vocabulary.eos_ids, *([] if vocabulary.bos_id is None else [vocabulary.bos_id])}:
        types[token_id] = TOKEN_CONTROL
    metadata: dict[str, Any] = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.add_bos_token": vocabulary.add_bos,
    }
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    if vocabulary.encoding == "byte-level":
        metadata |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": merges}
    else:
        metadata |= {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.scores": -np.arange(len(tokens), dtype=np.float32),  # merged in the order of their ids
            "tokenizer.ggml.add_space_prefix": vocabulary.prefix_space,
        }
    metadata |= _special_ids(vocabulary.special_texts, tokens, vocabulary.bos_id, vocabulary.eos_ids)
    expected = Tokenizer(vocabulary).encode(_PROBE, add_special=True)
    if vocabulary.encoding == "sentencepiece":
        if _ids(metadata, vocab_rows) != expected:
            raise TokenizerError(f"{source.path}: the merges of this vocabulary have no equal in GGUF")
        return metadata
    takes_words_whole = bool(model.get("ignore_merges"))
    composes = any(True for _ in steps_of(whole.get("normalizer"), "NFC"))
    for name in (*_USUAL, *known_names()):
        rule = split_rule(None, name)
        if (rule.ignore_merges, rule.nfc) != (takes_words_whole, composes):
            continue
        named = {**metadata, "tokenizer.ggml.pre": name}
        if _ids(named, vocab_rows) == expected:
            return named
    raise TokenizerError(
        f"{source.path}: none of the ways to split text that GGUF names gives the same ids; known: "
        f"{', '.join(known_names())}"
    )


def _tokens(whole: Mapping[str, Any], vocab_rows: int) -> tuple[list[str], np.ndarray[Any, np.dtype[np.int32]]]:
    """The token of every row, and its kind; rows without one get a name that text never has."""
    tokens = [f"[PAD{row}]" for row in range(vocab_rows)]
    types = np.full(vocab_rows, TOKEN_UNUSED, dtype=np.int32)
    unknown = whole["model"].get("unk_token")
    byte_fallback = bool(whole["model"].get("byte_fallback"))
    for text, token_id in whole["model"]["vocab"].items():
        tokens[token_id] = text
        types[token_id] = TOKEN_NORMAL
        if text == unknown:
            types[token_id] = TOKEN_UNKNOWN
        elif byte_fallback and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            types[token_id] = TOKEN_BYTE
    for added in whole.get("added_tokens") or ():
        tokens[added["id"]] = added["content"]
        special = added.get("special") or looks_like_marker(added["content"])
        if types[added["id"]] != TOKEN_UNKNOWN:
            types[added["id"]] = TOKEN_CONTROL if special else TOKEN_USER_DEFINED
    return tokens, types


def _special_ids(
    texts: Mapping[str, str], tokens: list[str], bos_id: int | None, eos_ids: frozenset[int]
) -> dict[str, Any]:
    named = {name: tokens.index(text) for name, text in texts.items() if text in tokens}
    eos = named.get("eos_token", min(eos_ids, default=None))
    ids = {
        "bos_token_id": bos_id,
        "eos_token_id": eos,
        "eot_token_id": min(eos_ids - {eos}, default=None) if eos is not None else None,
        "unknown_token_id": named.get("unk_token"),
        "padding_token_id": named.get("pad_token"),
    }
    return {f"tokenizer.ggml.{key}": value for key, value in ids.items() if value is not None}


def _ids(metadata: Mapping[str, Any], vocab_rows: int) -> list[int] | None:
    """What the probe becomes with these keys; None where they make no tokenizer."""
    try:
        source = tokenizer_from_gguf(metadata, vocab_rows, "the converted tokenizer")
        return Tokenizer(build_from_gguf(source)).encode(_PROBE, add_special=True)
    except LpxError:
        return None
