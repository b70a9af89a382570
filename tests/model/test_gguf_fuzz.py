"""Random damage to a sound GGUF model never does anything but raise ModelFileError."""

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lpx.errors import ModelFileError
from lpx.model.files import open_model
from lpx.model.gguf import GgufFile
from tests.reference.model_files import write_model_gguf
from tests.reference.tiny_models import make_tiny

FUZZ = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    config, weights = make_tiny("llama3", num_hidden_layers=1, hidden_size=16, intermediate_size=8)
    return write_model_gguf(tmp_path_factory.mktemp("fuzz") / "m.gguf", config, weights).read_bytes()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "m.gguf"


def read_all(path: Path) -> None:
    """Everything a user of the file does; what is accepted must also be readable."""
    try:
        with open_model(path) as model:
            for weight in model.weights():
                assert weight.data.nbytes > 0
    except ModelFileError:
        pass


def header_end(content: bytes) -> int:
    """Damage is worth most where the reader looks: in the header and the tensor table."""
    return content.rindex(b"output_norm.weight") + 64


@FUZZ
@given(data=st.data())
def test_changed_bytes(sound: bytes, target: Path, data: st.DataObject) -> None:
    content = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, header_end(sound)))] = data.draw(st.integers(0, 255))
    target.write_bytes(content)
    read_all(target)


@FUZZ
@given(data=st.data())
def test_changed_integers(sound: bytes, target: Path, data: st.DataObject) -> None:
    content = bytearray(sound)
    value = data.draw(
        st.one_of(
            st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63, 2**64 - 1]),
            st.integers(0, 2**64 - 1),
        )
    )
    position = data.draw(st.integers(0, header_end(sound)))
    if data.draw(st.booleans()):
        content[position : position + 8] = struct.pack("<Q", value)
    else:
        content[position : position + 4] = struct.pack("<I", value & 0xFFFFFFFF)
    target.write_bytes(content)
    read_all(target)


@FUZZ
@given(data=st.data())
def test_cut_and_grown_files(sound: bytes, target: Path, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(sound)))
    end = data.draw(st.integers(begin, len(sound)))
    target.write_bytes(sound[:begin] + data.draw(st.binary(max_size=64)) + sound[end:])
    read_all(target)


@FUZZ
@given(body=st.binary(max_size=300), tensors=st.integers(0, 3), values=st.integers(0, 3))
def test_random_bytes_after_a_sound_start(target: Path, body: bytes, tensors: int, values: int) -> None:
    target.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, values) + body)
    with contextlib.suppress(ModelFileError):
        GgufFile(target).close()
