"""What a model file says about its tokenizer, checked but not yet turned into a tokenizer.

The readers fill these in; `tokenizer.py` builds the tokenizer. Both kinds are told apart by `kind`, which narrows the
union for the type checker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

# tokenizer.ggml.token_type values.
TOKEN_NORMAL = 1
TOKEN_UNKNOWN = 2
TOKEN_CONTROL = 3
TOKEN_USER_DEFINED = 4
TOKEN_UNUSED = 5
TOKEN_BYTE = 6


@dataclass(frozen=True, slots=True)
class HfTokenizerSource:
    """A Hugging Face folder: `tokenizer.json`, with the two JSON files beside it where present."""

    path: Path  # the tokenizer.json
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    special_tokens_map: Mapping[str, Any] = field(default_factory=dict)
    bos_id: int | None = None  # config.json's, when it names one
    eos_ids: frozenset[int] = frozenset()  # config.json's and generation_config.json's
    vocab_rows: int = 0  # rows of the embedding: no token id may reach beyond
    kind: Literal["tokenizer.json"] = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class GgufTokenizerSource:
    """The `tokenizer.ggml.*` keys of a GGUF file.

    Token ids are positions in `tokens`. Every id below is within `tokens`, no two tokens are equal, and `scores` and
    `token_types` have one entry a token where they are present.
    """

    model: str  # "gpt2" (byte-level BPE), "llama" (SentencePiece), ...: as the file spells it
    tokens: list[str]
    token_types: NDArray[np.int32] | None = None  # TOKEN_* values; None: all normal
    scores: NDArray[np.float32] | None = None
    merges: list[str] | None = None  # "left right", by rank
    pre: str | None = None  # pre-tokenizer's name; None: the file has no such key
    add_bos: bool | None = None  # None: the file does not say
    add_eos: bool | None = None
    add_space_prefix: bool | None = None
    remove_extra_whitespaces: bool | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    pad_id: int | None = None
    eot_id: int | None = None
    eom_id: int | None = None
    mask_id: int | None = None
    eos_ids: frozenset[int] = frozenset()  # eos, eot, eom, and control tokens whose text is known to end a turn
    vocab_rows: int = 0  # rows of the embedding, at least len(tokens)
    kind: Literal["gguf"] = "gguf"


TokenizerSource: TypeAlias = HfTokenizerSource | GgufTokenizerSource
