"""Builds a tokenizer from a Hugging Face `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer

from lpx.errors import TokenizerError
from lpx.model.special_tokens import Marker, looks_like_marker
from lpx.model.tokenizer import Vocabulary
from lpx.model.tokenizer_source import HfTokenizerSource

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")


def build_from_json(source: HfTokenizerSource) -> Vocabulary:
    """Build what the file describes, except that text never matches control tokens (`Tokenizer.split_markers` does).

    Raises:
        TokenizerError: unreadable, inconsistent, or a kind of vocabulary that is not supported.
    """
    head, model_text = _read(source.path)
    added = _added_tokens(head, source.path)
    control = {t["id"]: t for t in added if t["special"] or looks_like_marker(t["content"])}
    words = [t for t in added if t["id"] not in control]

    flagged = [{**t, "special": t["id"] in control} for t in added]
    plain = {**head, "added_tokens": flagged, "post_processor": None, "truncation": None, "padding": None}
    core = _parse(plain, model_text, source.path)
    core.encode_special_tokens = True  # as text
    for token in added:
        if core.token_to_id(token["content"]) != token["id"]:
            raise TokenizerError(
                f"{source.path}: added token {token['content']!r} has the id {token['id']}, but its place in the "
                f"vocabulary is {core.token_to_id(token['content'])}."
            )
    inner_core = core
    if any(m.get("prepend_scheme") == "first" for m in steps_of(head.get("pre_tokenizer"), "Metaspace")):
        inner_core = _without_prefix(core, plain)

    texts = _texts(core, source.path)
    named = _named_ids(source, texts)
    bos_id = named.get("bos_token", source.bos_id)
    eos_ids = source.eos_ids | ({named["eos_token"]} if "eos_token" in named else set())
    for token_id in (i for i in (bos_id, *eos_ids) if i is not None and i not in control and 0 <= i < len(texts)):
        control[token_id] = {"id": token_id, "content": texts[token_id] or "", "lstrip": False, "rstrip": False}
    encoding, byte_tokens = _decoding(head, source.path)
    prefix_space = any(True for _ in steps_of(head.get("normalizer"), "Prepend")) or any(
        m.get("prepend_scheme", "always") != "never" for m in steps_of(head.get("pre_tokenizer"), "Metaspace")
    )
    return Vocabulary(
        core=core,
        inner_core=inner_core,
        texts=texts,
        encoding=encoding,
        markers=[Marker(t["id"], t["content"], t["lstrip"], t["rstrip"]) for t in control.values()],
        literal=frozenset(t["id"] for t in words),
        byte_tokens=byte_tokens,
        bos_id=bos_id,
        eos_ids=frozenset(eos_ids),
        add_bos=_adds_bos(source, head, bos_id),
        prefix_space=prefix_space,
        vocab_rows=source.vocab_rows,
        special_texts={name: texts[i] or "" for name, i in named.items()},
    )


def _read(path: Path) -> tuple[dict[str, Any], str]:
    """Return everything before the key `model` as data, and the rest of the file, from the model on, as text.

    The model makes up almost all of the file (17 MB for Llama 3), and only the `tokenizers` library needs to read it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from None
    decoder = json.JSONDecoder()
    head: dict[str, Any] = {}
    try:
        at = _skip_space(text, 0)
        if text[at : at + 1] != "{":
            raise ValueError("it is not a JSON object")
        at = _skip_space(text, at + 1)
        while text[at : at + 1] == '"':
            key, at = decoder.raw_decode(text, at)
            at = _skip_space(text, at)
            if text[at : at + 1] != ":":
                raise ValueError(f"no value after {key!r}")
            at = _skip_space(text, at + 1)
            if key == "model":
                if not set(head) >= {"added_tokens", "pre_tokenizer", "decoder"}:
                    break
                return head, text[at:]
            if key in head:
                raise ValueError(f"{key!r} comes twice")
            head[key], at = decoder.raw_decode(text, at)
            at = _skip_space(text, at)
            if text[at : at + 1] == ",":
                at = _skip_space(text, at + 1)
        # Keys in another order than the library writes them.
        whole = json.loads(text)
        if not isinstance(whole, dict) or "model" not in whole:
            raise ValueError("it has no 'model'")
        model = whole.pop("model")
        return whole, json.dumps(model, ensure_ascii=False) + "}"
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not a tokenizer.json: {error}") from None


def _skip_space(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\n", "\r", "\t"):
        at += 1
    return at


def _added_tokens(head: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    tokens: list[dict[str, Any]] = []
    ids: set[int] = set()
    contents: set[str] = set()
    for entry in head.get("added_tokens") or ():
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), int):
            raise TokenizerError(f"{path}: added_tokens has an entry without an id: {entry!r}.")
        content = entry.get("content")
        if not isinstance(content, str) or not content or entry["id"] < 0:
            raise TokenizerError(f"{path}: added token {entry['id']} has no text or a negative id.")
        if entry["id"] in ids or content in contents:
            raise TokenizerError(f"{path}: added token {content!r} ({entry['id']}) is listed twice.")
        ids.add(entry["id"])
        contents.add(content)
        flags = {k: entry.get(k) is True for k in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        tokens.append({"id": entry["id"], "content": content, **flags})
    return tokens


def _parse(head: Mapping[str, Any], model_text: str, path: Path) -> Tokenizer:
    text = json.dumps(head, ensure_ascii=False)[:-1] + ', "model": ' + model_text
    try:
        return Tokenizer.from_str(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare exceptions, and panics that are not even those
        raise TokenizerError(f"{path} cannot be used: {error}") from None


def _without_prefix(core: Tokenizer, head: Mapping[str, Any]) -> Tokenizer:
    """Return a tokenizer that shares the model of `core`, but puts no space before the first word."""
    changed = json.loads(json.dumps(head["pre_tokenizer"]))
    for step in steps_of(changed, "Metaspace"):
        step["prepend_scheme"] = "never"
    empty_model = {"type": "BPE", "vocab": {}, "merges": []}
    parts = {"version": "1.0", "added_tokens": [], "pre_tokenizer": changed, "model": empty_model}
    inner = Tokenizer(core.model)
    inner.normalizer = core.normalizer
    inner.pre_tokenizer = Tokenizer.from_str(json.dumps(parts)).pre_tokenizer
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    inner.add_tokens([AddedToken(t["content"], **{k: t[k] for k in flags}) for t in head["added_tokens"]])
    inner.encode_special_tokens = True
    return inner


def steps_of(part: object, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of one type in a normalizer, pre-tokenizer or decoder, through its sequences."""
    if not isinstance(part, dict):
        return
    if part.get("type") == kind:
        yield part
    for key in ("normalizers", "pretokenizers", "decoders"):
        for step in part.get(key) or ():
            yield from steps_of(step, kind)


def _texts(core: Tokenizer, path: Path) -> list[str | None]:
    vocab = core.get_vocab(with_added_tokens=True)
    size = max(vocab.values(), default=-1) + 1
    if size > 4 * len(vocab) + 65536:
        raise TokenizerError(f"{path}: token ids go up to {size - 1}, but there are only {len(vocab)} tokens.")
    texts: list[str | None] = [None] * size
    for text, token_id in vocab.items():
        if texts[token_id] is not None:
            raise TokenizerError(f"{path}: id {token_id} stands for both {texts[token_id]!r} and {text!r}.")
        texts[token_id] = text
    return texts


def _named_ids(source: HfTokenizerSource, texts: list[str | None]) -> dict[str, int]:
    """`bos_token` and so on -> id, from the two small JSON files."""
    wanted: dict[str, str] = {}
    for name in _NAMED:
        for data in (source.special_tokens_map, source.tokenizer_config):  # the latter wins
            value = data.get(name)
            content = value.get("content") if isinstance(value, Mapping) else value
            if isinstance(content, str):
                wanted[name] = content
    if not wanted:
        return {}
    by_text = {text: i for i, text in enumerate(texts) if text is not None}
    return {name: by_text[content] for name, content in wanted.items() if content in by_text}


def _adds_bos(source: HfTokenizerSource, head: Mapping[str, Any], bos_id: int | None) -> bool:
    stated = source.tokenizer_config.get("add_bos_token")
    if isinstance(stated, bool):
        return stated
    processor = head.get("post_processor")
    steps = processor.get("processors") or [processor] if isinstance(processor, dict) else []
    for step in steps:
        if isinstance(step, dict) and step.get("type") == "TemplateProcessing":
            first = next(iter(step.get("single") or ()), None)
            name = first.get("SpecialToken", {}).get("id") if isinstance(first, dict) else None
            tokens = step.get("special_tokens") or {}
            return name in tokens and bos_id in (tokens[name].get("ids") or ())
    return False


def _decoding(head: Mapping[str, Any], path: Path) -> tuple[Literal["byte-level", "sentencepiece"], bool]:
    decoder = head.get("decoder")
    if next(steps_of(decoder, "ByteLevel"), None) is not None:
        return "byte-level", False
    byte_tokens = next(steps_of(decoder, "ByteFallback"), None) is not None
    if byte_tokens or next(steps_of(decoder, "Metaspace"), None) is not None:
        return "sentencepiece", byte_tokens
    kind = decoder.get("type") if isinstance(decoder, dict) else None
    raise TokenizerError(
        f"{path}: unsupported decoder {kind!r}; supported are byte-level and SentencePiece-style vocabularies."
    )
