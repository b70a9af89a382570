"""Builds a tokenizer from the `tokenizer.ggml.*` keys of a GGUF file."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lpx import _native
from lpx.errors import TokenizerError
from lpx.model.pre_tokenizers import build_byte_level, split_rule
from lpx.model.special_tokens import Marker, looks_like_marker
from lpx.model.token_texts import TokenTexts
from lpx.model.tokenizer import Vocabulary
from lpx.model.tokenizer_source import (
    TOKEN_BYTE,
    TOKEN_CONTROL,
    TOKEN_NORMAL,
    TOKEN_UNKNOWN,
    TOKEN_UNUSED,
    TOKEN_USER_DEFINED,
    GgufTokenizerSource,
)

_SPACE_MARK = "▁"

# GGUF has no key for it, but the markers of Phi-3's vocabulary, which has this token, swallow the white space after
# them; these do not.
_PHI3_TOKEN = "<|placeholder1|>"
_PHI3_KEEP_SPACE = frozenset({"<s>", "<unk>", "<|endoftext|>"})


def build_from_gguf(source: GgufTokenizerSource, pre_tokenizer: str | None = None) -> Vocabulary:
    """Build a byte-level BPE ("gpt2") or SentencePiece ("llama") vocabulary.

    Raises:
        TokenizerError: another model, tokens that are ambiguous, merges or scores that do not fit the tokens.
    """
    types = _token_types(source)
    if source.model == "gpt2":
        return _build_byte_level(source, types, pre_tokenizer)
    if source.model == "llama":
        if pre_tokenizer is not None:
            raise TokenizerError(
                f"--tokenizer-pre {pre_tokenizer!r} has no meaning for a SentencePiece vocabulary "
                "(tokenizer.ggml.model = llama); leave the option out."
            )
        return _build_sentencepiece(source, types)
    raise TokenizerError(
        f"Unsupported tokenizer {source.model!r} (tokenizer.ggml.model); supported: gpt2 (byte-level BPE), "
        "llama (SentencePiece BPE)."
    )


def _token_types(source: GgufTokenizerSource) -> NDArray[np.int32]:
    """One TOKEN_* value per token, with turn markers that the file calls ordinary words made control tokens."""
    count = len(source.tokens)
    if source.token_types is None:
        types = np.full(count, TOKEN_NORMAL, dtype=np.int32)
    else:
        types = np.array(source.token_types, dtype=np.int32)
        if len(types) != count:
            raise TokenizerError(f"tokenizer.ggml.token_type has {len(types)} entries for {count} tokens.")
    for token_id in np.flatnonzero(types == TOKEN_USER_DEFINED).tolist():
        if looks_like_marker(source.tokens[token_id]):
            types[token_id] = TOKEN_CONTROL
    for special_id in [*_eos_ids(source), *([] if source.bos_id is None else [source.bos_id])]:
        if not 0 <= special_id < count:
            raise TokenizerError(f"Special token id {special_id} is outside the vocabulary of {count} tokens.")
        types[special_id] = TOKEN_CONTROL
    return types


def _build_byte_level(source: GgufTokenizerSource, types: NDArray[np.int32], pre_tokenizer: str | None) -> Vocabulary:
    from tokenizers import Tokenizer, models, normalizers

    rule = split_rule(source.pre, pre_tokenizer)
    if source.merges is None:
        raise TokenizerError("tokenizer.ggml.merges is missing: byte-level BPE cannot work without it.")
    vocab = _plain_vocab(source.tokens, types)
    merges = _merges(source.merges, source.tokens, vocab)
    model = models.BPE(vocab=vocab, merges=merges, ignore_merges=rule.ignore_merges)
    core = Tokenizer(model)
    core.pre_tokenizer = build_byte_level(rule)
    if rule.nfc:
        core.normalizer = normalizers.NFC()
    _add_words(core, source.tokens, types)
    return Vocabulary(
        core=core,
        inner_core=core,
        texts=TokenTexts(source.tokens),
        encoding="byte-level",
        markers=_markers(source, types),
        silent=_ids(types, TOKEN_UNUSED, TOKEN_UNKNOWN),
        literal=_ids(types, TOKEN_USER_DEFINED),
        bos_id=source.bos_id,
        eos_ids=_eos_ids(source),
        add_bos=rule.adds_bos if source.add_bos is None else source.add_bos,
        vocab_rows=source.vocab_rows,
        special_texts=_special_texts(source),
    )


def _build_sentencepiece(source: GgufTokenizerSource, types: NDArray[np.int32]) -> Vocabulary:
    from tokenizers import Tokenizer, models, normalizers

    if source.scores is None:
        raise TokenizerError("tokenizer.ggml.scores is missing: a SentencePiece vocabulary cannot work without it.")
    if source.remove_extra_whitespaces:
        raise TokenizerError(
            "tokenizer.ggml.remove_extra_whitespaces is set: that SentencePiece option is not supported."
        )
    vocab = _plain_vocab(source.tokens, types)
    unknown = None
    if source.unk_id is not None and 0 <= source.unk_id < len(source.tokens):
        unknown = source.tokens[source.unk_id]
        vocab[unknown] = source.unk_id
    normal = np.flatnonzero(types == TOKEN_NORMAL)
    order = normal[np.argsort(-source.scores[normal].astype(np.float64), kind="stable")]
    pieces = [source.tokens[i] for i in order.tolist()]
    core = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_native.merge_pieces(pieces),
            unk_token=unknown,
            byte_fallback=bool(np.any(types == TOKEN_BYTE)),
            fuse_unk=True,
        )
    )
    prefix_space = source.add_space_prefix is not False
    steps: list[normalizers.Normalizer] = [normalizers.Prepend(_SPACE_MARK)] if prefix_space else []
    core.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE_MARK)])
    _add_words(core, source.tokens, types)
    return Vocabulary(
        core=core,
        inner_core=core,
        texts=TokenTexts(source.tokens),
        encoding="sentencepiece",
        markers=_markers(source, types, keep_space=_PHI3_KEEP_SPACE if _PHI3_TOKEN in source.tokens else None),
        silent=_ids(types, TOKEN_UNUSED, TOKEN_UNKNOWN),
        literal=_ids(types, TOKEN_USER_DEFINED),
        byte_tokens=True,
        bos_id=source.bos_id,
        eos_ids=_eos_ids(source),
        add_bos=source.add_bos is not False,
        prefix_space=prefix_space,
        vocab_rows=source.vocab_rows,
        special_texts=_special_texts(source),
    )


def _plain_vocab(tokens: list[str], types: NDArray[np.int32]) -> dict[str, int]:
    """Token text -> id for the tokens that text may reach."""
    vocab = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(vocab) != len(tokens):
        seen: set[str] = set()
        twice = next(t for t in tokens if t in seen or seen.add(t))  # type: ignore[func-returns-value]
        raise TokenizerError(f"tokenizer.ggml.tokens lists {twice!r} twice: encoding would be ambiguous.")
    hidden = (types == TOKEN_CONTROL) | (types == TOKEN_UNUSED) | (types == TOKEN_UNKNOWN)
    for token_id in np.flatnonzero(hidden).tolist():
        del vocab[tokens[token_id]]
    return vocab


def _merges(lines: list[str], tokens: list[str], vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Check and split "left right" lines.

    Merges that lead to control or unused tokens are left out: text must not reach those. The library would abort on a
    merge into a token that it does not know.
    """
    fast = _native.split_merges(lines, vocab, tokens)
    if len(fast) == len(lines):
        return fast
    parts = [line.split(" ") for line in lines]
    if any(len(part) != 2 for part in parts) or "" in {part[0] for part in parts} | {part[1] for part in parts}:
        rank = next(i for i, part in enumerate(parts) if len(part) != 2 or "" in part)
        raise TokenizerError(f"tokenizer.ggml.merges[{rank}] is not two words: {lines[rank]!r}.")
    pairs = [(left, right) for left, right in parts]
    listed = set(tokens)
    for left, right in pairs:
        if not {left, right, left + right} <= listed:
            raise TokenizerError(f"tokenizer.ggml.merges uses a token that is not listed: {left!r} + {right!r}.")
    return [(left, right) for left, right in pairs if {left, right, left + right} <= vocab.keys()]


def _add_words(core: object, tokens: list[str], types: NDArray[np.int32]) -> None:
    """Make user-defined tokens match in the raw text, before any splitting or merging."""
    from tokenizers import AddedToken, Tokenizer

    assert isinstance(core, Tokenizer)
    ids = np.flatnonzero(types == TOKEN_USER_DEFINED).tolist()
    words = [AddedToken(tokens[i], normalized=False, special=False) for i in ids if tokens[i]]
    if words:
        core.add_tokens(words)


def _markers(
    source: GgufTokenizerSource, types: NDArray[np.int32], *, keep_space: frozenset[str] | None = None
) -> list[Marker]:
    """The control tokens; with `keep_space`, all others swallow the white space that follows."""
    texts = [(i, source.tokens[i]) for i in np.flatnonzero(types == TOKEN_CONTROL).tolist()]
    return [Marker(i, t, rstrip=keep_space is not None and t not in keep_space) for i, t in texts]


def _eos_ids(source: GgufTokenizerSource) -> frozenset[int]:
    named = (source.eos_id, source.eot_id, source.eom_id)
    return source.eos_ids | {i for i in named if i is not None}


def _special_texts(source: GgufTokenizerSource) -> dict[str, str]:
    ids = {
        "bos_token": source.bos_id,
        "eos_token": source.eos_id,
        "unk_token": source.unk_id,
        "pad_token": source.pad_id,
    }
    return {name: source.tokens[i] for name, i in ids.items() if i is not None and 0 <= i < len(source.tokens)}


def _ids(types: NDArray[np.int32], *wanted: int) -> frozenset[int]:
    return frozenset(np.flatnonzero(np.isin(types, wanted)).tolist())
