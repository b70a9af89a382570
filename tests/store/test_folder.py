"""Where models lie and what is listed as one."""

from __future__ import annotations

import json
from pathlib import Path

from lpx.model.files import resolve_model
from lpx.store import find_stored, list_models, models_dir


def test_option_beats_environment_beats_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LPX_MODELS_DIR", str(tmp_path / "from-environment"))
    assert models_dir(tmp_path / "from-option") == tmp_path / "from-option"
    assert models_dir() == tmp_path / "from-environment"
    monkeypatch.delenv("LPX_MODELS_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert models_dir() == tmp_path / "cache" / "lpx" / "models"


def test_home_is_expanded_and_paths_are_absolute(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert models_dir("~/models") == tmp_path / "models"
    assert models_dir("models") == tmp_path / "models"


def test_absent_folder_holds_no_models(tmp_path):
    assert list_models(tmp_path / "nothing") == []


def test_every_kind_of_model_is_listed_once(tmp_path):
    (tmp_path / "by-hand.gguf").write_bytes(b"12345")
    (tmp_path / "pulled").mkdir()
    (tmp_path / "pulled" / "file.gguf").write_bytes(b"123")
    (tmp_path / "pulled" / "manifest.json").write_text(json.dumps({"file": "file.gguf", "licence": "MIT"}))
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text("{}")
    (tmp_path / "hub" / "model-1.safetensors").write_bytes(b"1234")
    (tmp_path / "hub" / "model-2.safetensors").write_bytes(b"1234")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "a.gguf").write_bytes(b"1")
    (tmp_path / "two" / "b.gguf").write_bytes(b"1")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".tiny.partial").mkdir()
    (tmp_path / ".tiny.partial" / "half.gguf").write_bytes(b"1")
    shown = {model.name: (model.format, model.file_bytes, model.licence) for model in list_models(tmp_path)}
    assert shown == {
        "by-hand": ("gguf", 5, None),
        "pulled": ("gguf", 3, "MIT"),
        "hub": ("safetensors", 8, None),
        "two/a.gguf": ("gguf", 1, None),
        "two/b.gguf": ("gguf", 1, None),
    }


def test_file_beside_a_pulled_model_does_not_take_its_name(tmp_path):
    folder = tmp_path / "pulled"
    folder.mkdir()
    (folder / "file.gguf").write_bytes(b"123")
    (folder / "manifest.json").write_text(json.dumps({"file": "file.gguf", "licence": "MIT"}))
    (folder / "another.gguf").write_bytes(b"1")
    assert {model.name: model.path for model in list_models(tmp_path)} == {
        "pulled": folder / "file.gguf",
        "pulled/another.gguf": folder / "another.gguf",
    }
    assert resolve_model("pulled", tmp_path) == folder / "file.gguf"
    assert resolve_model("pulled/another.gguf", tmp_path) == folder / "another.gguf"


def test_links_out_of_the_folder_are_not_listed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.gguf").write_bytes(b"1")
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "link.gguf").symlink_to(outside / "secret.gguf")
    assert list_models(folder) == []


def test_spoilt_manifest_does_not_hide_the_model(tmp_path):
    for name, text in {"a": "{", "b": "[]", "c": '{"licence": 3, "file": "x.gguf"}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.gguf").write_bytes(b"1")
        (tmp_path / name / "manifest.json").write_text(text)
    assert [(model.name, model.licence) for model in list_models(tmp_path)] == [("a", None), ("b", None), ("c", None)]


def test_manifest_describes_only_its_own_file(tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    for name in ("a.gguf", "b.gguf"):
        (folder / name).write_bytes(b"1")
    (folder / "manifest.json").write_text(json.dumps({"file": "a.gguf", "licence": "MIT"}))
    assert {model.name: model.licence for model in list_models(tmp_path)} == {"m": "MIT", "m/b.gguf": None}


def test_split_model_is_one_model(tmp_path):
    for folder in (tmp_path, tmp_path / "big"):
        folder.mkdir(exist_ok=True)
        for number in (1, 2, 3):
            (folder / f"big-0000{number}-of-00003.gguf").write_bytes(b"12")
    shown = {model.name: (model.path.name, model.file_bytes) for model in list_models(tmp_path)}
    first = "big-00001-of-00003.gguf"
    assert shown == {"big": (first, 6), first.removesuffix(".gguf"): (first, 6)}


def test_link_to_nothing_is_no_model(tmp_path):
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nothing.gguf")
    assert list_models(tmp_path) == []


def test_a_model_is_found_by_its_name(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "x.gguf").write_bytes(b"1")
    found = find_stored("m", tmp_path)
    assert found is not None
    assert found.path == Path(tmp_path / "m" / "x.gguf")
    assert find_stored("../m", tmp_path) is None
