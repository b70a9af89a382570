"""A strict reader of GGUF files, versions 2 and 3, little endian.

Nothing in the file is trusted: each count, length, dimension and offset is checked against the bytes that are left
before anything is allocated for it, and whatever is wrong ends in a ModelFileError that names the key or tensor.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from lpx import _native
from lpx.errors import ModelFileError, UnsupportedModelError
from lpx.model.mapped_file import MappedFile, StoredTensor
from lpx.model.tensor_types import TensorType, ggml_type

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 16
_MAX_DIMS = 4
_MAX_KEY_BYTES = 65_535  # the format's own limit
_MAX_TENSOR_NAME_BYTES = 64  # likewise
_MAX_ARRAY_DEPTH = 4
_MIN_KEY_VALUE_BYTES = 8 + 1 + 4 + 1  # key length, one byte of key, value type, the smallest value
_MIN_TENSOR_INFO_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # name, number of dimensions, one dimension, type, offset

_BOOL = 7
_STRING = 8
_ARRAY = 9
# Value type number -> NumPy type; UINT8 0 to FLOAT64 12 without bool, string and array.
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 10: "<Q", 11: "<q", 12: "<d"}
_SCALARS: dict[int, Callable[..., tuple[Any, ...]]] = {
    kind: struct.Struct(text).unpack_from for kind, text in _FORMATS.items()
}
_SIZES = {kind: struct.calcsize(text) for kind, text in _FORMATS.items()}
_U32 = struct.Struct("<I").unpack_from
_U64 = struct.Struct("<Q").unpack_from


class GgufFile:
    """A GGUF file: its metadata and the table of its tensors.

    Metadata values are int, float, bool, str, list[str] for arrays of strings, NumPy arrays for arrays of numbers and
    bools, and lists of these for arrays of arrays. Shapes are in row-major order ([out, in]), the reverse of the
    file's own. Raises ModelFileError.
    """

    def __init__(self, path: Path) -> None:
        self.file = MappedFile(path)
        try:
            self._read()
        except BaseException:
            self.file.close()
            raise

    @property
    def path(self) -> Path:
        return self.file.path

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        size = self.file.size
        start = self.file.map[:24]
        if start[:4] != _MAGIC[: len(start)]:
            raise ModelFileError(f"{self.path}: not a GGUF file: it starts with {start[:4]!r}, not with b'GGUF'")
        if len(start) < 24:
            raise ModelFileError(f"{self.path}: cut off: {size} bytes are no whole GGUF header")
        version, num_tensors, num_values = struct.unpack_from("<IQQ", start, 4)
        if version not in _VERSIONS:
            if int.from_bytes(start[4:8], "big") in (1, *_VERSIONS):
                raise UnsupportedModelError(f"{self.path}: a big-endian GGUF file; LPX reads little-endian files only")
            raise UnsupportedModelError(f"{self.path}: GGUF version {version} is not supported, only 2 and 3 are")
        self.version: int = version
        cursor = _Cursor(self.file, 24)
        if num_values * _MIN_KEY_VALUE_BYTES > cursor.left():
            cursor.fail(f"{num_values} metadata keys cannot fit")
        if num_tensors * _MIN_TENSOR_INFO_BYTES > cursor.left():
            cursor.fail(f"{num_tensors} tensors cannot fit")
        self.metadata: dict[str, Any] = {}
        for index in range(num_values):
            key = cursor.string(f"the name of metadata key {index}", _MAX_KEY_BYTES)
            if not key:
                cursor.fail(f"metadata key {index} is empty")
            if key in self.metadata:
                cursor.fail(f"metadata key {key!r} appears twice")
            self.metadata[key] = cursor.value(f"metadata key {key!r}")
        alignment = self._alignment()
        infos = [self._tensor_info(cursor, index) for index in range(num_tensors)]
        self.file.drop(0, cursor.pos)
        data_start = -(-cursor.pos // alignment) * alignment
        self.tensors: dict[str, StoredTensor] = {}
        for name, kind, shape, offset in infos:
            if name in self.tensors:
                cursor.fail(f"tensor {name!r} appears twice")
            if offset % alignment:
                cursor.fail(f"tensor {name!r} starts at {offset}, which is no multiple of the alignment {alignment}")
            count = 1
            for dim in shape:
                count *= dim  # Python's integers do not overflow
            nbytes = kind.row_bytes(count)
            if data_start + offset + nbytes > size:
                raise ModelFileError(
                    f"{self.path}: tensor {name!r} ends at byte {data_start + offset + nbytes}, but the file has "
                    f"{size} bytes. The download is probably incomplete"
                )
            self.tensors[name] = StoredTensor(name, kind, shape, self.file, data_start + offset, nbytes)
        self._check_overlap()

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if isinstance(alignment, bool) or not isinstance(alignment, int):
            raise ModelFileError(f"{self.path}: general.alignment is not an integer")
        if not 8 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
            raise ModelFileError(
                f"{self.path}: general.alignment is {alignment}, but must be a power of two from 8 to {_MAX_ALIGNMENT}"
            )
        return alignment

    def _tensor_info(self, cursor: _Cursor, index: int) -> tuple[str, TensorType, tuple[int, ...], int]:
        name = cursor.string(f"the name of tensor {index}", _MAX_TENSOR_NAME_BYTES)
        if not name:
            cursor.fail(f"tensor {index} has an empty name")
        where = f"tensor {name!r}"
        num_dims = cursor.u32(where)
        if not 1 <= num_dims <= _MAX_DIMS:
            cursor.fail(f"{where} has {num_dims} dimensions, but must have 1 to {_MAX_DIMS}")
        dims = [cursor.u64(where) for _ in range(num_dims)]
        kind = ggml_type(cursor.u32(where), f"{self.path}: {where}")
        offset = cursor.u64(where)
        if 0 in dims:
            cursor.fail(f"{where} has a dimension of 0: {dims}")
        if dims[0] % kind.block_values:
            cursor.fail(
                f"{where} has rows of {dims[0]} values, which {kind.name} blocks of {kind.block_values} cannot hold"
            )
        return name, kind, tuple(reversed(dims)), offset

    def _check_overlap(self) -> None:
        before: StoredTensor | None = None
        for tensor in sorted(self.tensors.values(), key=lambda t: t.offset):
            if before is not None and tensor.offset < before.offset + before.nbytes:
                raise ModelFileError(f"{self.path}: tensors {before.name!r} and {tensor.name!r} overlap in the file")
            before = tensor


class _Cursor:
    """Reads values one after the other, each after a check that its bytes are there."""

    def __init__(self, file: MappedFile, pos: int) -> None:
        self._path = file.path
        self._map = file.map
        self._data = file.view(0, file.size, "the header")
        self._size = file.size
        self.pos = pos

    def left(self) -> int:
        return self._size - self.pos

    def fail(self, what: str) -> NoReturn:
        raise ModelFileError(f"{self._path}: {what} (at byte {self.pos} of {self._size})")

    def _need(self, count: int, what: str) -> int:
        """Position of the next `count` bytes, which are then behind the cursor."""
        pos = self.pos
        if count > self._size - pos:
            self.fail(
                f"{what} needs {count} more bytes, but {self._size - pos} are left: the file is cut off or broken"
            )
        self.pos = pos + count
        return pos

    def u32(self, what: str) -> int:
        value: int = _U32(self._map, self._need(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64(self._map, self._need(8, what))[0]
        return value

    def string(self, what: str, limit: int | None = None) -> str:
        length = self.u64(what)
        if limit is not None and length > limit:
            self.fail(f"{what} has {length} bytes, but at most {limit} are allowed")
        pos = self._need(length, what)
        try:
            return self._map[pos : pos + length].decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8")

    def value(self, what: str) -> Any:
        kind = self.u32(what)
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self._array(what, 1)
        if kind == _BOOL:
            byte = self._map[self._need(1, what)]
            if byte > 1:
                self.fail(f"{what} is a bool with the value {byte}")
            return bool(byte)
        if kind not in _SCALARS:
            self.fail(f"{what} has the unknown type {kind}")
        return _SCALARS[kind](self._map, self._need(_SIZES[kind], what))[0]

    def _array(self, what: str, depth: int) -> Any:
        kind = self.u32(what)
        count = self.u64(what)
        if kind == _STRING:
            return self._strings(count, what)
        if kind == _ARRAY:
            if depth >= _MAX_ARRAY_DEPTH:
                self.fail(f"{what} nests arrays more than {_MAX_ARRAY_DEPTH} deep")
            if count * 12 > self.left():
                self.fail(f"{what} is an array of {count} arrays, more than the rest of the file can hold")
            return [self._array(what, depth + 1) for _ in range(count)]
        dtype = np.dtype(np.uint8) if kind == _BOOL else _NUMBERS.get(kind)
        if dtype is None:
            self.fail(f"{what} is an array of the unknown type {kind}")
        pos = self._need(count * dtype.itemsize, what)
        values = np.frombuffer(self._map[pos : self.pos], dtype=dtype)
        if kind != _BOOL:
            return values
        if count and values.max() > 1:
            self.fail(f"{what} is an array of bools with other values than 0 and 1")
        return values.astype(np.bool_)

    def _strings(self, count: int, what: str) -> list[str]:
        """An array of strings: a quarter of a million in a vocabulary, so the loop is native."""
        if count * 8 > self.left():
            self.fail(f"{what} is an array of {count} strings, more than the rest of the file can hold")
        strings, end = _native.read_strings(self._data, self.pos, count)
        if len(strings) < count:
            left = self._size - end
            if left < 8 or _U64(self._map, end)[0] > left - 8:
                self.fail(f"entry {len(strings)} of {count} of {what} ends beyond the end of the file")
            self.fail(f"entry {len(strings)} of {what} is not UTF-8")
        self.pos = end
        return strings
