"""Small vocabularies that tests build for themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lpx.model.tokenizer import Tokenizer, load_tokenizer
from lpx.model.tokenizer_source import (
    TOKEN_BYTE,
    TOKEN_CONTROL,
    TOKEN_NORMAL,
    TOKEN_UNKNOWN,
    TOKEN_USER_DEFINED,
    GgufTokenizerSource,
    HfTokenizerSource,
    TokenizerSource,
)

DATA = Path(__file__).parent / "data"

CONTROL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|end|>", "<start_of_turn>", "<end_of_turn>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "t h", "th e", "Ġ Ġ", "e Ì", "Ã ©"]


@dataclass
class Files:
    """Stands in for `ModelFiles`."""

    tokenizer_source: TokenizerSource


def byte_letters() -> list[str]:
    """The character that stands for each byte in byte-level BPE."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in printable}
    rest = [b for b in range(256) if b not in letters]
    letters.update({b: chr(256 + i) for i, b in enumerate(rest)})
    return [letters[b] for b in range(256)]


def byte_level_source(
    *, control: Sequence[str] = CONTROL, words: Sequence[str] = (), merges: Sequence[str] = MERGES, **fields: Any
) -> GgufTokenizerSource:
    """256 bytes, then merged tokens, then control tokens, then user-defined words."""
    merged = [m.replace(" ", "") for m in merges]
    tokens = [*byte_letters(), *merged, *control, *words]
    types = [
        *[TOKEN_NORMAL] * (256 + len(merged)),
        *[TOKEN_CONTROL] * len(control),
        *[TOKEN_USER_DEFINED] * len(words),
    ]
    fields.setdefault("pre", "smollm")
    return GgufTokenizerSource(
        model="gpt2", tokens=tokens, token_types=np.array(types, np.int32), merges=list(merges), **fields
    )


def byte_level(**fields: Any) -> Tokenizer:
    return load_tokenizer(Files(byte_level_source(**fields)))


def sentencepiece_source(pieces: Sequence[str], *, words: Sequence[str] = (), **fields: Any) -> GgufTokenizerSource:
    """<unk>, the control tokens, 256 byte tokens, words, then `pieces` with falling scores."""
    tokens = ["<unk>", *CONTROL, *[f"<0x{b:02X}>" for b in range(256)], *words, *pieces]
    types = [
        TOKEN_UNKNOWN,
        *[TOKEN_CONTROL] * len(CONTROL),
        *[TOKEN_BYTE] * 256,
        *[TOKEN_USER_DEFINED] * len(words),
        *[TOKEN_NORMAL] * len(pieces),
    ]
    scores = [0.0] * (len(tokens) - len(pieces)) + [-float(i) for i in range(len(pieces))]
    fields.setdefault("unk_id", 0)
    fields.setdefault("bos_id", 1)
    fields.setdefault("eos_id", 2)
    return GgufTokenizerSource(
        model="llama",
        tokens=tokens,
        token_types=np.array(types, np.int32),
        scores=np.array(scores, np.float32),
        **fields,
    )


def sentencepiece(pieces: Sequence[str], **fields: Any) -> Tokenizer:
    return load_tokenizer(Files(sentencepiece_source(pieces, **fields)))


def added_token(token_id: int, content: str, **flags: bool) -> dict[str, Any]:
    base = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **base, "special": True, **flags}


def byte_level_json(added: Sequence[dict[str, Any]], **parts: Any) -> dict[str, Any]:
    """The data of a `tokenizer.json` with 256 bytes and the merged tokens; added ids start at 270."""
    tokens = [*byte_letters(), *[m.replace(" ", "") for m in MERGES]]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added),
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        **parts,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(tokens)},
            "merges": MERGES,
        },
    }


def from_json(data: dict[str, Any], folder: Path, **fields: Any) -> Tokenizer:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return load_tokenizer(Files(HfTokenizerSource(path=path, **fields)))
