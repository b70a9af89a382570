"""What is quantized: a model's tensors by their GGUF names, with their values as floats, and its GGUF metadata."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lpx.errors import ConfigError
from lpx.model.files import ModelFiles, open_model
from lpx.model.gguf_shards import open_shards
from lpx.model.mapped_file import MappedFile, StoredTensor

if TYPE_CHECKING:
    from lpx.model.gguf_conversion import FolderTensor

Floats = NDArray[np.float32]

# Whose values are close enough to what the model was trained with.
FULL_TYPES = ("F32", "F16", "BF16", "Q8_0")

_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_ROLES = {
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_qkv": "qkv",
    "attn_output": "o",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
# The canonical weight whose input a fused matrix shares.
_INPUT_OF = {"qkv": "q"}
_DROPPED = ("split.", "quantize.imatrix.", "general.file_type", "general.quantization_version", "general.alignment")


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """A tensor of the model to come."""

    name: str  # in GGUF
    shape: tuple[int, ...]  # row-major
    type: str  # GGML type in the source
    rows: Callable[[int, int], Floats]  # [stop - start, columns] of a matrix; [1, length] of a vector

    @property
    def layer(self) -> int:
        """-1 outside of the layers."""
        found = _TENSOR.fullmatch(self.name)
        return int(found[1]) if found else -1

    @property
    def role(self) -> str | None:
        """`q`, `k`, `v`, `qkv`, `o`, `gate`, `up`, `down`, `embedding`, `head`; None for all else."""
        if self.name in ("token_embd.weight", "output.weight"):
            return "embedding" if self.name.startswith("token") else "head"
        found = _TENSOR.fullmatch(self.name)
        return _ROLES.get(found[2]) if found and len(self.shape) == 2 else None

    @property
    def input_name(self) -> str | None:
        """The canonical name of a weight with the same input, by which `Importance` knows it."""
        role = self.role
        if role is None or role in ("embedding", "head"):
            return role
        return f"layers.{self.layer}.{_INPUT_OF.get(role, role)}"


class Source:
    """An open model to quantize; a context manager."""

    def __init__(
        self, files: ModelFiles, metadata: dict[str, Any], tensors: list[SourceTensor], mapped: list[MappedFile]
    ) -> None:
        self.files = files
        self.metadata = metadata  # without what the quantized file says for itself
        self.tensors = tensors
        self._mapped = mapped

    @property
    def path(self) -> Path:
        return self.files.path

    def close(self) -> None:
        for file in self._mapped:
            file.close()
        self.files.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_source(path: Path, *, allow_requantize: bool = False) -> Source:
    """Open a GGUF file or a Hugging Face folder.

    Raises ConfigError for weights that are quantized already (but Q8_0), unless they are allowed, and what
    `open_model` raises.
    """
    files = open_model(path)
    try:
        source = _from_folder(files) if files.format == "safetensors" else _from_gguf(files)
    except BaseException:
        files.close()
        raise
    worse = sorted({tensor.type for tensor in source.tensors if tensor.type not in FULL_TYPES})
    if worse and not allow_requantize:
        source.close()
        raise ConfigError(
            f"{path.name} is quantized already (it has {', '.join(worse)}): what it lost does not come back, and more "
            "is lost. Take the F16, BF16, F32 or Q8_0 file, or insist with --allow-requantize"
        )
    return source


def _from_folder(files: ModelFiles) -> Source:
    """Raises UnsupportedModelError and TokenizerError for what GGUF has no keys for."""
    from lpx.model.gguf_conversion import FREQUENCY_FACTORS, config_metadata, folder_tensors, frequency_factors
    from lpx.model.gguf_vocabulary import vocabulary_metadata
    from lpx.model.hf_folder import HfFolder

    config_json = HfFolder(files.path).config
    vocabulary = files.tokenizer_source
    assert vocabulary.kind == "tokenizer.json"
    metadata = config_metadata(files.config, config_json, files.name, "f16")
    metadata |= vocabulary_metadata(vocabulary, files.config.vocab_size)
    if files.chat_template is not None:
        metadata["tokenizer.chat_template"] = files.chat_template
    tensors = [
        SourceTensor(tensor.name, tensor.shape, tensor.stored.type.name, _folder_reader(tensor))
        for tensor in folder_tensors(files.config, *files.stored())
    ]
    factors = frequency_factors(files.config, config_json)
    if factors is not None:
        tensors.append(SourceTensor(FREQUENCY_FACTORS, factors.shape, "F32", lambda start, stop: factors[None]))
    return Source(files, metadata, tensors, [])


def _from_gguf(files: ModelFiles) -> Source:
    mapped, metadata, stored = open_shards(files.path)
    kept = {key: value for key, value in metadata.items() if not key.startswith(_DROPPED)}
    tensors = [SourceTensor(t.name, t.shape, t.type.name, _reader(t)) for t in stored.values()]
    return Source(files, kept, tensors, mapped)


def _folder_reader(tensor: FolderTensor) -> Callable[[int, int], Floats]:
    if len(tensor.shape) == 2:
        return tensor.rows
    return lambda start, stop: tensor.rows(0, tensor.shape[0]).reshape(1, -1)


def _reader(stored: StoredTensor) -> Callable[[int, int], Floats]:
    columns = stored.shape[-1]
    row_bytes = stored.type.row_bytes(columns)

    def rows(start: int, stop: int) -> Floats:
        from lpx import _native

        offset, nbytes = stored.offset + start * row_bytes, (stop - start) * row_bytes
        data = stored.file.view(offset, nbytes, f"tensor {stored.name!r}")
        values: Floats = _native.decode_rows(stored.type.name, columns, np.ascontiguousarray(data))
        stored.file.drop(offset, nbytes)
        return values

    return rows
