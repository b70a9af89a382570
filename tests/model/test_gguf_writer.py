"""Files that LPX writes: read back as they were meant, by LPX and by ggml's own reader, and whole or not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from hypothesis import given
from hypothesis import strategies as st

from lpx.errors import ModelFileError
from lpx.model.gguf import GgufFile
from lpx.model.gguf_writer import GgufTensor, Typed, write_gguf
from lpx.model.tensor_types import TYPES

METADATA = {
    "general.architecture": "llama",
    "general.name": "模型",
    "a.flag": True,
    "a.small": 7,
    "a.negative": -7,
    "a.large": 2**40,
    "a.typed": Typed("UINT64", 5),
    "a.float": 0.5,
    "a.texts": ["<s>", "▁the", ""],
    "a.numbers": np.array([1.5, -2.5], np.float32),
    "a.types": np.array([1, 3], np.int32),
    "a.flags": np.array([True, False]),
}


def tensor(name: str, values: np.ndarray, kind: str = "F32", pieces: int = 1) -> GgufTensor:
    return GgufTensor(name, TYPES[kind], values.shape, lambda: np.array_split(values, pieces))


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_what_is_written_is_read(tmp_path: Path, alignment: int) -> None:
    first = np.arange(15, dtype=np.float32).reshape(3, 5)
    second = np.arange(8, dtype=np.float16)
    path = tmp_path / "x.gguf"
    tensors = [tensor("first", first, pieces=3), tensor("second", second, "F16")]
    seen: list[tuple[int, int]] = []
    write_gguf(path, METADATA, tensors, alignment=alignment, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (76, 76)
    with GgufFile(path) as file:
        for key, value in METADATA.items():
            expected = value.value if isinstance(value, Typed) else value
            found = file.metadata[key]
            assert np.array_equal(found, expected) if isinstance(expected, np.ndarray) else found == expected, key
        assert file.tensors["first"].shape == (3, 5)
        assert bytes(file.tensors["first"].view()) == first.tobytes()
        assert bytes(file.tensors["second"].view()) == second.tobytes()
        assert all(each.offset % alignment == 0 for each in file.tensors.values())
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.gguf"]


def test_another_reader_agrees(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    values = np.arange(64, dtype=np.float32).reshape(2, 32)
    write_gguf(path, METADATA, [tensor("blk.0.attn_q.weight", values)])
    reader = GGUFReader(path)
    assert np.array_equal(reader.tensors[0].data, values)
    assert {key for key in reader.fields if not key.startswith("GGUF.")} == set(METADATA)
    assert reader.get_field("general.name").contents() == "模型"
    assert reader.get_field("a.texts").contents() == ["<s>", "▁the", ""]


def test_a_tensor_that_is_not_what_it_says_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"before")
    wrong = GgufTensor("w", TYPES["F32"], (4,), lambda: [b"123"])
    with pytest.raises(ModelFileError, match="takes 16 bytes, and 3 came"):
        write_gguf(path, {}, [wrong])
    assert path.read_bytes() == b"before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.gguf"]


@pytest.mark.parametrize(
    ("metadata", "tensors", "said"),
    [
        ({"a": None}, [], "no type"),
        ({"a": [1, 2]}, [], "no type"),
        ({}, [GgufTensor("x" * 64, TYPES["F32"], (1,), list)], "does not fit"),
        ({}, [GgufTensor("x", TYPES["F32"], (1, 1, 1, 1, 1), list)], "does not fit"),
        ({}, [GgufTensor("x", TYPES["Q8_0"], (2, 33), list)], "whole blocks"),
        ({}, [GgufTensor("x", TYPES["F32"], (1,), list)] * 2, "same name"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(tmp_path: Path, metadata: dict, tensors: list, said: str) -> None:
    with pytest.raises(ModelFileError, match=said):
        write_gguf(tmp_path / "x.gguf", metadata, tensors)
    assert list(tmp_path.iterdir()) == []


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(lambda key: key != "general.alignment"),
        st.booleans()
        | st.integers(-(2**31), 2**63)
        | st.text(st.characters(codec="utf-8"), max_size=20)
        | st.floats(width=32, allow_nan=False)
        | st.lists(st.text(st.characters(codec="utf-8"), max_size=5), min_size=1, max_size=4),
        max_size=5,
    )
)
def test_any_metadata_comes_back(tmp_path_factory: pytest.TempPathFactory, metadata: dict) -> None:
    path = tmp_path_factory.mktemp("gguf") / "x.gguf"
    write_gguf(path, metadata, [tensor("t", np.zeros(1, np.float32))])
    with GgufFile(path) as file:
        assert dict(file.metadata) == metadata
