"""A model on disk: found by name or path, opened, checked, and handed out weight by weight.

`open_model` reads headers and metadata only. `ModelFiles.weights` then walks the file once, and gives back the memory
of what was read, so that loading never holds much more than the file once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lpx.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from lpx.model.config import ModelConfig, WeightTensor
from lpx.model.gguf_config import config_from_gguf
from lpx.model.gguf_shards import is_later_shard, open_shards
from lpx.model.gguf_tokenizer import tokenizer_from_gguf
from lpx.model.hf_config import config_from_hf
from lpx.model.hf_folder import HfFolder
from lpx.model.int4_checkpoint import int4_format, unpack_checkpoint
from lpx.model.mapped_file import MappedFile, StoredTensor
from lpx.model.models_dir import current_path, read_manifest, split_version, version_path
from lpx.model.pooling import Pooling, pooling_from_folder, pooling_from_gguf
from lpx.model.safetensors_reader import read_shards
from lpx.model.tokenizer_source import TokenizerSource
from lpx.model.weight_names import WeightMap, WeightRule, map_weights

_LOG = logging.getLogger(__name__)
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_PICKLE_REASON = (
    "pickle checkpoints run code when they are loaded, so LPX never reads them. Use the model's .safetensors files or "
    "a GGUF file"
)


def resolve_model(name_or_path: str, models_dir: Path | None = None) -> Path:
    """The .gguf file or Hugging Face folder that a user means: a path, or `NAME` or `NAME@VERSION` of a stored model.

    A name means its current version. A folder without `config.json` counts as the one GGUF model in it. Raises
    ModelNotFoundError with the places that were searched, and UnsupportedModelError for pickle checkpoints.
    """
    path = Path(os.path.expanduser(name_or_path))
    if _exists(path):
        return _model_at(path)
    searched = [str(path)]
    if models_dir is not None and name_or_path and not path.is_absolute() and ".." not in path.parts:
        name, version = split_version(name_or_path)
        if version is not None and (_exists(models_dir / name) or _exists(models_dir / f"{name}.gguf")):
            found = _inside(version_path(models_dir / name, version), models_dir)
            return _inside(_model_at(found, as_it_is=True), models_dir)
        in_folder = () if name_or_path.endswith("/") else (models_dir / f"{name_or_path}.gguf",)
        for candidate in (models_dir / path, *in_folder):
            if _exists(candidate):
                return _inside(_model_at(_inside(candidate, models_dir)), models_dir)
            searched.append(str(candidate))
    raise ModelNotFoundError(
        f"there is no model {_clipped(name_or_path)!r}; looked for {', '.join(map(_clipped, searched))}. Give a .gguf "
        "file, a folder with config.json and .safetensors files, or a name in the model folder"
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with a NUL
        return False


def _inside(path: Path, models_dir: Path) -> Path:
    """`path`, unless a link leads out of the model folder: a name never reaches what lies elsewhere."""
    if not path.resolve().is_relative_to(models_dir.resolve()):
        raise ModelNotFoundError(
            f"{path} leads out of the model folder by a link; give the path of the model itself, or bring it in "
            "with: lpx models import"
        )
    return path


def _clipped(text: str) -> str:
    return text if len(text) <= 300 else text[:300] + "..."


def _model_at(path: Path, *, as_it_is: bool = False) -> Path:
    """The model that a path means; `as_it_is` when the path is that of a version, not of all versions."""
    if path.is_dir() and not as_it_is:
        path = current_path(path)
    if not path.is_dir():
        if path.suffix.lower() in _PICKLE_SUFFIXES:
            raise UnsupportedModelError(f"{path}: {_PICKLE_REASON}")
        if path.suffix.lower() == ".safetensors":
            raise UnsupportedModelError(f"{path}: give the folder, which also has config.json and tokenizer.json")
        return path
    if (path / "config.json").exists() and any(path.glob("*.safetensors")):
        return path
    models = [file for file in sorted(path.glob("*.gguf")) if not is_later_shard(file)]
    if len(models) == 1:
        return models[0]
    if models:
        described = read_manifest(path).get("file")
        for model in models:
            if model.name == described:  # what was pulled under this name; files put beside it do not change that
                return model
        raise ModelNotFoundError(
            f"{path}: {len(models)} GGUF models are in this folder ({', '.join(m.name for m in models[:4])}); "
            f"give the path of one instead, such as {models[0]}"
        )
    if pickles := sorted(file.name for file in path.iterdir() if file.suffix.lower() in _PICKLE_SUFFIXES):
        raise UnsupportedModelError(f"{path}: the weights are in {pickles[0]}; {_PICKLE_REASON}")
    raise ModelNotFoundError(f"{path}: this folder has neither a .gguf file nor config.json with .safetensors files")


class ModelFiles:
    """An open model. Close it, or use it as a context manager; weights handed out stay valid.

    Attributes:
        weight_types: bytes in the file by type name.
        file_bytes: size of all weight files together.
        eos_token_ids: the union of what every part of the model names as end of text or turn.
        chat_template: as shipped; None when the model has none.
        pooling: how hidden states become an embedding.
        own_name: what the file's metadata calls the model; None where they do not.
        ignored_tensors: tensors that are knowingly left alone.
    """

    def __init__(
        self,
        *,
        path: Path,
        format: Literal["gguf", "safetensors"],
        files: list[MappedFile],
        tensors: Mapping[str, StoredTensor],
        weight_map: WeightMap,
        tokenizer_source: TokenizerSource,
        eos_token_ids: frozenset[int],
        chat_template: str | None,
        pooling: Pooling,
        own_name: str | None = None,
    ) -> None:
        self.path = path
        self.format: Literal["gguf", "safetensors"] = format
        self.config: ModelConfig = weight_map.config
        self.name = self.config.name
        self.own_name = own_name
        self.tokenizer_source = tokenizer_source
        self.eos_token_ids = eos_token_ids
        self.chat_template = chat_template
        self.pooling = pooling
        self.file_bytes = sum(file.size for file in files)
        self.ignored_tensors = weight_map.ignored
        self._files = files
        self._tensors = tensors
        self._rules = weight_map.rules
        self.weight_types: dict[str, int] = {}
        for source in dict.fromkeys(rule.source for rule in self._rules):
            stored = tensors[source]
            self.weight_types[stored.type.name] = self.weight_types.get(stored.type.name, 0) + stored.nbytes
        if self.ignored_tensors:
            _LOG.info(
                "%s: %d tensors ignored, the first is %s", path, len(self.ignored_tensors), self.ignored_tensors[0]
            )

    def matrix_shapes(self) -> list[tuple[str, str, tuple[int, int]]]:
        """(canonical name, type name, [out, in]) of every matrix, before anything is read."""
        return [
            (rule.name, self._tensors[rule.source].type.name, (rule.shape[0], rule.shape[1]))
            for rule in self._rules
            if len(rule.shape) == 2
        ]

    def weights(self) -> Iterator[WeightTensor]:
        """Every weight once, in the order of the file.

        A matrix's data is a view of the mapped file, whose memory is given back when the next weight is asked for:
        it stays readable, but from the file again. Raises ModelFileError when the file has shrunk since it was opened.
        """
        order = {id(file): index for index, file in enumerate(self._files)}

        def position(rule: WeightRule) -> tuple[int, int, int]:
            stored = self._tensors[rule.source]
            return order[id(stored.file)], stored.offset, rule.first_row

        for rule in sorted(self._rules, key=position):
            stored = self._tensors[rule.source]
            row_bytes = stored.type.row_bytes(rule.shape[-1])
            offset, nbytes = stored.offset, stored.nbytes
            if len(rule.shape) == 2:
                offset, nbytes = offset + rule.first_row * row_bytes, rule.shape[0] * row_bytes
            data = stored.file.view(offset, nbytes, f"tensor {stored.name!r}")
            yield _vector(rule, stored, data) if len(rule.shape) == 1 else _matrix(rule, stored, data)
            stored.file.drop(offset, nbytes)

    def stored(self) -> tuple[tuple[WeightRule, ...], Mapping[str, StoredTensor]]:
        """How canonical weights come from the tensors of the files, and these."""
        return self._rules, self._tensors

    def forget_tokenizer_source(self) -> None:
        """Free the data of the vocabulary, once the tokenizer is built. `tokenizer_source` is gone afterwards."""
        del self.tokenizer_source

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __enter__(self) -> ModelFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _matrix(rule: WeightRule, stored: StoredTensor, data: NDArray[np.uint8]) -> WeightTensor:
    # GGUF aligns its tensors; safetensors need not, and the core reads f32 and 16-bit values as such.
    misplaced = stored.type.block_values == 1 and data.ctypes.data % stored.type.block_bytes != 0
    row_map = _half_split_rows(rule) if rule.interleaved_heads else None
    return WeightTensor(
        rule.name,
        stored.type.name,
        rule.shape,
        data.copy() if misplaced else data,
        row_map,
        mapped=stored.file.is_mapped and not misplaced,
    )


def _vector(rule: WeightRule, stored: StoredTensor, data: NDArray[np.uint8]) -> WeightTensor:
    raw = data.tobytes()
    if stored.type.name == "F32":
        values = np.frombuffer(raw, dtype="<f4").astype(np.float32)
    elif stored.type.name == "F16":
        values = np.frombuffer(raw, dtype="<f2").astype(np.float32)
    else:  # BF16 is the upper half of an F32
        values = (np.frombuffer(raw, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    if rule.norm_offset:
        values = values + np.float32(rule.norm_offset)
    if rule.interleaved_heads:
        values = values[_half_split_rows(rule)]
    if not np.isfinite(values).all():
        raise ModelFileError(f"{stored.file.path}: tensor {stored.name!r} holds values that are not finite")
    return WeightTensor(rule.name, "F32", rule.shape, np.ascontiguousarray(values).view(np.uint8))


def _half_split_rows(rule: WeightRule) -> NDArray[np.int32]:
    """For each row of the decoder, its row in the file.

    Rotary pair j of a head is rows (2j, 2j + 1) in the file, and (j, j + head_dim/2) in the decoder.
    """
    heads = rule.interleaved_heads
    rows = np.arange(rule.shape[0], dtype=np.int32).reshape(heads, -1, 2)
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)


def open_model(path: Path, *, max_model_len: int | None = None) -> ModelFiles:
    """Open a .gguf file (the first, when it is split) or a Hugging Face folder and check everything but the weights.

    `max_model_len` is the context that is wanted: models with two sets of rotary factors (LongRoPE) are opened for
    their original context, with `config.max_position` saying so, unless it asks for more. Raises ModelFileError and
    ModelNotFoundError.
    """
    if max_model_len is not None and max_model_len < 1:
        raise ValueError(f"max_model_len is {max_model_len}")
    if path.is_dir():
        return _open_folder(path, max_model_len)
    if path.suffix.lower() in _PICKLE_SUFFIXES:
        raise UnsupportedModelError(f"{path}: {_PICKLE_REASON}")
    return _open_gguf(path, max_model_len)


def _open_gguf(path: Path, max_model_len: int | None) -> ModelFiles:
    files, metadata, tensors = open_shards(path)
    try:
        where = str(path)
        config, used = config_from_gguf(metadata, tensors, path.stem, where, max_model_len)
        weight_map = map_weights(config, tensors, "gguf", where, used=used)
        source = tokenizer_from_gguf(metadata, config.vocab_size, where)
        template = metadata.get("tokenizer.chat_template")
        if template is not None and not isinstance(template, str):
            raise ModelFileError(f"{where}: tokenizer.chat_template is not a string")
        called = metadata.get("general.name")
        return ModelFiles(
            path=path,
            format="gguf",
            files=files,
            tensors=tensors,
            weight_map=weight_map,
            tokenizer_source=source,
            eos_token_ids=source.eos_ids,
            chat_template=template,
            pooling=pooling_from_gguf(metadata, source.eos_id, bool(source.add_eos), where),
            own_name=(called.strip() or None) if isinstance(called, str) else None,
        )
    except BaseException:
        for file in files:
            file.close()
        raise


def _open_folder(path: Path, max_model_len: int | None) -> ModelFiles:
    folder = HfFolder(path)
    name = path.resolve().name
    config, tied = config_from_hf(folder.config, name, str(path / "config.json"), max_model_len)
    form = int4_format(folder.config, str(path / "config.json"))
    files, tensors = read_shards(path, integers=form is not None)
    try:
        if form is not None:
            matrices, tensors = unpack_checkpoint(tensors, form, str(path))
            files += matrices
        vision = folder.config.get("model_type") == "gemma3"
        weight_map = map_weights(config, tensors, "safetensors", str(path), tied=tied, vision=vision)
        source = folder.tokenizer_source(config.vocab_size)
        return ModelFiles(
            path=path,
            format="safetensors",
            files=files,
            tensors=tensors,
            weight_map=weight_map,
            tokenizer_source=source,
            eos_token_ids=source.eos_ids,
            chat_template=folder.chat_template(),
            pooling=pooling_from_folder(path),
        )
    except BaseException:
        for file in files:
            file.close()
        raise
