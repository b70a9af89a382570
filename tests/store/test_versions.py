"""Versions: which is current, going back, taking out, copying; and what lay there before there were versions."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from lpx.errors import DownloadError, ModelFileError, ModelInUseError, ModelNotFoundError, ModelStoreError
from lpx.model.files import resolve_model
from lpx.model.in_use import ModelHold
from lpx.store import manifest
from lpx.store.folder import StoredModel, find_stored, list_models, list_versions
from lpx.store.importing import import_model
from lpx.store.verify import verify
from lpx.store.versions import copy, prune, remove, rollback, use
from tests.reference.model_files import write_hf_folder, write_model_gguf
from tests.reference.tiny_models import make_tiny


@pytest.fixture(scope="module")
def ggufs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("ggufs")
    return [write_model_gguf(folder / f"tiny-{seed}.gguf", *make_tiny("llama", seed)) for seed in (1, 2, 3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def three(folder: Path, ggufs: list[Path]) -> list[StoredModel]:
    """v1, v2, v3 of `tiny`, of which v3 is current."""
    return [import_model(path, folder, name="tiny", version=f"v{i}") for i, path in enumerate(ggufs, 1)]


def current(folder: Path) -> str:
    (model,) = [model for model in list_models(folder) if model.name == "tiny"]
    assert model.current
    return model.version


def test_a_name_means_its_current_version(folder: Path, three: list[StoredModel], ggufs: list[Path]) -> None:
    assert current(folder) == "v3"
    assert resolve_model("tiny", folder).read_bytes() == ggufs[2].read_bytes()
    assert resolve_model("tiny@v1", folder).read_bytes() == ggufs[0].read_bytes()
    assert resolve_model(str(folder / "tiny"), None) == three[2].path  # a path to the model's folder as well
    assert [model.version for model in list_versions(folder, "tiny")][-1] in ("v1", "v2", "v3")
    with pytest.raises(ModelNotFoundError, match="v1, v2, v3"):
        resolve_model("tiny@v9", folder)


def test_rollback_goes_one_step_at_a_time(folder: Path, three: list[StoredModel]) -> None:
    use(folder, "tiny", "v1")
    assert current(folder) == "v1"
    was, now = rollback(folder, "tiny")
    assert (was.version, now.version, current(folder)) == ("v1", "v3", "v3")
    rollback(folder, "tiny")
    assert current(folder) == "v2"
    with pytest.raises(ModelStoreError, match="no earlier version"):
        rollback(folder, "tiny")


def test_the_beginning_of_a_version_will_do(folder: Path, ggufs: list[Path]) -> None:
    first = import_model(ggufs[0], folder, name="tiny")
    import_model(ggufs[1], folder, name="tiny")
    assert len(first.version) == 12
    assert use(folder, "tiny", first.version[:5]).version == first.version
    assert resolve_model(f"tiny@{first.version[:5]}", folder) == first.path
    with pytest.raises(ModelNotFoundError):
        use(folder, "tiny", first.version[:3])


def test_the_same_content_is_the_same_version(folder: Path, ggufs: list[Path]) -> None:
    one = import_model(ggufs[0], folder, name="tiny")
    again = import_model(ggufs[0], folder, name="tiny")
    assert one.version == again.version
    with pytest.raises(ModelStoreError, match="something else"):
        import_model(ggufs[1], folder, name="tiny", version=one.version)


def test_a_manifest_tells_where_a_version_comes_from(folder: Path, ggufs: list[Path]) -> None:
    model = import_model(ggufs[0], folder, name="tiny", licence="MIT")
    known = json.loads((model.path.parent / "manifest.json").read_text())
    assert known["schema"] == 1
    assert known["files"] == [{"path": "tiny-1.gguf", "bytes": model.file_bytes, "sha256": model.sha256}]
    assert (known["licence"], known["source"]) == ("MIT", f"file:{ggufs[0]}")
    assert len(known["tokenizer_sha256"]) == 64
    other = import_model(ggufs[1], folder, name="other")
    assert other.tokenizer_sha256 == model.tokenizer_sha256  # other weights, the same tokenizer


def test_what_a_process_uses_is_not_removed(folder: Path, three: list[StoredModel]) -> None:
    hold = ModelHold(three[0].path)
    for doomed in ("v1", None):
        with pytest.raises(ModelInUseError, match=f"process {os.getpid()}"):
            remove(folder, "tiny", doomed)
    assert len(list_versions(folder, "tiny")) == 3  # all of them or none
    assert [each.what for each in prune(folder, keep=0)] == ["tiny@v2"]
    hold.release()
    remove(folder, "tiny", "v1")
    assert [model.version for model in list_versions(folder, "tiny")] == ["v3"]


def test_the_current_of_several_versions_is_not_removed(folder: Path, three: list[StoredModel]) -> None:
    with pytest.raises(ModelStoreError, match="is the current version"):
        remove(folder, "tiny", "v3")
    remove(folder, "tiny")
    assert list_models(folder) == []
    assert [path.name for path in folder.iterdir()] == [".tiny.lock"]


def test_a_removed_version_is_not_gone_back_to(folder: Path, three: list[StoredModel]) -> None:
    remove(folder, "tiny", "v2")
    assert rollback(folder, "tiny")[1].version == "v1"


def test_a_copy_shares_bytes_and_stays_when_the_first_goes(folder: Path, three: list[StoredModel]) -> None:
    stable = copy(folder, "tiny@v2", "stable")
    assert stable.path.stat().st_ino == three[1].path.stat().st_ino
    assert stable.derived_from == "tiny@v2, copied"
    hold = ModelHold(stable.path)
    remove(folder, "tiny")  # the copy is in use, and this is not
    hold.release()
    assert verify(stable).sound
    with pytest.raises(ModelStoreError, match="there already"):
        copy(folder, "stable", "stable")


def test_prune_keeps_what_a_rollback_needs(folder: Path, three: list[StoredModel]) -> None:
    (folder / ".tiny.0123.partial").mkdir()
    (folder / ".tiny.0123.partial" / "x.part").write_bytes(b"12345")
    would = [each.what for each in prune(folder, dry_run=True)]
    assert would == [".tiny.0123.partial", "tiny@v1"]
    assert len(list_versions(folder, "tiny")) == 3
    assert [each.what for each in prune(folder)] == would
    assert rollback(folder, "tiny")[1].version == "v2"


def test_models_put_there_by_hand_are_versions_called_original(folder: Path, ggufs: list[Path]) -> None:
    folder.mkdir()
    (folder / "tiny.gguf").write_bytes(ggufs[0].read_bytes())
    (folder / "old").mkdir()
    (folder / "old" / "file.gguf").write_bytes(ggufs[1].read_bytes())
    (folder / "old" / "manifest.json").write_text(json.dumps({"name": "old", "file": "file.gguf", "licence": "MIT"}))
    assert {model.spelled: model.licence for model in list_models(folder)} == {
        "old@original": "MIT",
        "tiny@original": None,
    }
    new = import_model(ggufs[2], folder, name="tiny")
    assert resolve_model("tiny", folder) == new.path
    assert resolve_model("tiny@original", folder) == folder / "tiny.gguf"
    assert rollback(folder, "tiny")[1].path == folder / "tiny.gguf"
    assert resolve_model("tiny", folder) == folder / "tiny.gguf"
    import_model(ggufs[2], folder, name="old")
    assert rollback(folder, "old")[1].path == folder / "old" / "file.gguf"
    remove(folder, "old", new.version)
    remove(folder, "old")
    remove(folder, "tiny")
    assert list_models(folder) == []
    assert not (folder / "tiny.gguf").exists()


def test_a_hugging_face_folder_is_a_model_of_several_files(folder: Path, tmp_path: Path) -> None:
    source = write_hf_folder(tmp_path / "hub", *make_tiny("llama", 1), shards=2)
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    model = import_model(source, folder, name="hub")
    assert model.format == "safetensors"
    names = {path.name for path in model.path.iterdir()}
    assert "pytorch_model.bin" not in names
    assert {"config.json", "tokenizer.json", "model.safetensors.index.json"} <= names
    assert resolve_model("hub", folder) == model.path
    assert verify(model).sound


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "add", "link"])
def test_damage_is_found(folder: Path, three: list[StoredModel], damage: str) -> None:
    path = three[0].path
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "add":
        (path.parent / "config.json").write_text("{}")
    else:
        path.unlink()
        if damage == "link":
            path.symlink_to(three[1].path)
    if damage == "remove":
        assert find_stored("tiny@v1", folder) is None
        return
    verdict = verify(three[0])
    assert not verdict.sound
    assert verify(three[1]).sound


def test_what_cannot_be_opened_is_not_imported(folder: Path, tmp_path: Path, ggufs: list[Path]) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(ggufs[0].read_bytes()[:3000])
    with pytest.raises(ModelFileError):
        import_model(broken, folder)
    assert list_models(folder) == []


def test_a_disk_that_fills_up_leaves_the_versions_as_they_were(
    folder: Path, ggufs: list[Path], three: list[StoredModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every write to the disk that an import makes, in turn."""
    real = os.fsync
    for number in range(100):
        left = number

        def full(handle: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(handle)

        monkeypatch.setattr(os, "fsync", full)
        try:
            import_model(ggufs[0], folder, name="tiny", version="v4")
        except DownloadError:
            monkeypatch.setattr(os, "fsync", real)
            assert all(verify(model).sound for model in list_versions(folder, "tiny"))
            assert current(folder) in ("v3", "v4")
        else:
            assert number > 3
            break
    monkeypatch.setattr(os, "fsync", real)
    assert current(folder) == "v4"


@pytest.mark.parametrize(
    "record",
    [
        {"path": "../../../victim/secret.txt"},
        {"path": "/etc/passwd"},
        {"path": "a/../../b"},
        {"path": "a\\..\\b"},
        {"path": "a//b"},
        {"path": ""},
        {"path": "a\nb"},
        {"path": 5},
        {"bytes": -1},
        {"bytes": 1e400},
        {"bytes": True},
        {"sha256": "\ud800"},
    ],
)
def test_a_manifest_of_others_names_nothing_outside_its_folder(tmp_path: Path, record: dict[str, object]) -> None:
    file = {"path": "model.gguf", "bytes": 1, "sha256": "0" * 64, **record}
    (tmp_path / "manifest.json").write_text(
        json.dumps({"name": "m", "version": "v", "format": "gguf", "files": [file]})
    )
    with pytest.raises(ModelStoreError, match="cannot be understood"):
        manifest.read(tmp_path)


def test_prune_says_when_there_is_no_such_model(folder: Path, three: list[StoredModel]) -> None:
    with pytest.raises(ModelNotFoundError, match="nonexist"):
        prune(folder, "nonexist")
    (folder / ".gone.key.partial").mkdir()
    assert [each.what for each in prune(folder, "gone")] == [".gone.key.partial"]
