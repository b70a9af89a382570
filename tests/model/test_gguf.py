"""The GGUF reader: what it reads, and that broken and hostile files end in an error that names the culprit."""

import resource
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lpx.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from lpx.model.gguf import GgufFile
from tests.reference.gguf_writer import TYPES, Typed, encode_value, write_gguf

MIB = 1 << 20


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def header(num_tensors: int, num_values: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_values)


def tensor_info(
    name: bytes, dims: list[int], type_number: int = 0, offset: int = 0, num_dims: int | None = None
) -> bytes:
    count = len(dims) if num_dims is None else num_dims
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, type_number, offset)


def refused(path: Path, content: bytes) -> str:
    """The message of the error for a file with this content."""
    path.write_bytes(content)
    with pytest.raises(ModelFileError) as info:
        GgufFile(path)
    return str(info.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


@pytest.mark.parametrize("version", [2, 3])
def test_values_of_every_type_come_back(path: Path, version: int) -> None:
    scalars = {
        "UINT8": 200, "INT8": -3, "UINT16": 60_000, "INT16": -300, "UINT32": 4_000_000_000, "INT32": -7,
        "FLOAT32": 0.5, "BOOL": True, "UINT64": 1 << 63, "INT64": -(1 << 62), "FLOAT64": 1e300,
    }  # fmt: skip
    metadata = {f"one.{kind}": Typed(kind, value) for kind, value in scalars.items()}
    metadata |= {f"many.{kind}": Typed(kind, [value, value]) for kind, value in scalars.items()}
    metadata |= {"text": "héllo 你好 \0", "texts": ["a", "", "\0", "你好" * 200], "none": Typed("INT32", [])}
    write_gguf(path, metadata, [], version=version)
    with GgufFile(path) as file:
        assert file.version == version
        for kind, value in scalars.items():
            assert file.metadata[f"one.{kind}"] == value
            assert type(file.metadata[f"one.{kind}"]) is type(value)
            assert list(file.metadata[f"many.{kind}"]) == [value, value]
        assert file.metadata["text"] == "héllo 你好 \0"
        assert file.metadata["texts"] == ["a", "", "\0", "你好" * 200]
        assert len(file.metadata["none"]) == 0


def test_arrays_of_arrays_are_read_to_a_depth(path: Path) -> None:
    inner = struct.pack("<IQ2i", 5, 2, 7, 8)

    def nested(depth: int) -> bytes:
        return string(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * depth + inner

    path.write_bytes(header(0, 2) + nested(3) + string(b"after") + encode_value(5))
    with GgufFile(path) as file:
        assert file.metadata["k"][0][0][0].tolist() == [7, 8]
        assert file.metadata["after"] == 5
    assert "nests arrays" in refused(path, header(0, 1) + nested(4))
    assert "nests arrays" in refused(path, header(0, 1) + nested(100_000))


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_tensors_of_every_type_come_back(path: Path, alignment: int) -> None:
    rng = np.random.default_rng(0)
    tensors = []
    for name, (_, block, size) in TYPES.items():
        data = rng.integers(0, 256, 3 * 2 * size, dtype=np.uint8).tobytes()
        tensors.append((f"t.{name}", name, (3, 2 * block), data))
    tensors.append(("four", "F32", (2, 3, 1, 5), rng.bytes(120)))
    write_gguf(path, {}, tensors, alignment=alignment)
    with GgufFile(path) as file:
        assert list(file.tensors) == [name for name, *_ in tensors]
        for name, kind, shape, data in tensors:
            tensor = file.tensors[name]
            assert (tensor.type.name, tensor.shape) == (kind, shape)
            assert tensor.view().tobytes() == data
            assert tensor.offset % alignment == 0


# --- counts and lengths that the file cannot hold (G01)

HOSTILE = {
    "values": header(0, 500_000_000),
    "tensors": header(0x1D1D1D1D1D1D1D1D, 0),
    "all counts": header(2**64 - 1, 2**64 - 1),
    "key length": header(0, 1) + struct.pack("<Q", 0xFFFFFFFFFFFF),
    "string length": header(0, 1) + string(b"k") + struct.pack("<IQ", 8, 1 << 30),
    "string length near 2^64": header(0, 1) + string(b"k") + struct.pack("<IQ", 8, 2**64 - 4),
    "array of strings": header(0, 1) + string(b"k") + struct.pack("<IIQ", 9, 8, 1 << 40),
    "array of numbers": header(0, 1) + string(b"k") + struct.pack("<IIQ", 9, 12, 1 << 61),
    "array of arrays": header(0, 1) + string(b"k") + struct.pack("<IIQ", 9, 9, 1 << 60),
    "token length": header(0, 1) + string(b"k") + struct.pack("<IIQQ", 9, 8, 1, 2**31 + 5) + b"abc",
    "tensor name": header(1, 0) + struct.pack("<Q", 1 << 62) + bytes(40),
    "many dimensions": header(1, 0) + tensor_info(b"t", [1, 1], num_dims=0xFFFFFFFF),
}


def test_counts_are_named_in_the_error(path: Path) -> None:
    assert "500000000 metadata keys cannot fit" in refused(path, HOSTILE["values"])
    assert f"{0x1D1D1D1D1D1D1D1D} tensors cannot fit" in refused(path, HOSTILE["tensors"])


@pytest.mark.parametrize("name", HOSTILE)
def test_counts_beyond_the_file_are_refused(path: Path, name: str) -> None:
    assert str(path) in refused(path, HOSTILE[name])


def test_hostile_files_take_no_memory(path: Path, tmp_path: Path) -> None:
    """In a process whose memory is limited to little more than the reader itself needs."""
    for index, content in enumerate(HOSTILE.values()):
        (tmp_path / f"{index}.gguf").write_bytes(content)
    code = """
import resource, sys
from pathlib import Path
from lpx.errors import ModelFileError
from lpx.model.gguf import GgufFile
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sorted(Path(sys.argv[1]).glob("*.gguf")):
    try:
        GgufFile(path)
    except ModelFileError:
        continue
    raise SystemExit(f"{path} was accepted")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 20 * MIB


# --- dimensions (G02, G03)


@pytest.mark.parametrize(
    ("dims", "named"),
    [
        ([(1 << 42) + 1, 4], "ends at byte"),
        ([2**64 - 1, 2, 1, 1], "ends at byte"),
        ([1 << 32, 1 << 32], "ends at byte"),
        ([4, 0], "dimension of 0"),
        ([0], "dimension of 0"),
        ([1] * 5, "5 dimensions"),
        ([1] * 9, "9 dimensions"),
        ([], "0 dimensions"),
    ],
)
def test_bad_dimensions_are_refused(path: Path, dims: list[int], named: str) -> None:
    message = refused(path, header(1, 0) + tensor_info(b"the.tensor", dims) + bytes(256))
    assert named in message
    assert "'the.tensor'" in message


@pytest.mark.parametrize("kind", [n for n, (_, block, _) in TYPES.items() if block > 1])
def test_rows_that_blocks_cannot_hold_are_refused(path: Path, kind: str) -> None:
    number, block, _ = TYPES[kind]
    message = refused(
        path, header(1, 0) + tensor_info(b"the.tensor", [172 if block == 32 else 576, 2], number) + bytes(9999)
    )
    assert "'the.tensor'" in message
    assert kind in message


@pytest.mark.parametrize("alignment", [0, 1, 3, 24, 1 << 30, Typed("INT32", -32), "32", True, 32.0])
def test_bad_alignments_are_refused(path: Path, alignment: object) -> None:
    body = string(b"general.alignment") + encode_value(alignment)
    assert "general.alignment" in refused(path, header(0, 1) + body + bytes(64))


def test_empty_and_repeated_names_are_refused(path: Path) -> None:
    value = encode_value(1)
    assert "is empty" in refused(path, header(0, 1) + string(b"") + value + bytes(32))
    assert "'a.key' appears twice" in refused(path, header(0, 2) + (string(b"a.key") + value) * 2)
    assert "empty name" in refused(path, header(1, 0) + tensor_info(b"", [4]) + bytes(64))
    twice = tensor_info(b"t", [4]) + tensor_info(b"t", [4], offset=32)
    assert "'t' appears twice" in refused(path, header(2, 0) + twice + bytes(256))


# --- value types (G04)


def test_unknown_value_types_are_refused(path: Path) -> None:
    assert "unknown type 99" in refused(path, header(0, 1) + string(b"k") + struct.pack("<I", 99) + bytes(64))
    array = string(b"k") + struct.pack("<IIQ", 9, 99, 4) + bytes(64)
    assert "unknown type 99" in refused(path, header(0, 1) + array)


def test_bools_other_than_0_and_1_are_refused(path: Path) -> None:
    assert "bool" in refused(path, header(0, 1) + string(b"k") + struct.pack("<IB", 7, 2))
    assert "bool" in refused(path, header(0, 1) + string(b"k") + struct.pack("<IIQ", 9, 7, 3) + b"\1\0\2")


def test_text_that_is_not_utf8_is_refused(path: Path) -> None:
    assert "not UTF-8" in refused(path, header(0, 1) + string(b"k") + struct.pack("<I", 8) + string(b"\xff"))
    texts = string(b"k") + struct.pack("<IIQ", 9, 8, 3) + string(b"a") + string(b"\xe4\xbd") + string(b"\xa0")
    assert "entry 1 of metadata key 'k' is not UTF-8" in refused(path, header(0, 1) + texts)


# --- tensor data (G06)


def two_tensors(first: int, second: int) -> bytes:
    infos = tensor_info(b"one", [16], offset=first) + tensor_info(b"two", [16], offset=second)
    start = header(2, 0) + infos
    return start + bytes(-len(start) % 32) + bytes(128)


def test_tensors_side_by_side_are_accepted(path: Path) -> None:
    for offsets in ((0, 64), (64, 0)):
        path.write_bytes(two_tensors(*offsets))
        GgufFile(path).close()


def test_tensor_data_elsewhere_is_refused(path: Path) -> None:
    assert "overlap" in refused(path, two_tensors(0, 0))
    assert "overlap" in refused(path, two_tensors(32, 64))
    assert "multiple of the alignment" in refused(path, two_tensors(0, 68))
    for offset in (96, 1 << 20, (1 << 64) - 32):
        message = refused(path, two_tensors(0, offset))
        assert "'two' ends at byte" in message
        assert "but the file has 224 bytes" in message


def test_every_truncation_is_refused(path: Path) -> None:
    data = np.arange(64, dtype=np.float32).tobytes()
    whole = write_gguf(path, {"a": 1, "b": ["x", "y"], "c": 2.5}, [("t", "F32", (4, 16), data)]).read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            GgufFile(path)


def test_a_file_cut_after_opening_is_an_error_not_a_crash(path: Path) -> None:
    data = bytes(64 * 4096)
    write_gguf(path, {}, [("t", "F32", (16, 4096), data)])
    with GgufFile(path) as file:
        with path.open("r+b") as other:
            other.truncate(4096)
        with pytest.raises(ModelFileError, match="shrank"):
            file.tensors["t"].view()


# --- kinds of files


def test_other_files_are_refused_by_what_they_are(path: Path) -> None:
    assert "empty" in refused(path, b"")
    assert "not a GGUF file" in refused(path, b"PK\x03\x04" + bytes(64))
    assert "cut off" in refused(path, b"GG")
    assert "cut off" in refused(path, b"GGUF\3\0\0")
    assert "version 1" in refused(path, header(0, 0, version=1))
    assert "version 4" in refused(path, header(0, 0, version=4))
    assert "big-endian" in refused(path, b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    with pytest.raises(ModelNotFoundError):
        GgufFile(path.with_name("absent.gguf"))
    with pytest.raises(ModelFileError, match="not a regular file"):
        GgufFile(path.parent)


@pytest.mark.parametrize(
    ("number", "name"), [(4, "Q4_2"), (9, "Q8_1"), (16, "IQ2_XXS"), (24, "I8"), (31, "Q4_0_4_4"), (39, "MXFP4")]
)
def test_types_that_are_not_read_are_refused_by_name(path: Path, number: int, name: str) -> None:
    path.write_bytes(header(1, 0) + tensor_info(b"the.tensor", [256], number) + bytes(999))
    with pytest.raises(UnsupportedModelError, match=f"'the.tensor' has type {name}"):
        GgufFile(path)


def test_types_without_a_name_are_refused_by_number(path: Path) -> None:
    assert "unknown GGML type 77" in refused(path, header(1, 0) + tensor_info(b"t", [256], 77) + bytes(999))


def test_memory_of_read_tensors_is_given_back(path: Path) -> None:
    write_gguf(path, {}, [("t", "F32", (4096, 4096), bytes(64 * MIB))])

    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    with GgufFile(path) as file:
        before = resident()
        tensor = file.tensors["t"]
        view = tensor.view()
        assert int(view.sum(dtype=np.int64)) == 0
        assert resident() - before > 48 * MIB
        file.file.drop(tensor.offset, tensor.nbytes)
        assert resident() - before < 16 * MIB
        assert int(view[:MIB].sum(dtype=np.int64)) == 0  # and the view still reads
