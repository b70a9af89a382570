"""Writes GGUF files for tests: small models, and broken files through the knobs of `write_gguf`.

Metadata values map to GGUF types by their Python type: bool, int (UINT32, or INT32 when negative, or 64 bits when it
does not fit), float (FLOAT32), str, and lists or NumPy arrays of one of these. `Typed` forces a type.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# GGML type name -> (type number, values in a block, bytes of a block)
TYPES: dict[str, tuple[int, int, int]] = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "IQ4_NL": (20, 32, 18),
    "IQ4_XS": (23, 256, 136),
    "BF16": (30, 1, 2),
}

_SCALARS = {
    "UINT8": (0, "<B"),
    "INT8": (1, "<b"),
    "UINT16": (2, "<H"),
    "INT16": (3, "<h"),
    "UINT32": (4, "<I"),
    "INT32": (5, "<i"),
    "FLOAT32": (6, "<f"),
    "BOOL": (7, "<?"),
    "UINT64": (10, "<Q"),
    "INT64": (11, "<q"),
    "FLOAT64": (12, "<d"),
}
_STRING = 8
_ARRAY = 9


@dataclass(frozen=True)
class Typed:
    """A metadata value with its GGUF type by name, e.g. `Typed("UINT64", 4096)`."""

    type: str
    value: Any


def _string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def _scalar_type(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "BOOL"
    if isinstance(value, int | np.integer):
        if 0 <= value < 2**32:
            return "UINT32"
        if -(2**31) <= value < 0:
            return "INT32"
        return "UINT64" if value > 0 else "INT64"
    if isinstance(value, float | np.floating):
        return "FLOAT32"
    raise TypeError(f"no GGUF type for {value!r}")


def encode_value(value: Any) -> bytes:
    """The type number and the bytes of one metadata value."""
    if isinstance(value, Typed):
        number, fmt = _SCALARS[value.type]
        if isinstance(value.value, list | tuple | np.ndarray):
            body = b"".join(struct.pack(fmt, v) for v in value.value)
            return struct.pack("<IIQ", _ARRAY, number, len(value.value)) + body
        return struct.pack("<I", number) + struct.pack(fmt, value.value)
    if isinstance(value, str | bytes):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, list | tuple | np.ndarray):
        items = list(value)
        if items and isinstance(items[0], str | bytes):
            body = b"".join(_string(item) for item in items)
            return struct.pack("<IIQ", _ARRAY, _STRING, len(items)) + body
        if any(isinstance(item, float | np.floating) for item in items):
            kind = "FLOAT32"
        elif all(isinstance(item, bool | np.bool_) for item in items) and items:
            kind = "BOOL"
        else:
            kind = "INT32"
        number, fmt = _SCALARS[kind]
        body = b"".join(struct.pack(fmt, item) for item in items)
        return struct.pack("<IIQ", _ARRAY, number, len(items)) + body
    number, fmt = _SCALARS[_scalar_type(value)]
    return struct.pack("<I", number) + struct.pack(fmt, value)


def tensor_bytes(type_name: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor of `shape` (NumPy order, rows last) in a GGML type."""
    _, block, size = TYPES[type_name]
    return int(np.prod(shape, dtype=np.int64)) // block * size


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[tuple[str, str, Sequence[int], bytes]],
    *,
    version: int = 3,
    alignment: int = 32,
) -> Path:
    """Write a GGUF file.

    `tensors` are (name, GGML type name, shape, data); the shape is in NumPy order ([out, in]) and is reversed in the
    file, as GGUF wants it. `general.alignment` is added when `alignment` is not 32.
    """
    values = dict(metadata)
    if alignment != 32:
        values.setdefault("general.alignment", alignment)
    head = bytearray(b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values)))
    for key, value in values.items():
        head += _string(key) + encode_value(value)
    offset = 0
    for name, type_name, shape, data in tensors:
        dims = list(reversed([int(d) for d in shape]))
        head += _string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        head += struct.pack("<IQ", TYPES[type_name][0], offset)
        offset += -(-len(data) // alignment) * alignment
    with path.open("wb") as file:
        file.write(head)
        file.write(b"\0" * (-len(head) % alignment))
        for _, _, _, data in tensors:
            file.write(data)
            file.write(b"\0" * (-len(data) % alignment))
    return path
