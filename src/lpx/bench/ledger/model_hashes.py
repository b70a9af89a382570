"""What model files hash to, remembered by what the file system says of them: reading 8 GB takes many seconds.

A file counts as unchanged while path, size, time of change and inode are the same. The ledger keeps a digest of the
path, not the path, because a ledger is for showing around.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lpx.errors import ModelNotFoundError
from lpx.model.gguf_shards import all_shards

_CHUNK_BYTES = 4 << 20
_FOLDER_SUFFIXES = frozenset({".safetensors", ".json", ".jinja", ".model", ".txt"})
_NOT_HASHED = frozenset({"manifest.json"})  # of the store: says when the model was fetched


@dataclass(frozen=True, slots=True)
class FileState:
    """A file as the file system describes it."""

    path_digest: bytes
    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileState:
        status = path.stat()
        digest = hashlib.blake2b(str(path.resolve()).encode("utf-8", "surrogateescape"), digest_size=16).digest()
        return cls(digest, status.st_size, status.st_mtime_ns, status.st_ino)


def model_files(model: Path) -> list[Path]:
    """The files that make up a model: a GGUF file with its further parts, or what a folder holds for the engine."""
    if model.is_dir():
        files = sorted(file for file in model.iterdir() if file.suffix in _FOLDER_SUFFIXES and file.is_file())
        return [file for file in files if file.name not in _NOT_HASHED]
    return all_shards(model)


def file_states(model: Path) -> dict[Path, FileState]:
    """The files of a model as they are now. Raises OSError, and ModelNotFoundError for a folder without any."""
    states = {file: FileState.of(file) for file in model_files(model)}
    if not states:
        raise ModelNotFoundError(f"{model}: there is nothing of a model in this folder")
    return states


def known_hashes(db: sqlite3.Connection, states: Iterable[FileState]) -> dict[FileState, str]:
    """What the ledger remembers of files that are still like this."""
    known = {}
    for state in states:
        row = db.execute(
            "SELECT sha256 FROM model_hashes WHERE path_digest = ? AND size = ? AND mtime_ns = ? AND inode = ?",
            (state.path_digest, state.size, state.mtime_ns, state.inode),
        ).fetchone()
        if row:
            known[state] = row[0]
    return known


def remember(db: sqlite3.Connection, computed: Mapping[FileState, str]) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO model_hashes VALUES (?, ?, ?, ?, ?)",
        [(state.path_digest, state.size, state.mtime_ns, state.inode, digest) for state, digest in computed.items()],
    )


def hash_model(
    model: Path,
    states: Mapping[Path, FileState],
    known: Mapping[FileState, str],
    progress: Callable[[int, int], None] | None = None,
) -> tuple[str, dict[FileState, str]]:
    """The hash of a model of these files, and those of files that had to be read. Raises OSError."""
    total = sum(state.size for state in states.values() if state not in known)
    computed: dict[FileState, str] = {}
    digests: dict[Path, str] = {}
    done = 0
    for file, state in states.items():
        if state in known:
            digests[file] = known[state]
            continue
        digest = hashlib.sha256()
        for chunk in _chunks(file):
            digest.update(chunk)
            done += len(chunk)
            if progress:
                progress(done, total)
        digests[file] = digest.hexdigest()
        if FileState.of(file) == state:  # else it was being written meanwhile
            computed[state] = digests[file]
    if len(digests) == 1 and not model.is_dir():
        return digests[model], computed
    listed = "".join(f"{file.name}\0{digest}\n" for file, digest in digests.items())
    return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest(), computed


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
