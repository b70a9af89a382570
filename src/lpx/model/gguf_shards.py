"""GGUF models that are split into several files: `name-00001-of-00003.gguf` and so on.

The first file has the metadata; each has a part of the tensors, and says in `split.no` and `split.count` which it is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpx.errors import ModelFileError
from lpx.model.config_values import ConfigValues

if TYPE_CHECKING:  # lists of models and of runs need the names of parts only, without NumPy
    from lpx.model.mapped_file import MappedFile, StoredTensor

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_SHARDS = 1000


def is_later_shard(path: Path) -> bool:
    """Whether a file is a part of a split model, but not its first."""
    match = _NAME.fullmatch(path.name)
    return match is not None and int(match["number"]) > 1


def all_shards(path: Path) -> list[Path]:
    """The files of the model whose first is `path`, by their names; those that are missing are left out."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return [path]
    return [part for number in range(1, int(match["count"]) + 1) if (part := _part(path, match, number)).exists()]


def _part(path: Path, match: re.Match[str], number: int) -> Path:
    return path.with_name(f"{match['stem']}-{number:05}-of-{match['count']}.gguf")


def open_shards(path: Path) -> tuple[list[MappedFile], dict[str, Any], dict[str, StoredTensor]]:
    """All files of the model whose only or first file is `path`, with their metadata and tensors.

    The caller closes the mappings. Raises ModelFileError.
    """
    from lpx.model.gguf import GgufFile

    first = GgufFile(path)
    files = [first.file]
    tensors = dict(first.tensors)
    try:
        values = ConfigValues(first.metadata, str(path))
        count = values.integer("split.count", 1, low=0, high=_MAX_SHARDS)
        if count <= 1:
            return files, first.metadata, tensors
        number = values.integer("split.no", low=0, high=_MAX_SHARDS)
        match = _NAME.fullmatch(path.name)
        if match is None or int(match["count"]) != count:
            raise ModelFileError(
                f"{path}: part {number + 1} of a model in {count} files, which must be named like "
                f"model-00001-of-{count:05}.gguf"
            )
        if number != 0 or int(match["number"]) != 1:
            raise ModelFileError(
                f"{path}: part {number + 1} of a split model; open the first, -00001-of-{count:05}.gguf"
            )
        for index in range(1, count):
            part = _part(path, match, index + 1)
            if not part.exists():
                raise ModelFileError(f"{path}: the model is split into {count} files, but {part.name} is missing")
            shard = GgufFile(part)
            files.append(shard.file)
            own = ConfigValues(shard.metadata, str(part))
            if own.integer("split.no", low=0) != index or own.integer("split.count", low=0) != count:
                raise ModelFileError(f"{part}: its own keys do not call it part {index + 1} of {count}")
            if twice := sorted(shard.tensors.keys() & tensors.keys()):
                raise ModelFileError(f"{part}: tensor {twice[0]!r} is in another part of the model too")
            tensors |= shard.tensors
        total = values.integer("split.tensors.count", len(tensors), low=0)
        if total != len(tensors):
            raise ModelFileError(f"{path}: the parts hold {len(tensors)} tensors together, but should hold {total}")
        return files, first.metadata, tensors
    except BaseException:
        for file in files:
            file.close()
        raise
