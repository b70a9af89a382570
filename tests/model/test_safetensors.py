"""The safetensors reader: layout rules (each with the file that breaks it), shards, and random damage."""

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lpx.errors import ModelFileError, UnsupportedModelError
from lpx.model.safetensors_reader import read_safetensors, read_shards

F32_4 = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


def content(header: dict[str, Any] | str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def read(path: Path, data: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    path.write_bytes(data)
    file, tensors = read_safetensors(path)
    with file:
        return {name: (t.type.name, t.shape, t.view().tobytes()) for name, t in tensors.items()}


def refused(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as info:
        read_safetensors(path)
    return str(info.value)


def test_files_of_the_reference_writer_are_read(path: Path) -> None:
    arrays = {
        "a": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b": np.arange(5, dtype=np.float16),
        "scalar": np.array(3.5, dtype=np.float32),
        "none": np.zeros((0, 4), dtype=np.float32),
    }
    safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})
    found = read(path, path.read_bytes())
    assert {name: (shape, data) for name, (_, shape, data) in found.items()} == {
        name: (array.shape, array.tobytes()) for name, array in arrays.items()
    }


def test_sound_layouts_are_accepted(path: Path) -> None:
    data = bytes(range(24))
    header = {"b": entry("BF16", [2, 2], 16, 24), "__metadata__": {"x": "y"}, "a": F32_4}
    assert read(path, content(header, data)) == {"b": ("BF16", (2, 2), data[16:]), "a": ("F32", (4,), data[:16])}
    # No values: an empty range, wherever it lies on a border.
    assert read(path, content({"a": F32_4, "e": entry("F32", [0], 16, 16), "f": entry("F32", [0], 0, 0)}, data[:16]))
    assert read(path, content({})) == {}
    reordered = '{"a":{"data_offsets":[0,16],"shape":[4],"dtype":"F32"}}'
    assert read(path, content(reordered, data[:16])) == {"a": ("F32", (4,), data[:16])}
    assert read(path, content(reordered + "   ", data[:16]))


@pytest.mark.parametrize(
    ("header", "data", "named"),
    [
        ({"a": F32_4, "b": F32_4}, bytes(16), "overlap"),
        ({"k_proj": F32_4, "v_proj": entry("F32", [4], 8, 24)}, bytes(24), "'v_proj' overlaps"),
        ({"a": entry("F32", [4], 8, 24)}, bytes(24), "8 bytes before tensor 'a'"),
        ({"a": F32_4, "b": entry("F32", [1], 20, 24)}, bytes(24), "4 bytes before tensor 'b'"),
        ({"a": F32_4}, bytes(20), "4 bytes at the end"),
        ({}, bytes(1), "1 bytes at the end"),
        ({"a": F32_4}, bytes(12), "'a'"),
        ({"a": entry("F32", [1000, 1000], 0, 4)}, bytes(4), "need 4000000 bytes"),
        ({"a": entry("F32", [1], 0, 0)}, b"", "need 4 bytes"),
        ({"a": entry("F32", [1], 4, 0)}, bytes(4), "range 4 to 0"),
        ({"a": entry("F32", [1 << 32, 1 << 32], 0, 4)}, bytes(4), "'a'"),
        ({"a": entry("F32", [1 << 63], 0, 4)}, bytes(4), "bad shape"),
        ({"a": entry("F32", [-1], 0, 4)}, bytes(4), "bad shape"),
        ({"a": entry("F32", [1.0], 0, 4)}, bytes(4), "bad shape"),
        ({"a": entry("F32", [True], 0, 4)}, bytes(4), "bad shape"),
        ({"a": entry("F32", "4", 0, 4)}, bytes(4), "bad shape"),  # type: ignore[arg-type]
        ({"a": entry("F32", [1] * 9, 0, 4)}, bytes(4), "bad shape"),
        ({"a": entry("F32", [1], -4, 0)}, bytes(4), "data_offsets"),
        ({"a": entry("F32", [1], 0, 1 << 70)}, bytes(4), "data_offsets"),
        ({"a": entry("F32", [1], 0, None)}, bytes(4), "data_offsets"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, bytes(4), "data_offsets"),
        ({"a": {"dtype": "F32", "shape": [1]}}, bytes(4), "exactly dtype"),
        ({"a": F32_4 | {"extra": 1}}, bytes(16), "exactly dtype"),
        ({"a": [1]}, b"", "exactly dtype"),
        ({"a": entry("Q9", [4], 0, 16)}, bytes(16), "unknown dtype 'Q9'"),
        ({"a": entry(7, [4], 0, 16)}, bytes(16), "dtype that is not a string"),  # type: ignore[arg-type]
        ({"__metadata__": {"x": 1}}, b"", "__metadata__"),
        ({"__metadata__": "x"}, b"", "__metadata__"),
        (f'{{"a":{json.dumps(F32_4)},"a":{json.dumps(F32_4)}}}', bytes(16), "key 'a' twice"),
        ('{"a":{"dtype":"F32","dtype":"F16","shape":[4],"data_offsets":[0,16]}}', bytes(16), "key 'dtype' twice"),
        ("[]", b"", "not a JSON object"),
        ('{"a":', b"", "not sound JSON"),
        ("[" * 100_000, b"", "not sound JSON"),
        (b'{"\xff":1}', b"", "not sound JSON"),
    ],
)
def test_broken_layouts_are_refused(path: Path, header: dict[str, Any] | str | bytes, data: bytes, named: str) -> None:
    message = refused(path, content(header, data))
    assert named in message
    assert str(path) in message


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100_000_001, 1_000_000])
def test_header_lengths_beyond_the_file_or_the_limit_are_refused(path: Path, length: int) -> None:
    assert "the header claims" in refused(path, content({"a": F32_4}, bytes(16), length=length))


def test_the_limit_of_the_header_holds_in_large_files_too(path: Path) -> None:
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_001))
        file.truncate(200_000_000)  # a hole: it takes no room on disk
    with pytest.raises(ModelFileError, match="more than the limit of 100000000"):
        read_safetensors(path)


def test_short_files_are_refused(path: Path) -> None:
    assert "empty" in refused(path, b"")
    assert "cut off" in refused(path, b"\x10\0\0")
    sound = content({"a": F32_4}, bytes(16))
    for length in range(1, len(sound)):
        refused(path, sound[:length])


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I32", "U8", "I8", "F64", "BOOL"])
def test_types_that_are_not_read_are_refused_by_name(path: Path, dtype: str) -> None:
    path.write_bytes(content({"layer.qweight": entry(dtype, [16], 0, 16)}, bytes(16)))
    with pytest.raises(UnsupportedModelError, match=f"'layer.qweight' has dtype {dtype}"):
        read_safetensors(path)


SOUND = content({"__metadata__": {"format": "pt"}, "a": F32_4, "b": entry("F16", [2, 2], 16, 24)}, bytes(24))


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_damage_only_ever_raises_model_file_error(path: Path, data: st.DataObject) -> None:
    damaged = bytearray(SOUND)
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(SOUND) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        damaged = damaged[: data.draw(st.integers(0, len(SOUND)))]
    with contextlib.suppress(ModelFileError):
        read(path, bytes(damaged))


# --- shards


def write_shards(folder: Path, weight_map: dict[str, str] | None = None) -> None:
    (folder / "x-1.safetensors").write_bytes(content({"a": F32_4}, bytes(16)))
    (folder / "x-2.safetensors").write_bytes(content({"b": F32_4}, bytes(16)))
    index = {"weight_map": weight_map or {"a": "x-1.safetensors", "b": "x-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def shards_refused(folder: Path) -> str:
    with pytest.raises(ModelFileError) as info:
        read_shards(folder)
    return str(info.value)


def test_shards_are_read_together(tmp_path: Path) -> None:
    write_shards(tmp_path)
    files, tensors = read_shards(tmp_path)
    assert sorted(tensors) == ["a", "b"]
    assert [file.path.name for file in files] == ["x-1.safetensors", "x-2.safetensors"]
    for file in files:
        file.close()


@pytest.mark.parametrize(
    "name",
    [
        "../x-1.safetensors",
        "/etc/x.safetensors",
        "sub/x.safetensors",
        "..\\x.safetensors",
        "x.bin",
        "..",
        "",
        "a\0.safetensors",
    ],
)
def test_an_index_cannot_point_elsewhere(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "x-1.safetensors").write_bytes(content({"a": F32_4}, bytes(16)))
    write_shards(folder, {"a": name, "b": "x-2.safetensors"})
    assert "plain name" in shards_refused(folder)


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_shards(folder)
    outside = tmp_path / "outside.safetensors"
    (folder / "x-1.safetensors").rename(outside)
    (folder / "x-1.safetensors").symlink_to(outside)
    assert "leads out of" in shards_refused(folder)


def test_links_of_a_hugging_face_cache_are_followed(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    write_shards(folder)
    (folder / "x-1.safetensors").rename(tmp_path / "blobs" / "123")
    (folder / "x-1.safetensors").symlink_to(Path("../../blobs/123"))
    files, tensors = read_shards(folder)
    assert sorted(tensors) == ["a", "b"]
    for file in files:
        file.close()


def test_shards_that_do_not_match_their_index_are_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a": "x-1.safetensors", "b": "x-2.safetensors", "c": "x-2.safetensors"})
    assert "the index names tensor 'c'" in shards_refused(tmp_path)
    write_shards(tmp_path, {"a": "x-2.safetensors", "b": "x-2.safetensors"})
    assert "names tensor 'a'" in shards_refused(tmp_path)
    write_shards(tmp_path, {"a": "x-2.safetensors", "b": "x-1.safetensors"})
    assert "does not place it here" in shards_refused(tmp_path)
    write_shards(tmp_path)
    (tmp_path / "x-2.safetensors").write_bytes(content({"a": F32_4, "b": entry("F32", [4], 16, 32)}, bytes(32)))
    assert "'a' is in another file" in shards_refused(tmp_path)
    (tmp_path / "x-2.safetensors").unlink()
    assert "'x-2.safetensors' is missing" in shards_refused(tmp_path)


def test_several_files_need_an_index(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert "no model.safetensors.index.json" in shards_refused(tmp_path)
    for file in tmp_path.iterdir():
        file.unlink()
    assert "no .safetensors files" in shards_refused(tmp_path)


@pytest.mark.parametrize("text", ["{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', '{"weight_map": []}'])
def test_broken_indexes_are_refused(tmp_path: Path, text: str) -> None:
    write_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert "weight_map" in shards_refused(tmp_path)
