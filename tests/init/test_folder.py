"""`lpx init` makes all of the folder or nothing, and changes nothing that is there."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import lpx.init.folder as made_by
from lpx.errors import ConfigError, LpxError
from lpx.init import FolderError, make_folder
from tests.cli.conftest import COMMAND

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("LPX_")},
    "PYTHONPATH": os.pathsep.join(sys.path),
}


def init(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", f'{before}\nexec "$@"', "-", *COMMAND, "init", *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of each file below."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_relative_to(folder / ".venv"))
    return {str(path.relative_to(folder)): (path.stat().st_mode & 0o777, path.read_bytes()) for path in files}


def test_the_folder_has_all_its_parts_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "work"
    done = init(str(folder), "--port", "9000", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["folder"], report["model"], report["port"]) == (str(folder), "smollm2-135m", 9000)
    assert {"models", "inputs", "outputs", "logs", "scripts", "config"} <= {each.name for each in folder.iterdir()}
    first = everything(folder)
    assert set(report["made"]) == set(first)
    for name in ("scripts/start.sh", "scripts/smoke-test.sh"):
        assert first[name][0] & 0o111 == 0o111 & ~umask()
    assert first["config/keys.txt"][0] == 0o600
    assert not [name for name, (_, data) in first.items() if b"@LPX_" in data]
    key = first["config/keys.txt"][1].decode().splitlines()[-1].removeprefix("app:")
    assert len(key) == 43
    assert key not in done.stdout

    again = init(str(folder), "--port", "9000", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["made"] == []
    assert everything(folder) == first


def test_an_environment_is_linked_unless_one_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    assert make_folder(str(tmp_path / "a"), "m", 1).environment == tmp_path / "environment"
    assert (tmp_path / "a" / ".venv").readlink() == tmp_path / "environment"
    (tmp_path / "b" / ".venv").mkdir(parents=True)
    assert make_folder(str(tmp_path / "b"), "m", 1).environment is None
    monkeypatch.setattr(sys, "prefix", "/usr")
    assert make_folder(str(tmp_path / "c"), "m", 1).environment is None
    assert not os.path.lexists(tmp_path / "c" / ".venv")


def test_files_that_differ_are_all_named_and_nothing_is_written(tmp_path: Path) -> None:
    make_folder(str(tmp_path), "m", 8080)
    (tmp_path / "config" / "lpx.toml").write_text("# mine")
    (tmp_path / "config" / "keys.txt").write_text("mine")
    (tmp_path / "compose.yaml").unlink()
    (tmp_path / "README.md").unlink()
    (tmp_path / "README.md").symlink_to(tmp_path / "config" / "lpx.service")
    (tmp_path / "Dockerfile").unlink()
    before = everything(tmp_path)
    done = init(str(tmp_path), "--model", "m")
    assert done.returncode == 2
    assert done.stderr.startswith("error[LPX-E084]: ")
    assert "README.md, config/lpx.toml. Keep" in done.stderr
    assert everything(tmp_path) == before
    (tmp_path / "config" / "lpx.toml").unlink()
    (tmp_path / "README.md").unlink()
    made = make_folder(str(tmp_path), "m", 8080)
    assert made.made == ("README.md", "Dockerfile", "compose.yaml", "config/lpx.toml")
    assert (tmp_path / "config" / "keys.txt").read_text() == "mine"


def test_models_may_lie_on_another_disk(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "models").symlink_to(tmp_path / "large")
    make_folder(str(tmp_path / "work"), "m", 8080)
    assert (tmp_path / "work" / "models").is_symlink()


@pytest.mark.parametrize("name", ["", "a\nb", 'a"b', "a'b", "a\\b", "a\x1b[31mb", "a\0b", "a ", "\udcff", "x" * 300])
def test_names_that_no_unit_or_system_bears_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FolderError) as caught:
        make_folder(name and f"{tmp_path}/{name}", "m", 8080)
    assert str(caught.value).isprintable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", ["", "../m", "/a/model.gguf", "hf:o/n", "a b", 'a"b', "m@../x", "m@", "-m", "m\n"])
def test_what_is_no_name_of_a_model_is_refused(tmp_path: Path, model: str) -> None:
    with pytest.raises(LpxError) as caught:
        make_folder(str(tmp_path / "work"), model, 8080)
    assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_what_is_no_port_is_refused(tmp_path: Path, port: str) -> None:
    assert init(str(tmp_path / "work"), "--port", port).returncode == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", ["work", "work/models", "work/config"])
def test_a_file_where_a_folder_should_be_is_named(tmp_path: Path, there: str) -> None:
    (tmp_path / there).parent.mkdir(exist_ok=True)
    (tmp_path / there).write_text("mine")
    with pytest.raises(FolderError, match=f"{there}' is there and no folder"):
        make_folder(str(tmp_path / "work"), "m", 8080)
    assert everything(tmp_path) == {there: (0o666 & ~umask(), b"mine")}


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="'/proc/self/work': "):
        make_folder("/proc/self/work", "m", 8080)
    with pytest.raises(FolderError, match="'/dev/null' is there and no folder"):
        make_folder("/dev/null/a/b", "m", 8080)


def test_a_working_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    done = init("work", before=f"mkdir {tmp_path}/gone; cd {tmp_path}/gone; rmdir {tmp_path}/gone")
    assert done.returncode == 2
    assert done.stderr.startswith("error[LPX-E084]: the working folder cannot be made: 'work': No such file"), (
        done.stderr
    )


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """The limit of a file's size stands in for the disk's: the first large file is cut."""
    done = init(str(tmp_path / "a" / "work"), before="ulimit -f 3")
    assert done.returncode == 2
    assert done.stderr.startswith("error[LPX-E084]: the working folder cannot be made: ")
    assert "File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("at", [1, 7, 14])
@pytest.mark.parametrize("ending", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_whatever_ends_it_takes_back_what_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, ending: BaseException
) -> None:
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "mine.jsonl").write_text("mine")
    written = []

    def write(path: Path, text: str, mode: int) -> None:
        written.append(path)
        if len(written) == at:
            raise ending
        path.write_text(text)

    monkeypatch.setattr(made_by, "write_new", write)
    with pytest.raises((FolderError, KeyboardInterrupt)):
        make_folder(str(tmp_path), "m", 8080)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["inputs", "inputs/mine.jsonl"]


def test_refusals_are_wrong_options() -> None:
    assert issubclass(FolderError, ConfigError)


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return stat.S_IMODE(mask)
