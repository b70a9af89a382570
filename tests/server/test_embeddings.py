"""`POST /v1/embeddings` over HTTP: shapes of input and output, order, usage, refusals."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from tests.engine.fake_executor import HIDDEN, expected_hidden
from tests.server.live_server import LiveServer
from tests.server.test_refusals import error_of

PATH = "/v1/embeddings"


@pytest.fixture
def client(shared_server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=shared_server.url + "/v1", api_key="unused", max_retries=0) as client:
        yield client


def expected(text: str, dimensions: int = HIDDEN) -> Any:
    mean = np.mean(expected_hidden(list(text.encode())), axis=0)[:dimensions]
    return mean / np.linalg.norm(mean)


def test_official_client_gets_each_text_s_embedding_in_order(client: openai.OpenAI) -> None:
    texts = ["Hello", "数据", "a", "x" * 200]
    answer = client.embeddings.create(model="fake", input=texts)  # which asks for base64
    assert [item.index for item in answer.data] == [0, 1, 2, 3]
    for text, item in zip(texts, answer.data, strict=True):
        assert np.allclose(item.embedding, expected(text), atol=1e-6)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(text.encode()) for text in texts)


@pytest.mark.parametrize("given", ["ab", ["ab"], [97, 98], [[97, 98]]])
def test_input_may_be_text_or_token_ids(shared_server: LiveServer, given: Any) -> None:
    [item] = shared_server.post(PATH, {"input": given}).json()["data"]
    assert item["object"] == "embedding"
    assert np.allclose(item["embedding"], expected("ab"), atol=1e-6)


def test_base64_holds_the_same_numbers_as_little_endian_floats(shared_server: LiveServer) -> None:
    plain, coded = (
        shared_server.post(PATH, {"input": "ab", "encoding_format": form}).json()["data"][0]["embedding"]
        for form in ("float", "base64")
    )
    assert np.frombuffer(base64.b64decode(coded), "<f4").tolist() == plain


def test_fewer_dimensions_and_no_normalization(shared_server: LiveServer) -> None:
    [short] = shared_server.post(PATH, {"input": "ab", "dimensions": 3}).json()["data"]
    assert np.allclose(short["embedding"], expected("ab", 3), atol=1e-6)
    [raw] = shared_server.post(PATH, {"input": "ab", "normalize": False}).json()["data"]
    assert np.allclose(raw["embedding"], np.mean(expected_hidden([97, 98]), axis=0), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [259]}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": "x" * 257}, "input"),
        ({"input": ["x"] * 1025}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": HIDDEN + 1}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"stream": True}, "stream"),
    ],
)
def test_refusals_name_the_field(shared_server: LiveServer, change: dict[str, Any], param: str) -> None:
    assert error_of(shared_server.post(PATH, {"input": "a", **change}), 400)["param"] == param
