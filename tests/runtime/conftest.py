"""A tiny model, and an executor that runs it, for tests of steps that follow one another."""

import pytest

from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny
from tests.runtime.test_reference_float import load


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config, weights = make_tiny("llama", 3)
    return config, write_hf_folder(tmp_path_factory.mktemp("tiny") / "model", config, weights)


@pytest.fixture
def executor(folder):
    executor = load(folder[1])
    yield executor
    executor.close()
