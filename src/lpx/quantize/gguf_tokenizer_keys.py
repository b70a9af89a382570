"""A `tokenizer.json` as the `tokenizer.ggml.*` keys of a GGUF file.

GGUF names the rule that splits text instead of describing it, and SentencePiece vocabularies have scores instead of
merges. So the keys are tried: only those are taken whose tokenizer gives the same ids as the folder's own for texts in
several languages, with digits, white space and punctuation that tell the rules apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpx.errors import TokenizerError
from lpx.model.files import ModelFiles
from lpx.model.pre_tokenizers import known_names, split_rule
from lpx.model.safetensors_reader import read_json
from lpx.model.special_tokens import looks_like_marker
from lpx.model.tokenizer import Tokenizer, load_tokenizer
from lpx.model.tokenizer_source import (
    TOKEN_BYTE,
    TOKEN_CONTROL,
    TOKEN_NORMAL,
    TOKEN_UNKNOWN,
    TOKEN_UNUSED,
    TOKEN_USER_DEFINED,
    GgufTokenizerSource,
    HfTokenizerSource,
)
from lpx.quality.texts import bundled_texts

_MOST_BYTES = 200_000_000
_PROBE = (
    "I'm sure they'LL say it's 1234567 or 12,345.6789\u00b2, isn't it?  Two  spaces,\ttab\n\n\nlines  \n  x==y!=z; "
    "foo_bar(baz)->qux::Quux /* 日本語テキスト、中文２０２４年 */ e\u0301te\u0301 Ünïcödé ПРИВЕТ мир عربى हिन्दी "
    "\U0001f600\U0001f44d\U0001f3fd $100 "
    "CamelCaseWords HTTPServer don't.\r\nEnd...\n\t\t  "
)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What `load_tokenizer` asks for."""

    tokenizer_source: GgufTokenizerSource


def tokenizer_keys(files: ModelFiles) -> dict[str, Any]:
    """Keys under which a GGUF reader builds the same tokenizer.

    Raises TokenizerError where no known splitting rule gives the same ids, or the vocabulary is of another kind.
    """
    from lpx.model.gguf_tokenizer import tokenizer_from_gguf

    source = files.tokenizer_source
    assert source.kind == "tokenizer.json"
    whole = read_json(source.path, _MOST_BYTES)
    own = load_tokenizer(files)
    texts = [_PROBE, *(text.content for text in bundled_texts())]
    expected = [own.encode(text) for text in texts]
    common = _common_keys(whole, source, own, files)
    for special in _candidates(whole):
        keys = {f"tokenizer.ggml.{key}": value for key, value in (common | special).items()}
        try:
            tried = load_tokenizer(_Loaded(tokenizer_from_gguf(keys, files.config.vocab_size, str(source.path))))
        except TokenizerError:
            continue
        if [tried.encode(text) for text in texts] == expected:
            if missing := own.eos_ids - tried.eos_ids:
                raise TokenizerError(f"{source.path}: GGUF has no key for all ends of a text; left over: {missing}")
            return keys
    raise TokenizerError(
        f"{source.path}: none of the splitting rules that GGUF files name ({', '.join(known_names())}) gives the same "
        "tokens as this tokenizer"
    )


def _common_keys(whole: dict[str, Any], source: HfTokenizerSource, own: Tokenizer, files: ModelFiles) -> dict[str, Any]:
    """Tokens, their kinds and the special ids."""
    rows = files.config.vocab_size
    vocab: dict[str, int] = whole["model"].get("vocab") or {}
    if not isinstance(vocab, dict):
        raise TokenizerError(f"{source.path}: only BPE vocabularies can be written to GGUF")
    tokens = [f"[PAD{index}]" for index in range(rows)]
    kinds = np.full(rows, TOKEN_UNUSED, dtype=np.int32)
    for text, token_id in vocab.items():
        tokens[token_id], kinds[token_id] = text, TOKEN_NORMAL
    if whole["model"].get("byte_fallback"):
        for byte in range(256):
            if (token_id := vocab.get(f"<0x{byte:02X}>", -1)) >= 0:
                kinds[token_id] = TOKEN_BYTE
    for added in whole.get("added_tokens") or ():
        token_id, text = added["id"], added["content"]
        tokens[token_id] = text
        kinds[token_id] = TOKEN_CONTROL if added.get("special") or looks_like_marker(text) else TOKEN_USER_DEFINED
    keys: dict[str, Any] = {"tokens": tokens, "token_type": kinds, "add_bos_token": own.add_bos}
    ids = {text: token_id for token_id, text in enumerate(tokens)}
    named = {name: ids[text] for name, text in own.special_texts.items() if text in ids}
    unknown = whole["model"].get("unk_token")
    if isinstance(unknown, str) and unknown in ids:
        keys["unknown_token_id"] = ids[unknown]
        kinds[ids[unknown]] = TOKEN_UNKNOWN
    if own.bos_id is not None:
        keys["bos_token_id"] = own.bos_id
    if "pad_token" in named:
        keys["padding_token_id"] = named["pad_token"]
    ends = sorted(own.eos_ids | source.eos_ids, key=lambda token_id: (token_id != named.get("eos_token"), token_id))
    for key, token_id in zip(("eos_token_id", "eot_token_id", "eom_token_id"), ends, strict=False):
        keys[key] = token_id
    return keys


def _candidates(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What is added to the common keys, likely ones first."""
    model = whole["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model.get("merges") or ()]
    if model.get("byte_fallback"):
        # A piece's score is the rank of the merge that makes it: the best is merged first, as merges are.
        scores = np.full(len(model["vocab"]) + len(whole.get("added_tokens") or ()), -1e6, dtype=np.float32)
        ranks: dict[str, int] = {}
        for rank, merge in enumerate(model.get("merges") or ()):
            pair = merge.split(" ") if isinstance(merge, str) else merge
            ranks.setdefault("".join(pair), rank)
        for text, rank in ranks.items():
            if text in model["vocab"]:
                scores[model["vocab"][text]] = -rank
        for prefix in (False, True):
            yield {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": prefix}
        return
    seen = []
    for name in known_names():
        rule = split_rule(name)
        if rule in seen or rule.ignore_merges != bool(model.get("ignore_merges")):
            continue
        seen.append(rule)
        yield {"model": "gpt2", "pre": name, "merges": merges}
