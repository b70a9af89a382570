"""A strict reader of safetensors files, single or sharded.

The header is checked in full before any tensor is touched: its length, its JSON (no key twice), each type, shape and
range, and that the ranges cover the data without gap or overlap. Format: https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lpx.errors import ModelFileError, UnsupportedModelError
from lpx.model.mapped_file import MappedFile, StoredTensor
from lpx.model.tensor_types import TYPES, TensorType

_MAX_HEADER_BYTES = 100_000_000
_MAX_INDEX_BYTES = 100_000_000
_MAX_DIMS = 8
_MAX_DIM = 1 << 48
# Types of the format that LPX cannot compute with; bytes a value, for the layout checks (F4 and F6 pack: unchecked).
_OTHER_TYPES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "I32": 4, "U32": 4,
    "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
_FLOATS = {name: TYPES[name] for name in ("F32", "F16", "BF16")}
_INTEGERS = {"I32": TensorType("I32", 1, 4)}


def read_safetensors(path: Path, *, integers: bool = False) -> tuple[MappedFile, dict[str, StoredTensor]]:
    """Map one file and check its header; with `integers`, I32 is a type like others.

    The caller closes the mapping. Raises ModelFileError.
    """
    file = MappedFile(path)
    try:
        return file, _read_header(file, _FLOATS | _INTEGERS if integers else _FLOATS)
    except BaseException:
        file.close()
        raise


def _read_header(file: MappedFile, readable: Mapping[str, TensorType]) -> dict[str, StoredTensor]:
    path = file.path
    if file.size < 8:
        raise ModelFileError(f"{path}: cut off: {file.size} bytes are no safetensors file")
    length = int.from_bytes(file.map[:8], "little")
    if length > _MAX_HEADER_BYTES:
        raise ModelFileError(f"{path}: the header claims {length} bytes, more than the limit of {_MAX_HEADER_BYTES}")
    if length > file.size - 8:
        raise ModelFileError(f"{path}: the header claims {length} bytes, but {file.size - 8} are left in the file")
    header = load_json(file.map[8 : 8 + length], path, "the header")
    start = 8 + length
    data_bytes = file.size - start
    tensors: dict[str, StoredTensor] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
                raise ModelFileError(f"{path}: __metadata__ must map strings to strings")
            continue
        tensors[name] = _tensor(file, name, entry, start, data_bytes, readable)
    end = start
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset < end:
            raise ModelFileError(f"{path}: tensor {tensor.name!r} overlaps the one before it in the file")
        if tensor.offset > end:
            raise ModelFileError(
                f"{path}: {tensor.offset - end} bytes before tensor {tensor.name!r} belong to no tensor"
            )
        end += tensor.nbytes
    if end != file.size:
        raise ModelFileError(f"{path}: {file.size - end} bytes at the end of the file belong to no tensor")
    return tensors


def _tensor(
    file: MappedFile, name: str, entry: Any, start: int, data_bytes: int, readable: Mapping[str, TensorType]
) -> StoredTensor:
    where = f"{file.path}: tensor {name!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ModelFileError(f"{where} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise ModelFileError(f"{where} has a dtype that is not a string")
    if dtype not in readable:
        if dtype in _OTHER_TYPES:
            raise UnsupportedModelError(
                f"{where} has dtype {dtype}. LPX reads {', '.join(_FLOATS)}, and the I32 of 4-bit AWQ and GPTQ "
                "checkpoints whose config.json has their quantization_config: use the unquantized model or a GGUF file"
            )
        raise ModelFileError(f"{where} has the unknown dtype {dtype[:40]!r}")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMS or not all(_is_count(dim, _MAX_DIM) for dim in shape):
        raise ModelFileError(f"{where} has a bad shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(value, data_bytes) for value in offsets):
        raise ModelFileError(f"{where} has data_offsets that do not lie in the {data_bytes} bytes of data")
    begin, end = offsets
    count = 1
    for dim in shape:
        count *= dim  # Python's integers do not overflow
    wanted = count * readable[dtype].block_bytes
    if begin > end or end - begin != wanted:
        raise ModelFileError(
            f"{where} has the range {begin} to {end}, but its shape {shape} and {dtype} need {wanted} bytes"
        )
    return StoredTensor(name, readable[dtype], tuple(shape), file, start + begin, wanted)


def _is_count(value: Any, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit


def shard_paths(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The safetensors files of a folder, and the index that maps tensors to file names, if there is one.

    Raises ModelFileError for an index that points outside of the folder, and for several files without an index.
    """
    index_path = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if not index_path.exists():
        if single.exists():
            return [single], None
        found = sorted(folder.glob("*.safetensors"))
        if len(found) == 1:
            return found, None
        if not found:
            raise ModelFileError(f"{folder}: there are no .safetensors files")
        names = ", ".join(path.name for path in found[:4])
        raise ModelFileError(f"{folder}: several .safetensors files ({names}), but no model.safetensors.index.json")
    index = read_json(index_path, _MAX_INDEX_BYTES)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{index_path}: weight_map is missing or empty")
    if not all(isinstance(value, str) for value in weight_map.values()):
        raise ModelFileError(f"{index_path}: weight_map must map tensor names to file names")
    return [_shard(folder, name, index_path) for name in sorted(set(weight_map.values()))], weight_map


def _shard(folder: Path, name: str, index_path: Path) -> Path:
    """A file of the folder by the name that an index gives it.

    Symbolic links are followed only where they stay in the folder, or in the `blobs` of a Hugging Face cache whose
    snapshot the folder is.
    """
    if not name.endswith(".safetensors") or name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise ModelFileError(f"{index_path}: {name!r} is not the plain name of a .safetensors file in the same folder")
    path = folder / name
    if not path.exists():
        raise ModelFileError(f"{index_path}: the file {name!r} is missing from {folder}")
    real, home = path.resolve(), folder.resolve()
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    if not any(real.is_relative_to(place) for place in allowed):
        raise ModelFileError(f"{index_path}: {name!r} is a link that leads out of {folder}")
    return path


def read_shards(folder: Path, *, integers: bool = False) -> tuple[list[MappedFile], dict[str, StoredTensor]]:
    """Map all safetensors files of a folder and check them against their index; `integers` as above.

    The caller closes the mappings.
    """
    paths, index = shard_paths(folder)
    files: list[MappedFile] = []
    tensors: dict[str, StoredTensor] = {}
    try:
        for path in paths:
            file, found = read_safetensors(path, integers=integers)
            files.append(file)
            if twice := sorted(found.keys() & tensors.keys()):
                raise ModelFileError(f"{path}: tensor {twice[0]!r} is in another file of the model too")
            if index is not None:
                _check_index(index, found, path)
            tensors |= found
        if index is not None and (absent := sorted(index.keys() - tensors.keys())):
            raise ModelFileError(f"{folder}: the index names tensor {absent[0]!r}, but no file has it")
    except BaseException:
        for file in files:
            file.close()
        raise
    return files, tensors


def _check_index(index: dict[str, str], found: Iterable[str], path: Path) -> None:
    for name in found:
        if index.get(name) != path.name:
            raise ModelFileError(f"{path}: tensor {name!r} is in this file, but the index does not place it here")


def read_json(path: Path, limit: int = 16_000_000) -> dict[str, Any]:
    """A JSON object from a file of at most `limit` bytes. Raises ModelFileError."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise ModelFileError(f"{path}: {size} bytes are more than the limit of {limit}")
        return load_json(path.read_bytes(), path, "the file")
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from None


def load_json(data: bytes, path: Path, what: str) -> dict[str, Any]:
    """A JSON object, strictly: UTF-8, no key twice, no depth that the parser cannot take. Raises ModelFileError."""

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    raise ModelFileError(f"{path}: {what} has the key {key[:80]!r} twice")
                seen.add(key)
        return result

    try:
        value = json.loads(data.decode(), object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: {what} is not sound JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: {what} is not a JSON object")
    return value
