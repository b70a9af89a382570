"""What weights take in each precision, matrix by matrix, as LPX packs them and as a file holds them."""

from __future__ import annotations

from dataclasses import dataclass

from lpx.model.config import ModelConfig
from lpx.model.tensor_types import TYPES

Matrix = tuple[str, str, tuple[int, int]]  # canonical name, type name, [out, in]

_BLOCK = 256  # values of a block of the K types; rows of other lengths get the type behind it
_FALLBACKS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_LAYER = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True, slots=True)
class Precision:
    """One way to keep weights, named after what most of them are."""

    name: str
    most: str  # type of most matrices
    head: str  # of the head, or of an embedding that is the head too
    some: str  # of values and down projections of every second layer, which suffer most


# q5 and q4 are mixed as the usual files Q5_K_M and Q4_K_M are.
PRECISIONS: tuple[Precision, ...] = (
    Precision("f16", "F16", "F16", "F16"),
    Precision("q8", "Q8_0", "Q8_0", "Q8_0"),
    Precision("q6", "Q6_K", "Q6_K", "Q6_K"),
    Precision("q5", "Q5_K", "Q6_K", "Q6_K"),
    Precision("q4", "Q4_K", "Q6_K", "Q6_K"),
)


def matrix_shapes(config: ModelConfig) -> list[tuple[str, tuple[int, int]]]:
    """Canonical name and [out, in] of every matrix that a model of this config has."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    of_layer = {
        "q": (q_rows, hidden),
        "k": (kv_rows, hidden),
        "v": (kv_rows, hidden),
        "o": (hidden, q_rows),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    shapes = [("embedding", (config.vocab_size, hidden))]
    if not config.tied_head:
        shapes.append(("head", (config.vocab_size, hidden)))
    for layer in range(config.num_layers):
        shapes += [(f"layers.{layer}.{name}", of_layer[name]) for name in _LAYER]
    return shapes


def matrices_at(config: ModelConfig, precision: Precision) -> list[Matrix]:
    """Every matrix with the type that it would have."""
    return [(name, _type_of(name, shape, config, precision), shape) for name, shape in matrix_shapes(config)]


def _type_of(name: str, shape: tuple[int, int], config: ModelConfig, precision: Precision) -> str:
    kind = precision.most
    if name == ("embedding" if config.tied_head else "head"):
        kind = precision.head
    elif name.endswith((".v", ".down")) and _has_more_bits(int(name.split(".")[1]), config.num_layers):
        kind = precision.some
    return kind if shape[1] % _BLOCK == 0 else _FALLBACKS.get(kind, kind)


def _has_more_bits(layer: int, layers: int) -> bool:
    """The first and the last eighth, and every third between: how mixed K files are usually made."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def parameter_count(config: ModelConfig) -> int:
    """Of the matrices, which are all but a thousandth of a model."""
    return sum(rows * columns for _, (rows, columns) in matrix_shapes(config))


def in_whole_blocks(matrices: list[Matrix]) -> bool:
    """Whether rows are as long as their types want it; no file has others."""
    return all(columns % TYPES[kind].block_values == 0 for _, kind, (_, columns) in matrices)


def packed_bytes(matrices: list[Matrix], config: ModelConfig) -> int:
    """In the memory of LPX."""
    from lpx import _native
    from lpx.runtime.memory import splits_head

    split = ("embedding" if config.tied_head else "head") if splits_head(config) else ""
    return sum(
        _native.PackedMatrix.packed_bytes(kind, *shape, 0, split=name == split) for name, kind, shape in matrices
    )


def stored_bytes(matrices: list[Matrix]) -> int:
    """In a file, and about what an engine on a card takes."""
    total = 0
    for _, kind, (rows, columns) in matrices:
        stored = TYPES[kind]
        total += rows * -(-columns // stored.block_values) * stored.block_bytes
    return total


def read_share(matrices: list[Matrix]) -> float:
    """The part of the weights that one token reads: an embedding that is no head is looked up, not read."""
    whole = stored_bytes(matrices)
    if not any(name == "head" for name, _, _ in matrices):
        return 1.0
    return 1 - stored_bytes([matrix for matrix in matrices if matrix[0] == "embedding"]) / whole
