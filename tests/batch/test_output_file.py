"""What a kill, a second run, a changed input or a full disk do to an output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lpx.batch.errors import BatchFileError
from lpx.batch.input_file import InputFile
from lpx.batch.output_file import OutputFile, open_output
from lpx.batch.result_line import Attempts, answered_line
from lpx.batch.standing import read_standing
from lpx.batch.target import Answer

LINES = 5
ORDER = (1, 0, 4, 2, 3)  # of the ends


@pytest.fixture
def source(tmp_path: Path) -> InputFile:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"prompt": "问题 {index}"}}\n' for index in range(LINES)))
    return InputFile(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def written(source: InputFile, failing: tuple[int, ...] = ()) -> dict[int, bytes]:
    """A result of each line."""
    results = {}
    for line in source.lines():
        answer = Answer(400 if line.index in failing else 200, {"text": f"答 {line.index}"}, "r")
        results[line.index] = answered_line("batch_req_x", line, None, answer, Attempts(1, 0.0, 1.0, 1.0))
    return results


def write(source: InputFile, path: Path, failing: tuple[int, ...] = ()) -> bytes:
    results = written(source, failing)
    output = open_output(path, resume=False)
    for index in ORDER:
        output.append(index, results[index])
    output.close()
    return path.read_bytes()


def indexes(path: Path) -> list[int]:
    return [json.loads(line)["lpx"]["index"] for line in path.read_bytes().splitlines()]


def test_a_kill_at_any_byte_costs_the_torn_line_only(source: InputFile, path: Path) -> None:
    whole = write(source, path)
    ends = [at + 1 for at, byte in enumerate(whole) if byte == 0x0A]
    near = {end + step for end in (0, *ends) for step in range(-25, 25)} | set(range(0, len(whole), 13))
    for size in sorted(near & set(range(len(whole) + 1))):
        path.write_bytes(whole[:size])
        output = open_output(path, resume=True)
        succeeded, failed = output.load(source)
        lines = whole[:size].count(b"\n")
        assert (succeeded, failed) == (lines, 0)
        assert path.read_bytes() == whole[: whole[:size].rfind(b"\n") + 1]
        assert [output.has(index) for index in range(LINES)] == [index in ORDER[:lines] for index in range(LINES)]
        if size % 5:
            output.close()
            continue
        for index in ORDER[lines:]:
            output.append(index, written(source)[index])
        output.put_in_order()
        output.close()
        assert indexes(path) == list(range(LINES))


def test_zeros_that_a_lost_write_leaves_are_cut(source: InputFile, path: Path) -> None:
    whole = write(source, path)
    path.write_bytes(whole + b"\0" * 4096)
    output = open_output(path, resume=True)
    assert output.load(source) == (LINES, 0)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("text", ["my novel\n", "my novel", '{"id": "batch"}\n', '{"id":"batch_req_x"}\nmore\n', "\n"])
def test_a_file_that_is_no_output_stays_as_it_is(source: InputFile, path: Path, text: str) -> None:
    path.write_text(text)
    output = open_output(path, resume=True)
    with pytest.raises(BatchFileError, match="no output of a batch"):
        output.load(source)
    output.close()
    assert path.read_text() == text


def test_damage_in_the_middle_is_not_passed_over(source: InputFile, path: Path) -> None:
    whole = write(source, path)
    lines = whole.splitlines(keepends=True)
    path.write_bytes(lines[0] + b"damage\n" + b"".join(lines[2:]))
    output = open_output(path, resume=True)
    with pytest.raises(BatchFileError, match=r"line 2 of .* is damaged"):
        output.load(source)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace("问题 1".encode(), "问题 9".encode()),
        lambda data: b"\n" + data,
        lambda data: data.split(b"\n", 1)[1],
        lambda data: data[:20],
        lambda data: b"\xef\xbb\xbf" + data,
    ],
)
def test_a_changed_input_is_refused(source: InputFile, path: Path, change: object) -> None:
    write(source, path)
    source.path.write_bytes(change(source.path.read_bytes()))  # type: ignore[operator]
    output = open_output(path, resume=True)
    with pytest.raises(BatchFileError, match="has changed"):
        output.load(InputFile(source.path))


def test_lines_may_be_added_to_the_input(source: InputFile, path: Path) -> None:
    write(source, path)
    with source.path.open("a") as file:
        file.write('\n{"prompt": "one more"}\n')
    output = open_output(path, resume=True)
    longer = InputFile(source.path)
    assert output.load(longer) == (LINES, 0)
    assert [line.index for line in longer.lines() if not output.has(line.index)] == [LINES]


def test_one_run_at_a_time_writes_an_output(source: InputFile, path: Path) -> None:
    output = open_output(path, resume=False)
    with pytest.raises(BatchFileError, match="another run"):
        open_output(path, resume=True)
    for index in ORDER:
        output.append(index, written(source)[index])
    assert read_standing(source.path, path).running
    output.put_in_order()  # another file has the name now, and the lock holds for it
    with pytest.raises(BatchFileError, match="another run"):
        open_output(path, resume=True)
    output.close()
    open_output(path, resume=True).close()
    standing = read_standing(source.path, path)
    assert (standing.done, standing.missing, standing.running) == (LINES, 0, False)


def test_an_output_that_exists_is_not_written_over(source: InputFile, path: Path) -> None:
    path.write_text("")
    with pytest.raises(BatchFileError, match="--resume"):
        open_output(path, resume=False)
    with pytest.raises(BatchFileError, match="is the input"):
        open_output(source.path, resume=True, source=source)
    with pytest.raises(BatchFileError, match="no regular file"):
        open_output(Path("/dev/null"), resume=True)
    with pytest.raises(BatchFileError, match="cannot be written"):
        open_output(path.parent / "absent" / "out.jsonl", resume=True)


def test_failed_results_can_be_dropped_to_run_again(source: InputFile, path: Path) -> None:
    write(source, path, failing=(0, 3))
    output = open_output(path, resume=True)
    assert output.load(source) == (3, 2)
    assert output.drop_failed() == 2
    assert [output.has(index) for index in range(LINES)] == [False, True, True, False, True]
    output.append(0, written(source)[0])
    output.append(3, written(source)[3])
    output.put_in_order()
    assert indexes(path) == list(range(LINES))


_FULL_DISK = """
import resource, sys
from pathlib import Path
from lpx.batch.errors import OutputWriteError
from lpx.batch.input_file import InputFile
from lpx.batch.output_file import open_output
from tests.batch.test_output_file import ORDER, written
folder, size = Path(sys.argv[1]), int(sys.argv[2])
source = InputFile(folder / "in.jsonl")
results = written(source)
output = open_output(folder / "out.jsonl", resume=True)
output.load(source)
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
try:
    for index in ORDER:
        if not output.has(index):
            output.append(index, results[index])
    output.put_in_order()
except OutputWriteError as error:
    print(error)
"""


def test_a_full_disk_leaves_whole_lines_and_a_way_on(source: InputFile, path: Path) -> None:
    def run(size: int) -> str:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        arguments = [sys.executable, "-c", _FULL_DISK, str(path.parent), str(size)]
        return subprocess.run(arguments, capture_output=True, text=True, env=environment, check=True).stdout

    told = run(800)
    assert "cannot be written" in told
    assert "make room" in told
    assert path.read_bytes().endswith(b"\n")
    assert indexes(path) == list(ORDER[:2])
    assert run(10**9) == ""
    assert indexes(path) == list(range(LINES))


def test_no_room_for_the_order_loses_nothing(source: InputFile, path: Path) -> None:
    whole = write(source, path)
    output = open_output(path, resume=True)
    output.load(source)
    path.with_name("out.jsonl.ordering").mkdir()  # stands for a place that cannot be written
    with pytest.raises(Exception, match="ordering"):
        output.put_in_order()
    assert path.read_bytes() == whole
    assert isinstance(output, OutputFile)


def test_what_a_link_means_is_written_and_the_link_stays(source: InputFile, path: Path, tmp_path: Path) -> None:
    link, target = tmp_path / "link.jsonl", tmp_path / "elsewhere.jsonl"
    link.symlink_to(target)  # it is not there yet
    output = open_output(link, resume=True, source=source)
    output.close()
    assert link.is_symlink()
    assert target.is_file()
    link.unlink()
    link.symlink_to(link)
    with pytest.raises(BatchFileError, match="cannot be written"):
        open_output(link, resume=True, source=source)
