"""Which names reach the disk: a small set, and nothing that could lead elsewhere (CASES X05)."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.errors import LpxError, ModelNameError, ModelNotFoundError
from lpx.model.files import resolve_model
from lpx.store.fetch import fetch
from lpx.store.folder import find_stored
from lpx.store.importing import import_model
from lpx.store.names import check_file_name, check_name, check_version, name_from
from lpx.store.versions import copy, prune, remove, rollback, use

HOSTILE = [
    "../../etc/passwd",
    "..",
    ".",
    "...",
    ".hidden",
    "/etc",
    "//server/share",
    "..%2f..%2fetc",
    "a/b",
    "a\\b",
    "C:\\x",
    "C:x",
    "a\0b",
    "a\nb",
    "a b",
    "a..b",
    "trailing.",
    "-option",
    "~root",
    "$HOME",
    "a*",
    "con",
    "NUL",
    "com1",
    "lpt9.txt",
    "current",
    "original",
    "manifest.json",
    "name.lock",
    "name.partial",
    "name.gguf",
    "x" * 5000,
    "x" * 97,
    "",
    "qwеn",  # Cyrillic е
    "ｑｗｅｎ",  # full width
    "ａ／ｂ",
    "a․b",  # one dot leader
    "a\u2215b",  # division slash
    "a\u202eb",  # right-to-left override
    "a\u200bb",  # zero width space
    "é",
    "𝐚",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused_everywhere_and_touch_nothing(tmp_path: Path, name: str) -> None:
    folder, outside = tmp_path / "models", tmp_path / "outside"
    outside.mkdir()
    (outside / "keep.gguf").write_bytes(b"GGUF mine")
    with pytest.raises(ModelNameError) as refused:
        check_name(name)
    assert len(str(refused.value)) < 500
    for change in (
        lambda: fetch("smollm2-135m", folder, name=name),
        lambda: import_model(outside / "keep.gguf", folder, name=name),
        lambda: copy(folder, "no-such", name),
        lambda: remove(folder, name),
        lambda: use(folder, name, "x"),
        lambda: rollback(folder, name),
        lambda: prune(folder, name),
        lambda: resolve_model(f"{name or 'x'}@one", folder),
    ):
        with contextlib.suppress(LpxError):
            change()
    assert find_stored(name, folder) is None
    assert not folder.exists()
    assert [path.name for path in outside.iterdir()] == ["keep.gguf"]


@pytest.mark.parametrize("name", ["qwen2.5-0.5b-instruct-q4_k_m", "A", "通义千问-0.5b", "x" * 96, "v1.2_3"])
def test_ordinary_names_are_taken(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "version", ["..", "", "a/b", ".x", "current", "original", "x" * 65, "a@b", "a b", "nul", "版本"]
)
def test_versions_have_names_of_their_own(version: str) -> None:
    with pytest.raises(ModelNameError):
        check_version(version)


@pytest.mark.parametrize(
    "name", ["../x.gguf", "a/b", "", ".ssh", "a\0.gguf", "x\n.gguf", "a" * 300, "nul", "evil\u202e"]
)
def test_names_of_files_from_elsewhere_are_checked(name: str) -> None:
    with pytest.raises(ModelNameError):
        check_file_name(name)


@given(st.text(max_size=120))
def test_a_name_made_of_anything_is_one_that_is_taken(text: str) -> None:
    try:
        name = name_from(text)
    except ModelNameError:
        return
    assert check_name(name) == name


@given(st.text(max_size=120))
def test_names_are_single_folders(text: str) -> None:
    try:
        check_name(text)
    except ModelNameError:
        return
    assert Path("/models", text).name == text
    assert len(text.encode()) <= 255


def test_links_that_lead_out_are_no_models(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "models"
    outside.mkdir()
    folder.mkdir()
    (outside / "secret.gguf").write_bytes(b"GGUF")
    (folder / "link").symlink_to(outside)
    (folder / "file.gguf").symlink_to(outside / "secret.gguf")
    (folder / "inner").mkdir()
    (folder / "inner" / "x.gguf").symlink_to(outside / "secret.gguf")
    (folder / "inner" / "v1").symlink_to(outside)
    (folder / "inner" / "current").write_text("v1\n")
    for name in ("link", "file", "inner", "inner@v1", "link@secret"):
        with pytest.raises(ModelNotFoundError):
            resolve_model(name, folder)
    for name in ("link", "file"):
        with pytest.raises(ModelNotFoundError):
            remove(folder, name)
    assert (outside / "secret.gguf").exists()
