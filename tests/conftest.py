"""Real models for the tests.

SmolLM2 is pulled into the model folder on first use and is never skipped. Larger models take part when
LPX_TEST_MODELS_DIR names a folder that holds their files; the header of the run says which do.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lpx import store
from tests import browser

os.environ.pop("COLUMNS", None)  # of whoever runs the tests: commands would break their lines there

OPTIONAL_MODELS = {
    "qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "gemma3-270m": "gemma3-270m-q4_k_m.gguf",
}


def _optional_models() -> dict[str, Path]:
    folder = os.environ.get("LPX_TEST_MODELS_DIR")
    if not folder:
        return {}
    paths = {name: Path(folder).expanduser() / file for name, file in OPTIONAL_MODELS.items()}
    return {name: path for name, path in paths.items() if path.is_file()}


def pytest_report_header() -> list[str]:
    present = _optional_models()
    absent = [name for name in OPTIONAL_MODELS if name not in present]
    lines = [f"real models: {', '.join([store.DEFAULT_MODEL, *present])}"]
    if absent:
        lines.append(f"not tested: {', '.join(absent)} (set LPX_TEST_MODELS_DIR to a folder with their .gguf files)")
    path = browser.find()
    lines.append(f"browser: {path}" if path else f"not tested: the console in a browser ({browser.HOW})")
    return lines


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "real_model_path" in metafunc.fixturenames:
        metafunc.parametrize("real_model_path", [store.DEFAULT_MODEL, *_optional_models()], indirect=True)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The file of SmolLM2-135M-Instruct, from the model folder or pulled into it."""
    return store.pull(store.DEFAULT_MODEL, store.models_dir())


@pytest.fixture(scope="session")
def models_folder(smollm2_path: Path) -> Path:
    """The model folder, which holds SmolLM2."""
    return store.models_dir()


@pytest.fixture
def real_model_path(request: pytest.FixtureRequest) -> Path:
    """Each real model there is, one test run per model."""
    name = request.param
    return request.getfixturevalue("smollm2_path") if name == store.DEFAULT_MODEL else _optional_models()[name]
