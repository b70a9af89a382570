"""How a model wants the hidden states of a text made into one embedding, as its files say.

Models that say nothing are generating ones: the mean over all tokens is what their users expect of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lpx.errors import ModelFileError, UnsupportedModelError
from lpx.model.safetensors_reader import read_json

PoolingKind = Literal["mean", "first", "last"]

_MAX_TOKENIZER_BYTES = 128_000_000
# GGUF's `<architecture>.pooling_type`; 0 is "none", which leaves the choice to us, and 4 ranks instead of embedding.
_GGUF_KINDS: dict[int, PoolingKind] = {0: "mean", 1: "mean", 2: "first", 3: "last"}
_FOLDER_KINDS: dict[str, PoolingKind] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
}


@dataclass(frozen=True, slots=True)
class Pooling:
    """What is done for an embedding."""

    kind: PoolingKind = "mean"  # of which tokens the final hidden states are averaged
    end_ids: tuple[int, ...] = ()  # behind every text


def pooling_from_gguf(metadata: Mapping[str, Any], eos_id: int | None, adds_eos: bool, where: str) -> Pooling:
    """Raises UnsupportedModelError for a kind of pooling that gives no embedding."""
    key = f"{metadata.get('general.architecture')}.pooling_type"
    value = metadata.get(key, 0)
    kind = None if isinstance(value, bool) or not isinstance(value, int) else _GGUF_KINDS.get(value)
    if kind is None:
        raise UnsupportedModelError(f"{where}: {key} = {value!r:.40} is not supported; 0 to 3 are")
    return Pooling(kind, (eos_id,) if adds_eos and eos_id is not None else ())


def pooling_from_folder(path: Path) -> Pooling:
    """What a sentence-transformers folder says in `1_Pooling/config.json`, and what its tokenizer puts behind a text.

    Raises ModelFileError, or UnsupportedModelError for another kind of pooling.
    """
    file = path / "1_Pooling" / "config.json"
    if not file.exists():
        return Pooling()
    values = read_json(file)
    modes = [key for key, value in values.items() if key.startswith("pooling_mode_") and value is True]
    if len(modes) != 1 or modes[0] not in _FOLDER_KINDS:
        raise UnsupportedModelError(
            f"{file}: pools by {', '.join(sorted(modes)) or 'nothing'}; supported is one of {', '.join(_FOLDER_KINDS)}"
        )
    return Pooling(_FOLDER_KINDS[modes[0]], _trailing_ids(path / "tokenizer.json"))


def _trailing_ids(file: Path) -> tuple[int, ...]:
    """Ids of the special tokens that the post-processor of a tokenizer.json puts behind a single text."""
    processor = read_json(file, _MAX_TOKENIZER_BYTES).get("post_processor") or {}
    parts = processor.get("processors", [processor]) if isinstance(processor, dict) else []
    for part in parts if isinstance(parts, list) else []:
        if not isinstance(part, dict) or part.get("type") != "TemplateProcessing":
            continue
        try:
            single = part["single"]
            behind = next(i for i, piece in enumerate(single) if "Sequence" in piece) + 1
            names = [piece["SpecialToken"]["id"] for piece in single[behind:]]
            ids = [token_id for name in names for token_id in part["special_tokens"][name]["ids"]]
        except (KeyError, TypeError, StopIteration):
            raise ModelFileError(f"{file}: the post_processor cannot be understood") from None
        if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
            raise ModelFileError(f"{file}: the post_processor names ids that are no token ids")
        return tuple(ids)
    return ()
