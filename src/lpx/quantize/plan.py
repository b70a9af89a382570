"""Which type each tensor gets: the scheme's, more for what is sensitive, another where rows are no whole blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from lpx.errors import ConfigError
from lpx.model.tensor_types import TYPES
from lpx.quantize.source import SourceTensor

# What llama.cpp's `general.file_type` calls a file in which most tensors have the scheme's type.
FILE_TYPES = {"f16": 1, "q8": 7, "q6": 18, "q5": 16, "q4": 14, "mixed": 15}
SCHEMES = tuple(FILE_TYPES)

_BASE = {"f16": "F16", "q8": "Q8_0", "q6": "Q6_K", "q5": "Q5_K", "q4": "Q4_K", "mixed": "Q4_K"}
_HEAD = _BASE | dict.fromkeys(("q5", "q4", "mixed"), "Q6_K")
_SENSITIVE = "Q6_K"  # of `mixed`
# The next type with blocks of 32, for rows that are no multiple of 256; llama.cpp's choice, so that sizes agree.
_BLOCKS_OF_32 = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """What becomes of a tensor of the source."""

    tensor: SourceTensor
    type: str  # GGML type in the new file
    reason: str  # in a few words
    fallback_from: str | None = None  # the type that its rows do not allow

    @property
    def nbytes(self) -> int:
        return prod(self.tensor.shape[:-1]) * TYPES[self.type].row_bytes(self.tensor.shape[-1])


def plan_types(tensors: Sequence[SourceTensor], scheme: str, layers: int, *, tied_head: bool) -> list[PlannedTensor]:
    """One entry a tensor, in their order. Raises ConfigError for a scheme that there is not.

    Matrices get the scheme's type. The output head, or the embedding that is the head too, errs in every token: it has
    6 bits at least. In `mixed`, so have the values of attention and the second feed-forward matrix, whose errors go
    straight into the residual stream, in the first and the last eighth of the layers and in every third between
    (llama.cpp's Q4_K_M has the same rule). Vectors are kept as F32: they are small, and every value of a layer
    depends on them.
    """
    if scheme not in SCHEMES:
        raise ConfigError(f"there is no scheme {scheme!r}; there are {', '.join(SCHEMES)}")
    return [_plan(tensor, *_wanted(tensor, scheme, layers, tied_head)) for tensor in tensors]


def plan_given(tensors: Sequence[SourceTensor], types: Mapping[str, str]) -> list[PlannedTensor]:
    """Types by name of the tensor, as another file has them. Raises ConfigError for a tensor without one."""
    if missing := [tensor.name for tensor in tensors if tensor.name not in types]:
        raise ConfigError(f"there is no type for the tensor {missing[0]}")
    return [_plan(tensor, types[tensor.name], "given") for tensor in tensors]


def _wanted(tensor: SourceTensor, scheme: str, layers: int, tied_head: bool) -> tuple[str, str]:
    if len(tensor.shape) == 1:
        return "F32", "vector"
    if tensor.role is None:
        return tensor.type, "kept"
    if tensor.role == "head" or (tensor.role == "embedding" and tied_head):
        return _HEAD[scheme], "output head"
    if scheme == "mixed" and tensor.role in ("v", "qkv", "down") and _is_sensitive(tensor.layer, layers):
        return _SENSITIVE, "sensitive"
    return _BASE[scheme], "scheme"


def _is_sensitive(layer: int, layers: int) -> bool:
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _plan(tensor: SourceTensor, wanted: str, reason: str) -> PlannedTensor:
    columns = tensor.shape[-1]
    if wanted in _FLOATS or columns % TYPES[wanted].block_values == 0:
        return PlannedTensor(tensor, wanted, reason)
    smaller = _BLOCKS_OF_32.get(wanted, wanted)
    found = smaller if columns % TYPES[smaller].block_values == 0 else "F16"
    return PlannedTensor(tensor, found, reason, fallback_from=wanted)
