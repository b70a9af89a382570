"""What a pull is going to fetch, before it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lpx.errors import DownloadError
from lpx.store.download import RemoteFile
from lpx.store.names import check_file_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The files of one version, and what its manifest will say of it."""

    name: str  # unless the user gives another
    source: str  # as it can be pulled again
    files: tuple[RemoteFile, ...]
    format: str  # "gguf" or "safetensors"
    revision: str | None = None
    licence: str | None = None
    title: str | None = None

    @property
    def known_bytes(self) -> int:
        """Of the files whose size is known."""
        return sum(file.bytes or 0 for file in self.files)


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository on a hub."""

    path: str
    bytes: int
    sha256: str | None = None
    git_sha1: str | None = None


def flat_path(path: str) -> str:
    """Where a file of a repository lies in its version: without folders, but for the one that embeddings need.

    Raises ModelNameError for names that could lead elsewhere.
    """
    *folders, name = path.split("/")
    check_file_name(name)
    return f"{folders[0]}/{name}" if folders == ["1_Pooling"] else name


def is_size(value: object) -> bool:
    """Whether what a hub says may be the bytes of a file."""
    return type(value) is int and 0 <= value < 1 << 63


def check_distinct(paths: Sequence[str]) -> None:
    if len(set(paths)) != len(paths):
        raise DownloadError("the repository has two of the wanted files by one name; name the one you mean")
