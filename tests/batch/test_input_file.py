"""Lines of an input. Public failures B01 and B02: byte order marks, foreign encodings, line ends, long lines."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpx.batch.errors import BatchFileError
from lpx.batch.input_file import InputFile, LineCount


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inputs")


def opened(folder: Path, data: bytes, **more: int) -> InputFile:
    path = folder / "in.jsonl"
    path.write_bytes(data)
    return InputFile(path, **more)


@pytest.mark.parametrize("count", [1, 6])
def test_a_byte_order_mark_costs_no_line(folder: Path, count: int) -> None:
    data = b"".join(b'{"n":%d}\n' % number for number in range(count))
    with opened(folder, b"\xef\xbb\xbf" + data) as source:
        assert [line.data for line in source.lines()] == data.splitlines()
        assert source.count() == LineCount(count, 0)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_other_encodings_are_refused(folder: Path, encoding: str) -> None:
    with pytest.raises(BatchFileError, match="UTF-8"):
        opened(folder, '{"prompt": "你好"}\n'.encode(encoding))


def test_only_a_line_feed_ends_a_line(folder: Path) -> None:
    odd = '{"prompt": "a\u2028b\u2029c\x85d\x0be\x0cf\rg\x1ch"}'.encode()
    with opened(folder, odd + b"\r\n\n  \t\r\n" + odd) as source:
        assert [(line.index, line.number, line.data) for line in source.lines()] == [(0, 1, odd), (1, 4, odd)]
        assert source.count() == LineCount(2, 2)


def test_long_lines_are_lines_and_longer_ones_are_told(folder: Path) -> None:
    long = b"x" * 20_000_000
    with opened(folder, long + b"\n{}\n") as source:
        first, second = source.lines()
        assert first.data == long
        assert second.data == b"{}"
    limit = 1000
    for end in (b"", b"\n", b"\r\n"):
        for size in (limit, limit + 1, limit + 2, 3_000_000):
            with opened(folder, b"y" * size + end + b"{}" * bool(end), max_line_bytes=limit) as source:
                line = next(source.lines())
                assert line.digest == sha256(b"y" * size).hexdigest()
                assert (line.data is None) == (size > limit) or size == limit + 1
                assert source.digest_at(line.offset) == line.digest
                assert source.count().records == 1 + bool(end)


@settings(deadline=None)  # it writes files
@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\r\n", b" ", b"\xe2\x80\xa8", b"{}", b"\xff"]), max_size=30))
def test_lines_are_what_splitting_gives(folder: Path, pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    expected = [
        part.removesuffix(b"\r") if at < data.count(b"\n") else part for at, part in enumerate(data.split(b"\n"))
    ]
    with opened(folder, data) as source:
        lines = list(source.lines())
        assert [line.data for line in lines] == [part for part in expected if part.strip()]
        for line in lines:
            assert data[line.offset :].startswith(line.data or b"")
            assert source.digest_at(line.offset) == line.digest
        assert source.digest_at(len(data)) is None


def test_what_is_no_file_is_refused(folder: Path) -> None:
    for path in (folder, folder / "absent", Path("/dev/null")):
        with pytest.raises(BatchFileError):
            InputFile(path)
