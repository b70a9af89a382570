r"""The input: a file of JSON lines, read line by line, however large it is.

Lines end with `\n`, and one `\r` before it belongs to the end; nothing else ends a line. A UTF-8 byte order mark is
skipped, UTF-16 and UTF-32 are refused. Blank lines are counted and are nobody's line.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from lpx.batch.errors import BatchFileError
from lpx.regular_file import open_regular

MAX_LINE_BYTES = 64 * 1024 * 1024
_FOREIGN_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank."""

    index: int  # among such lines, from 0
    number: int  # among all lines, from 1
    offset: int  # in bytes, where it begins
    data: bytes | None  # without its end; None: longer than `MAX_LINE_BYTES`
    digest: str  # SHA-256 of it without its end, in hex


@dataclass(frozen=True, slots=True)
class LineCount:
    records: int
    blank: int


class InputFile:
    """Reads one file, up to the size that it has at first. Raises `BatchFileError` when it is no such file."""

    def __init__(self, path: Path, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.path = path
        self._max_line_bytes = max_line_bytes
        try:
            self._file = open_regular(path)
        except OSError as exc:
            raise BatchFileError(f"the input {path} cannot be read: {exc.strerror}") from None
        status = os.fstat(self._file.fileno())
        self.identity = (status.st_dev, status.st_ino)
        self.size = status.st_size
        try:
            self._begin = self._check_encoding()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> InputFile:
        return self

    def __exit__(self, *ending: object) -> None:
        self._file.close()

    def count(self) -> LineCount:
        """How many lines there are, in one pass."""
        records = blank = 0
        for _, _, data, _ in self._raw_lines():
            if data is not None and not data.strip():
                blank += 1
            else:
                records += 1
        return LineCount(records, blank)

    def lines(self) -> Iterator[Line]:
        """Every line that is not blank. One iteration at a time."""
        index = 0
        for number, offset, data, digest in self._raw_lines():
            if data is not None:
                if not data.strip():
                    continue
                digest = sha256(data).hexdigest()
            yield Line(index, number, offset, data, digest)
            index += 1

    def digest_at(self, offset: int) -> str | None:
        """Of the line that begins at `offset`; None where none does."""
        with self.path.open("rb") as file:
            if not self._begin <= offset < self.size:
                return None
            if offset > self._begin:
                file.seek(offset - 1)
                if file.read(1) != b"\n":
                    return None
            file.seek(offset)
            data, digest, _ = self._read_line(file, self.size - offset)
        return digest if data is None else sha256(data).hexdigest()

    def _raw_lines(self) -> Iterator[tuple[int, int, bytes | None, str]]:
        """(number, offset, data or None, digest where there is no data)"""
        offset, number = self._begin, 0
        with self.path.open("rb") as file:
            file.seek(offset)
            while offset < self.size:
                data, digest, length = self._read_line(file, self.size - offset)
                if not length:
                    raise BatchFileError(f"the input {self.path} has become shorter while it was read")
                number += 1
                yield number, offset, data, digest
                offset += length

    def _read_line(self, file: object, left: int) -> tuple[bytes | None, str, int]:
        """The data (or, if it is too long, its digest), and the length with the line's end."""
        read = file.readline  # type: ignore[attr-defined]
        data: bytes = read(min(self._max_line_bytes + 2, left))
        if len(data) <= self._max_line_bytes or data.endswith(b"\n"):
            return _without_end(data), "", len(data)
        hasher, length, held = sha256(), 0, data
        while True:  # whatever may belong to the end is held back
            length += len(held)
            piece: bytes = b"" if held.endswith(b"\n") else read(min(1 << 20, left - length))
            if not piece:
                hasher.update(_without_end(held))
                return None, hasher.hexdigest(), length
            if held.endswith(b"\r") and piece == b"\n":
                hasher.update(held[:-1])
                return None, hasher.hexdigest(), length + 1
            hasher.update(held)
            held = piece

    def _check_encoding(self) -> int:
        """Where the text begins."""
        head = self._file.read(4)
        for mark, name in _FOREIGN_MARKS:
            if head.startswith(mark):
                raise BatchFileError(f"the input {self.path} is {name}; save it as UTF-8")
        if b"\0" in head:
            raise BatchFileError(f"the input {self.path} is no UTF-8 text (UTF-16 without a mark?); save it as UTF-8")
        return len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0


def _without_end(data: bytes) -> bytes:
    if data.endswith(b"\n"):
        data = data[:-1]
        if data.endswith(b"\r"):
            data = data[:-1]
    return data
