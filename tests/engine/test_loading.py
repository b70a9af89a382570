"""Loading does two things at once; whichever goes wrong, it ends with that error and leaves nothing behind."""

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lpx.engine import loading
from lpx.engine.engine import Engine
from lpx.errors import ChatTemplateError, ModelFileError, TokenizerError
from lpx.options import EngineOptions
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config, weights = make_tiny("llama", num_hidden_layers=1)
    return write_hf_folder(tmp_path, config, weights)


@pytest.fixture(params=["beside the weights", "before the weights"], autouse=True)
def when_the_tokenizer_is_built(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "before the weights":
        monkeypatch.setattr(loading, "_LARGE_VOCABULARY", 1)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def test_a_model_loads_and_leaves_no_thread_of_python(model: Path) -> None:
    Engine.load(EngineOptions(str(model), threads=2)).close()
    assert gc.isenabled()


def test_a_broken_tokenizer_ends_the_load(model: Path) -> None:
    (model / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Engine.load(EngineOptions(str(model), threads=2))
    assert gc.isenabled()


def test_a_broken_template_ends_the_load(model: Path) -> None:
    with pytest.raises(ChatTemplateError, match="line 1"):
        Engine.load(EngineOptions(str(model), threads=2, chat_template="{% if %}"))


def test_weights_that_cannot_be_packed_end_the_load(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lpx.runtime.cpu.executor._batches", lambda weights: ([w, w] for w in weights))
    with pytest.raises(ModelFileError, match="given twice"):
        Engine.load(EngineOptions(str(model), threads=2))
