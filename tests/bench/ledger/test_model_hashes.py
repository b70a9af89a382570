"""Hashes of models: those that sha256sum gives, computed when a file changed and else remembered."""

from __future__ import annotations

import hashlib
import os

import pytest

from lpx.bench.ledger import Ledger, model_hashes
from lpx.errors import ModelNotFoundError


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger.sqlite")


@pytest.fixture
def read_files(monkeypatch):
    """The files that are read to be hashed."""
    read = []
    chunks = model_hashes._chunks
    monkeypatch.setattr(model_hashes, "_chunks", lambda path: read.append(path.name) or chunks(path))
    return read


def test_a_file_is_hashed_once(ledger, tmp_path, read_files):
    model = tmp_path / "模型.gguf"
    model.write_bytes(bytes(range(256)) * 40_000)
    told = []
    expected = hashlib.sha256(model.read_bytes()).hexdigest()
    assert ledger.model_sha256(model, lambda done, total: told.append((done, total))) == expected
    assert told[-1] == (model.stat().st_size,) * 2
    assert len(told) == 3
    assert ledger.model_sha256(model) == expected
    assert read_files == ["模型.gguf"]


def test_a_changed_file_is_hashed_again(ledger, tmp_path, read_files):
    model = tmp_path / "model.gguf"
    model.write_bytes(b"one")
    ledger.model_sha256(model)
    other = tmp_path / "other"
    other.write_bytes(b"two")
    status = model.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))  # size and time are the same
    other.replace(model)
    assert ledger.model_sha256(model) == hashlib.sha256(b"two").hexdigest()
    assert read_files == ["model.gguf"] * 2


def test_a_folder_is_the_hashes_of_what_the_engine_reads(ledger, tmp_path, read_files):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("model.safetensors", "config.json", "README.md", "manifest.json"):
        (folder / name).write_text(name)
    listed = "".join(
        f"{name}\0{hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("config.json", "model.safetensors")
    )
    before = ledger.model_sha256(folder)
    assert before == hashlib.sha256(listed.encode()).hexdigest()
    (folder / "manifest.json").write_text("fetched again")
    assert ledger.model_sha256(folder) == before
    (folder / "config.json").write_text("another")
    assert ledger.model_sha256(folder) != before
    assert read_files == ["config.json", "model.safetensors", "config.json"]


def test_a_split_model_is_all_its_parts(ledger, tmp_path, read_files):
    for number in (1, 2):
        (tmp_path / f"big-0000{number}-of-00002.gguf").write_bytes(bytes([number]))
    ledger.model_sha256(tmp_path / "big-00001-of-00002.gguf")
    assert read_files == ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"]


def test_the_ledger_names_no_folders(ledger, tmp_path):
    model = tmp_path / "secret-place" / "model.gguf"
    model.parent.mkdir()
    model.write_bytes(b"x")
    ledger.model_sha256(model)
    assert b"secret-place" not in ledger.path.read_bytes()


@pytest.mark.parametrize("used", [False, True])
def test_what_is_not_there_is_said(ledger, tmp_path, used):
    if used:
        (tmp_path / "model.gguf").write_bytes(b"x")
        ledger.model_sha256(tmp_path / "model.gguf")
    with pytest.raises(FileNotFoundError):
        ledger.model_sha256(tmp_path / "absent.gguf")
    with pytest.raises(ModelNotFoundError):
        ledger.model_sha256(tmp_path)  # holds nothing of a model
