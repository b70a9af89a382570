"""Files of prompts: one a line, as text or as JSON, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from lpx.bench.compare.comparison import read_prompts
from lpx.errors import ConfigError


def test_lines_are_what_newlines_part(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbf" + 'a\u2028b\r\n\n{"prompt": "c\u2029d"}\n你好'.encode())
    assert read_prompts(path) == ("a\u2028b", "c\u2029d", "你好")


@pytest.mark.parametrize(
    "line",
    [
        '{"a":' * 5000,
        "{",
        '{"prompt": 5}',
        '{"prompt": ""}',
        '{"prompt": " "}',
        '{"text": "a"}',
        '{"prompt": ' + "9" * 5000 + "}",
    ],
)
def test_lines_that_are_no_prompt_are_named(tmp_path, line):
    path = tmp_path / "prompts.txt"
    path.write_text(f"good\n{line}\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_prompts(path)


def test_files_without_an_end_are_refused():
    with pytest.raises(ConfigError, match="neither a file nor a pipe"):
        read_prompts(Path("/dev/zero"))
