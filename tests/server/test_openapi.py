"""`/openapi.json` is sound, complete, and true: whatever it allows or forbids, answers are as it says and never 5xx.

`LPX_OPENAPI_CASES` sets how many requests are made for each operation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lpx.engine.async_engine import AsyncEngine
from lpx.engine.engine import Engine
from lpx.options import EngineOptions
from lpx.server.app import ROUTES
from lpx.server.openapi import openapi_document
from lpx.server.settings import ServerSettings
from tests.reference.model_files import write_model_gguf
from tests.reference.tiny_models import make_tiny
from tests.server.live_server import LiveServer, eventually

CASES = int(os.environ.get("LPX_OPENAPI_CASES", "12"))
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
# Not described there: figures for Prometheus, the document itself, what is no HTTP, and what browsers sign in with.
CONSOLE = {"/", "/console/{version}/{name:path}", "/console/live", "/console/limit"}
LEFT_OUT = {"/metrics", "/openapi.json", "/v1/stream", "/login", "/logout", *CONSOLE}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
PATHS = openapi_document()["paths"]
OPERATIONS = sorted((path, method) for path, operations in PATHS.items() for method in operations)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A tiny real model."""
    config, weights = make_tiny("llama", 5)
    path = write_model_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", config, weights)
    options = EngineOptions(model=str(path), max_model_len=64, threads=1, chat_template=TEMPLATE, measure_steps=False)
    data_dir = tmp_path_factory.mktemp("private") / "data"
    server = LiveServer(AsyncEngine.start(Engine.load(options)), ServerSettings(data_dir=data_dir))
    yield server
    eventually(lambda: server.idle, "an idle engine")
    server.close()


def test_every_route_is_described(server: LiveServer) -> None:
    document = server.get("/openapi.json").json()
    assert {path.replace("{name}", "{name:path}") for path in document["paths"]} == set(ROUTES) - LEFT_OUT
    for operations in document["paths"].values():
        for operation in operations.values():
            assert "422" not in operation["responses"]
            if "requestBody" in operation:
                assert {"200", "400", "408", "413", "415", "429"} <= set(operation["responses"])


@pytest.mark.parametrize(
    ("path", "method", "mode"),
    [(path, method, GenerationMode.POSITIVE) for path, method in OPERATIONS]
    + [(path, method, GenerationMode.NEGATIVE) for path, method in OPERATIONS if "requestBody" in PATHS[path][method]],
    ids=lambda value: value.value if isinstance(value, GenerationMode) else value,
)
def test_answers_are_as_described(server: LiveServer, path: str, method: str, mode: GenerationMode) -> None:
    operation = schemathesis.openapi.from_url(server.url + "/openapi.json")[path][method.upper()]

    @settings(
        max_examples=CASES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=CHECKS)

    check()
