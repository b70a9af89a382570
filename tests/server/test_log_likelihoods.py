"""The requests of lm-evaluation-harness's `local-completions`: prompts as ids, echoed with log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from lpx.engine.async_engine import AsyncEngine
from lpx.engine.engine import Engine
from lpx.options import EngineOptions
from lpx.quality import ScoredModel
from tests.reference.model_files import write_model_gguf
from tests.reference.tiny_models import make_tiny
from tests.server.live_server import LiveServer, eventually


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> EngineOptions:
    config, weights = make_tiny("llama", 5)
    path = write_model_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", config, weights)
    return EngineOptions(model=str(path), max_model_len=128, threads=1)


@pytest.fixture(scope="module")
def server(options: EngineOptions) -> Iterator[LiveServer]:
    server = LiveServer(AsyncEngine.start(Engine.load(options)))
    yield server
    eventually(lambda: server.idle, "an idle engine")
    server.close()


def test_summed_logprobs_of_continuations_are_those_of_the_distributions(
    server: LiveServer, options: EngineOptions
) -> None:
    info = server.get("/tokenizer_info").json()
    assert isinstance(info["eos_token"], str)  # the harness uses a server's tokenizer only with this
    pairs = [("The sky is", " blue"), ("天空是", "蓝色的"), ("a", "b c d")]
    prompts, lengths = [], []
    for context, continuation in pairs:
        ids, whole = (
            server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
            for text in (context, context + continuation)
        )
        prompts.append(whole)
        lengths.append(len(ids))
    body = {
        "model": server.get("/v1/models").json()["data"][0]["id"],
        "prompt": prompts,
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    choices = server.post("/v1/completions", body).json()["choices"]
    with ScoredModel(options, 128) as model:
        model.load()
        for choice, ids, length in zip(choices, prompts, lengths, strict=True):
            logits = np.concatenate(list(model.logits(ids))).astype(np.float64)
            expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            found = choice["logprobs"]
            assert len(found["token_logprobs"]) == len(found["top_logprobs"]) == len(ids) + 1
            assert found["token_logprobs"][0] is None
            for at in range(length, len(ids)):
                assert found["token_logprobs"][at] == pytest.approx(expected[at - 1, ids[at]], abs=1e-3)
                likeliest = expected[at - 1].max()
                assert max(found["top_logprobs"][at].values()) == pytest.approx(likeliest, abs=1e-3)
                greedy = found["token_logprobs"][at] == max(found["top_logprobs"][at].values())
                assert greedy == (expected[at - 1].argmax() == ids[at])  # compared as numbers by the harness
