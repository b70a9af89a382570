"""Files that others name: what has no end is refused, and what nobody writes to is not waited for."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from lpx.regular_file import open_regular, read_bounded, read_regular


def test_what_another_command_writes_is_read_to_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert read_bounded(pipe, 10) == b""  # nobody writes
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # so that the writer can begin
    writing = os.open(pipe, os.O_WRONLY)
    os.write(writing, "北".encode())

    def end() -> None:
        os.write(writing, "京".encode())
        os.close(writing)

    writer = threading.Thread(target=end)
    writer.start()
    assert read_bounded(pipe, 100) == "北京".encode()
    writer.join()
    os.close(reading)


def test_devices_folders_and_long_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * 11)
    for path, reason in (
        (Path("/dev/zero"), "neither a file nor a pipe"),
        (tmp_path, "Is a directory"),
        (tmp_path / "long", "more than 10 bytes"),
    ):
        with pytest.raises(OSError, match=reason):
            read_bounded(path, 10)
        with pytest.raises(OSError, match=r"no regular file|Is a directory|more than"):
            read_regular(path, 10)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        open_regular(tmp_path / "pipe")
