"""The tokenizer keys of GGUF metadata, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpx.errors import ModelFileError, TokenizerError
from lpx.model.config_values import ConfigValues
from lpx.model.special_tokens import TURN_ENDS
from lpx.model.tokenizer_source import TOKEN_BYTE, TOKEN_CONTROL, TOKEN_NORMAL, GgufTokenizerSource

_PREFIX = "tokenizer.ggml."


def tokenizer_from_gguf(metadata: Mapping[str, Any], vocab_rows: int, where: str) -> GgufTokenizerSource:
    """The tokenizer of a file whose embedding has `vocab_rows` rows.

    Fewer tokens than rows are allowed (padded embeddings), more are not; equal tokens and ids that are not tokens are
    refused. Raises TokenizerError or ModelFileError.
    """
    values = ConfigValues(metadata, where, _PREFIX)
    tokens = _strings(values, "tokens")
    if tokens is None:
        raise TokenizerError(f"{values.where('tokens')} is missing: the file has no vocabulary")
    if not tokens:
        raise TokenizerError(f"{values.where('tokens')} is empty")
    if len(tokens) > vocab_rows:
        raise TokenizerError(f"{where}: {len(tokens)} tokens, but the embedding has only {vocab_rows} rows")
    if len(set(tokens)) != len(tokens):
        raise TokenizerError(f"{values.where('tokens')}: {_first_duplicate(tokens)}")
    types = _array(values, "token_type", np.int32, len(tokens))
    if types is not None and (types.min() < TOKEN_NORMAL or types.max() > TOKEN_BYTE):
        raise TokenizerError(f"{values.where('token_type')} holds values outside of {TOKEN_NORMAL} to {TOKEN_BYTE}")
    scores = _array(values, "scores", np.float32, len(tokens))
    if scores is not None and np.isnan(scores).any():
        raise TokenizerError(f"{values.where('scores')} holds values that are not numbers")

    def token_id(key: str) -> int | None:
        value = values.optional_integer(key, low=-1, high=2**32 - 1)
        if value is None or value in (-1, 2**32 - 1):  # both spell "none"
            return None
        if value >= len(tokens):
            raise TokenizerError(f"{values.where(key)} is {value}, but there are only {len(tokens)} tokens")
        return value

    eos_id, eot_id, eom_id = token_id("eos_token_id"), token_id("eot_token_id"), token_id("eom_token_id")
    ends = {i for i in (eos_id, eot_id, eom_id) if i is not None}
    if types is not None:
        ends |= {int(i) for i in np.flatnonzero(types == TOKEN_CONTROL) if tokens[i] in TURN_ENDS}
    return GgufTokenizerSource(
        model=values.text("model"),
        tokens=tokens,
        token_types=types,
        scores=scores,
        merges=_strings(values, "merges"),
        pre=values.text("pre") if "pre" in values else None,
        add_bos=_flag(values, "add_bos_token"),
        add_eos=_flag(values, "add_eos_token"),
        add_space_prefix=_flag(values, "add_space_prefix"),
        remove_extra_whitespaces=_flag(values, "remove_extra_whitespaces"),
        bos_id=token_id("bos_token_id"),
        eos_id=eos_id,
        unk_id=token_id("unknown_token_id"),
        pad_id=token_id("padding_token_id"),
        eot_id=eot_id,
        eom_id=eom_id,
        mask_id=token_id("mask_token_id"),
        eos_ids=frozenset(ends),
        vocab_rows=vocab_rows,
    )


def _flag(values: ConfigValues, key: str) -> bool | None:
    return values.flag(key, False) if key in values else None


def _strings(values: ConfigValues, key: str) -> list[str] | None:
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, np.ndarray) and not len(value):
        return []
    if not isinstance(value, list) or (value and not isinstance(value[0], str)):
        raise ModelFileError(f"{values.where(key)} must be an array of strings")
    return value


def _array(values: ConfigValues, key: str, dtype: type[np.generic], length: int) -> NDArray[Any] | None:
    value = values.get(key)
    if value is None:
        return None
    if (
        not isinstance(value, np.ndarray)
        or (value.dtype.kind == "f") != (dtype is np.float32)
        or value.dtype.kind == "b"
    ):
        raise ModelFileError(f"{values.where(key)} must be an array of {np.dtype(dtype).name}")
    if len(value) != length:
        raise TokenizerError(f"{values.where(key)} has {len(value)} entries for {length} tokens")
    return value.astype(dtype, copy=False)


def _first_duplicate(tokens: list[str]) -> str:
    seen: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token in seen:
            return f"tokens {seen[token]} and {index} are both {token[:40]!r}"
        seen[token] = index
    raise AssertionError("no duplicate")
