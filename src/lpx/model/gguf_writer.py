"""Writing GGUF files, version 3: metadata, then tensors one after the other, whole at the end or not there.

Nothing large is held: a tensor gives its bytes in pieces, and what they must come to follows from its type and shape.
Names of keys and tensors are the caller's business.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpx.errors import ModelFileError
from lpx.model.tensor_types import GGML_TYPE_NAMES, TensorType

_VERSION = 3
_ALIGNMENT = 32
_MOST_NAME_BYTES = 63  # readers keep 64 with the end mark

_BOOL, _STRING, _ARRAY = 7, 8, 9
_FORMATS = {
    "UINT8": (0, "<B"),
    "INT8": (1, "<b"),
    "UINT16": (2, "<H"),
    "INT16": (3, "<h"),
    "UINT32": (4, "<I"),
    "INT32": (5, "<i"),
    "FLOAT32": (6, "<f"),
    "UINT64": (10, "<Q"),
    "INT64": (11, "<q"),
    "FLOAT64": (12, "<d"),
}
_NUMBER_OF_DTYPE = {
    "uint8": 0,
    "int8": 1,
    "uint16": 2,
    "int16": 3,
    "uint32": 4,
    "int32": 5,
    "float32": 6,
    "uint64": 10,
    "int64": 11,
    "float64": 12,
}
_TYPE_NUMBERS = {name: number for number, name in GGML_TYPE_NAMES.items()}


@dataclass(frozen=True, slots=True)
class Typed:
    """A number with its type in the file by name, such as `Typed("UINT64", 4096)`, where the usual one will not do."""

    type: str
    value: int | float


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor to write. `shape` is row-major: [out, in] for a matrix; rows hold whole blocks of the type."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    data: Callable[[], Iterable[bytes | memoryview | NDArray[Any]]]  # its bytes, in pieces, when their turn comes

    @property
    def nbytes(self) -> int:
        return prod(self.shape[:-1]) * self.type.row_bytes(self.shape[-1])


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[GgufTensor],
    *,
    alignment: int = _ALIGNMENT,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write the file at `path`, replacing one that is there in the moment when all of it is on the disk.

    Metadata values are bool, int (UINT32; INT32 below zero; 64 bits beyond), float (FLOAT32), str, lists of str, NumPy
    arrays of numbers or bool, and `Typed`. `progress` is told the bytes of tensors. Raises ModelFileError for what the
    format cannot hold or a tensor whose data is not what its shape says, and OSError for what the disk refuses.
    """
    values = dict(metadata)
    if alignment != _ALIGNMENT:
        values["general.alignment"] = alignment
    head = _head(values, tensors, alignment)
    total = sum(tensor.nbytes for tensor in tensors)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with scratch.open("wb") as file:
            file.write(head + bytes(-len(head) % alignment))
            done = 0
            for tensor in tensors:
                written = 0
                for piece in tensor.data():
                    view = memoryview(np.ascontiguousarray(piece).data if isinstance(piece, np.ndarray) else piece)
                    view = view.cast("B")
                    file.write(view)
                    written += view.nbytes
                    if progress is not None:
                        progress(done + written, total)
                if written != tensor.nbytes:
                    raise ModelFileError(
                        f"tensor {tensor.name!r} of type {tensor.type.name} and shape {list(tensor.shape)} takes "
                        f"{tensor.nbytes} bytes, and {written} came"
                    )
                file.write(bytes(-written % alignment))
                done += written
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise


def _head(values: Mapping[str, Any], tensors: Sequence[GgufTensor], alignment: int) -> bytes:
    if alignment < 8 or alignment & (alignment - 1):
        raise ModelFileError(f"an alignment must be a power of two from 8 on, not {alignment}")
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise ModelFileError("two tensors have the same name")
    head = bytearray(b"GGUF" + struct.pack("<IQQ", _VERSION, len(tensors), len(values)))
    for key, value in values.items():
        head += _string(key) + _value(key, value)
    offset = 0
    for tensor in tensors:
        if len(tensor.name.encode()) > _MOST_NAME_BYTES or not 1 <= len(tensor.shape) <= 4:
            raise ModelFileError(f"tensor {tensor.name!r} of shape {list(tensor.shape)} does not fit the format")
        if tensor.shape[-1] % tensor.type.block_values:
            raise ModelFileError(
                f"tensor {tensor.name!r}: rows of {tensor.shape[-1]} values are no whole blocks of {tensor.type.name}"
            )
        head += _string(tensor.name) + struct.pack("<I", len(tensor.shape))
        head += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))  # the file counts from the innermost
        head += struct.pack("<IQ", _TYPE_NUMBERS[tensor.type.name], offset)
        offset += tensor.nbytes + -tensor.nbytes % alignment
    return bytes(head)


def _string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _value(key: str, value: Any) -> bytes:
    """The number of the type and the bytes of a metadata value."""
    if isinstance(value, Typed):
        return _number(value.type, value.value)
    if isinstance(value, bool | np.bool_):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int | np.integer):
        number = int(value)
        if number < 0:
            return _number("INT32" if number >= -(2**31) else "INT64", number)
        return _number("UINT32" if number < 2**32 else "UINT64", number)
    if isinstance(value, float | np.floating):
        return _number("FLOAT32", float(value))
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))
    if isinstance(value, np.ndarray) and value.ndim == 1:
        if value.dtype == np.bool_:
            return struct.pack("<IIQ", _ARRAY, _BOOL, len(value)) + value.astype(np.uint8).tobytes()
        kind = _NUMBER_OF_DTYPE.get(value.dtype.name)
        if kind is not None:
            return struct.pack("<IIQ", _ARRAY, kind, len(value)) + value.astype(value.dtype.newbyteorder("<")).tobytes()
    raise ModelFileError(f"{key}: GGUF has no type for {type(value).__name__} {value!r:.80}")


def _number(kind: str, value: int | float) -> bytes:
    number, layout = _FORMATS[kind]
    return struct.pack("<I", number) + struct.pack(layout, value)
