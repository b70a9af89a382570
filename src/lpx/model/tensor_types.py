"""The encodings that weights come in: GGML type numbers, their names and block sizes."""

from __future__ import annotations

from dataclasses import dataclass

from lpx.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class TensorType:
    """`block_values` values of a row are stored together in `block_bytes` bytes."""

    name: str
    block_values: int
    block_bytes: int

    def row_bytes(self, values: int) -> int:
        """Bytes of a row of `values` values, which must be a multiple of the block."""
        return values // self.block_values * self.block_bytes


TYPES: dict[str, TensorType] = {
    kind.name: kind
    for kind in (
        TensorType("F32", 1, 4),
        TensorType("F16", 1, 2),
        TensorType("BF16", 1, 2),
        TensorType("Q4_0", 32, 18),
        TensorType("Q4_1", 32, 20),
        TensorType("Q5_0", 32, 22),
        TensorType("Q5_1", 32, 24),
        TensorType("Q8_0", 32, 34),
        TensorType("Q2_K", 256, 84),
        TensorType("Q3_K", 256, 110),
        TensorType("Q4_K", 256, 144),
        TensorType("Q5_K", 256, 176),
        TensorType("Q6_K", 256, 210),
        TensorType("IQ4_NL", 32, 18),
        TensorType("IQ4_XS", 256, 136),
    )
}

# Numbers of ggml's type enumeration; those without an entry in TYPES are known by name only, to refuse them by name.
GGML_TYPE_NAMES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    4: "Q4_2",
    5: "Q4_3",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    34: "TQ1_0",
    35: "TQ2_0",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    39: "MXFP4",
    40: "NVFP4",
}


def ggml_type(number: int, where: str) -> TensorType:
    """The type of a GGML number; `where` names the tensor. Raises UnsupportedModelError for one that is not read."""
    name = GGML_TYPE_NAMES.get(number)
    if name is None:
        raise UnsupportedModelError(f"{where} has the unknown GGML type {number}; LPX reads {', '.join(TYPES)}")
    kind = TYPES.get(name)
    if kind is None:
        raise UnsupportedModelError(
            f"{where} has type {name}, which LPX cannot read. Use a file quantized to one of {', '.join(TYPES)}"
        )
    return kind
