"""Safetensors checkpoints with 4-bit weights by AWQ or GPTQ, handed out as GGML blocks without losing anything.

A weight is (code - zero) * scale, with a code of 4 bits and one scale and zero for a group of inputs of each output.
Blocks of Q4_0 hold (c - 8) * scale for 32 inputs, those of Q5_0 (c - 16) * scale with 5 bits: so where all zeros are 8,
as in symmetric checkpoints, Q4_0 holds the weights as they are, and Q5_0 holds those of every other zero.

Layouts (packages AutoGPTQ and AutoAWQ), eight values in an int32, the first in the lowest bits:

- GPTQ: `qweight` [in / 8, out] along the inputs, `qzeros` [groups, out / 8] with the zeros less one (less nothing in
  checkpoints of the format `gptq_v2`), `scales` [groups, out], `g_idx` [in] the group of each input.
- AWQ ("gemm"): `qweight` [in, out / 8] and `qzeros` [groups, out / 8] along the outputs, in the order 0 2 4 6 1 3 5 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from lpx.errors import ModelFileError, UnsupportedModelError
from lpx.model import block_packing
from lpx.model.config_values import ConfigValues
from lpx.model.mapped_file import MappedFile, StoredTensor
from lpx.model.tensor_types import TYPES

_GROUP_SIZES = (32, 64, 128)
_BLOCK = 32
_SHIFTS = np.arange(0, 32, 4, dtype=np.uint32)
# Where the values of eight neighbouring outputs lie in a word of AWQ.
_AWQ_PLACE = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])
_PARTS = ("qweight", "qzeros", "scales", "g_idx")

Words = NDArray[np.uint32]
Codes = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Int4Format:
    """What `quantization_config` says."""

    method: str  # "gptq" or "awq"
    group_size: int
    zero_offset: int  # what is added to a stored zero


def int4_format(config_json: Mapping[str, Any], where: str) -> Int4Format | None:
    """The format of a checkpoint; None for one that is not quantized. Raises UnsupportedModelError for others."""
    section = ConfigValues(config_json, where).section("quantization_config")
    if section is None:
        return None
    method = section.text("quant_method", "unknown")
    said = f"{where}: weights quantized by {method!r}"
    way_out = "Use the unquantized model, which LPX can quantize at load (--quantization), or a GGUF file"
    if method not in ("gptq", "awq"):
        raise UnsupportedModelError(f"{said} are not supported; those by 'awq' and 'gptq' are. {way_out}")
    bits = section.integer("bits", section.integer("w_bit", 4))
    if bits != 4:
        raise UnsupportedModelError(f"{said} with {bits} bits are not supported, only with 4. {way_out}")
    group = section.integer("group_size", section.integer("q_group_size", 0, low=-1), low=-1)
    if group not in _GROUP_SIZES:
        raise UnsupportedModelError(
            f"{said} in groups of {group} are not supported, only of {', '.join(map(str, _GROUP_SIZES))}. {way_out}"
        )
    if method == "awq":
        version = section.text("version", "gemm").lower()
        if version != "gemm":
            raise UnsupportedModelError(f"{said} in the layout {version!r} are not supported, only 'gemm'. {way_out}")
        return Int4Format(method, group, 0)
    layout = section.text("checkpoint_format", "gptq")
    if layout not in ("gptq", "gptq_v2"):
        raise UnsupportedModelError(
            f"{said} in the layout {layout!r} are not supported, only 'gptq' and 'gptq_v2'. {way_out}"
        )
    return Int4Format(method, group, 1 if layout == "gptq" else 0)


def unpack_checkpoint(
    found: Mapping[str, StoredTensor], form: Int4Format, where: str
) -> tuple[list[MappedFile], dict[str, StoredTensor]]:
    """The tensors with each quantized matrix as one of the name `….weight`, and the stand-ins for files that give them.

    Zeros and groups are read now, weights when they are asked for. Raises ModelFileError for parts that are missing or
    do not fit together, UnsupportedModelError for columns in another order (`desc_act`) and scales beyond float16.
    """
    stems = [name.removesuffix(".qweight") for name in found if name.endswith(".qweight")]
    if not stems:
        raise ModelFileError(f"{where}: the config says that weights are quantized by {form.method!r}, but none is")
    tensors = {name: tensor for name, tensor in found.items() if name.rpartition(".")[::2] not in _parts_of(stems)}
    for stem in stems:
        bias = tensors.get(f"{stem}.bias")
        if ".mlp." in stem and bias is not None and not bias.view().any():
            del tensors[bias.name]  # older writers gave every matrix one, if only of zeros
    for name, tensor in tensors.items():
        if tensor.type.name == "I32":
            raise ModelFileError(f"{where}: tensor {name!r} holds integers, and belongs to no quantized matrix")
    files: list[MappedFile] = []
    for stem in stems:
        matrix = _Int4Matrix(stem, found, form, where)
        files.append(matrix)
        tensors[f"{stem}.weight"] = StoredTensor(
            f"{stem}.weight", matrix.type, (matrix.rows, matrix.columns), matrix, 0, matrix.nbytes
        )
    return files, tensors


def _parts_of(stems: list[str]) -> set[tuple[str, str]]:
    return {(stem, part) for stem in stems for part in _PARTS}


class _Int4Matrix(MappedFile):
    """Stands in for a file that holds one matrix as rows of GGML blocks, which are made when they are asked for."""

    is_mapped = False

    def __init__(self, stem: str, found: Mapping[str, StoredTensor], form: Int4Format, where: str) -> None:
        self.path = Path(where)
        self.size = 0  # the file that holds the parts counts
        self._where = f"{where}: matrix {stem!r}"
        self._form = form
        self._parts = {part: found.get(f"{stem}.{part}") for part in _PARTS}
        if f"{stem}.weight" in found:
            raise ModelFileError(f"{self._where} is there twice, quantized and not")
        weight = self._part("qweight", "I32")
        gptq = form.method == "gptq"
        self.columns = weight.shape[0] * (8 if gptq else 1)
        self.rows = weight.shape[1] * (1 if gptq else 8)
        if self.rows % 8 or self.columns % form.group_size:
            self._fail(f"has {self.rows} rows of {self.columns}, no whole words and groups of {form.group_size}")
        self._groups = self.columns // form.group_size
        self._check_shape("qzeros", "I32", (self._groups, self.rows // 8))
        scales = self._part("scales", "F16", "BF16", "F32")
        self._check_shape("scales", scales.type.name, (self._groups, self.rows))
        self._check_order()
        self._scales = self._read_scales(scales)
        zeros = self._words("qzeros")
        self._zeros = (_along_rows(zeros, gptq=gptq) + form.zero_offset).astype(np.int16)  # [groups, rows]
        symmetric = bool((self._zeros == 8).all())
        self.type = TYPES["Q4_0" if symmetric else "Q5_0"]
        self.nbytes = self.rows * self.type.row_bytes(self.columns)

    def view(self, offset: int, length: int, what: str) -> NDArray[np.uint8]:
        row_bytes = self.type.row_bytes(self.columns)
        return self._rows(offset // row_bytes, (offset + length) // row_bytes)

    def drop(self, offset: int, length: int) -> None:
        for part in self._parts.values():
            if part is not None:
                part.file.drop(part.offset, part.nbytes)

    def close(self) -> None:
        """Nothing is held that the parts' files do not hold."""

    def _rows(self, begin: int, end: int) -> NDArray[np.uint8]:
        words = self._words("qweight")
        if self._form.method == "gptq":
            part = words[:, begin:end]
            codes = ((part[:, None] >> _SHIFTS[:, None]) & 15).reshape(self.columns, -1).astype(np.int16)
        else:
            first = begin // 8
            codes = _along_rows(words[:, first : -(-end // 8)], gptq=False)[:, begin - 8 * first : end - 8 * first]
        signed = codes.reshape(self._groups, -1, end - begin) - self._zeros[:, None, begin:end]
        blocks = np.ascontiguousarray(signed.reshape(self.columns, -1).T).reshape(-1, _BLOCK)
        per_group = self._form.group_size // _BLOCK
        scales = np.repeat(self._scales[:, begin:end].T, per_group, axis=1).reshape(-1)
        if self.type.name == "Q4_0":
            return block_packing.pack_q4((blocks + 8).astype(np.uint8), scales).reshape(-1)
        return block_packing.pack_q5((blocks + 16).astype(np.uint8), scales).reshape(-1)

    def _part(self, part: str, *types: str) -> StoredTensor:
        tensor = self._parts[part]
        if tensor is None:
            self._fail(f"has no {part}")
        if tensor.type.name not in types:
            self._fail(f"has {part} of type {tensor.type.name} instead of {' or '.join(types)}")
        if len(tensor.shape) != 2 and part != "g_idx":
            self._fail(f"has {part} of the shape {list(tensor.shape)}, which is no matrix")
        return tensor

    def _check_shape(self, part: str, kind: str, shape: tuple[int, ...]) -> None:
        found = self._part(part, kind).shape
        if found != shape:
            self._fail(f"has {part} of the shape {list(found)} instead of {list(shape)}")

    def _check_order(self) -> None:
        """Groups must be of neighbouring columns."""
        if self._parts["g_idx"] is None or self._form.method == "awq":
            return
        self._check_shape("g_idx", "I32", (self.columns,))
        order = self._words("g_idx")
        if (order != np.arange(self.columns) // self._form.group_size).any():
            raise UnsupportedModelError(
                f"{self._where} has its columns in the order of their importance (desc_act, g_idx), which is not "
                "supported: use a checkpoint made with desc_act false, the unquantized model, or a GGUF file"
            )

    def _read_scales(self, stored: StoredTensor) -> NDArray[np.float16]:
        raw = np.ascontiguousarray(stored.view())
        values: NDArray[Any]
        if stored.type.name == "F16":
            values = raw.view("<f2")
        elif stored.type.name == "F32":
            values = raw.view("<f4")
        else:
            values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        with np.errstate(over="ignore"):
            scales = values.astype(np.float16).reshape(stored.shape)
        if not np.isfinite(scales).all():
            self._fail("has scales that are not finite")
        if (scales.reshape(-1) != values).any():
            raise UnsupportedModelError(
                f"{self._where} has scales that float16 cannot hold, so it could not be taken as it is: use the "
                "unquantized model or a GGUF file"
            )
        return scales

    def _words(self, part: str) -> Words:
        tensor = self._parts[part]
        assert tensor is not None
        return np.ascontiguousarray(tensor.view()).view("<u4").reshape(tensor.shape)

    def _fail(self, what: str) -> NoReturn:
        raise ModelFileError(f"{self._where} {what}")


def _along_rows(words: Words, *, gptq: bool) -> Codes:
    """[n, rows] values of [n, rows / 8] words."""
    values = (words[:, :, None] >> _SHIFTS) & 15
    if not gptq:
        values = values[:, :, _AWQ_PLACE]
    codes: Codes = values.reshape(len(words), -1).astype(np.int16)
    return codes
