"""`POST /tokenize` and `/detokenize`: what the service itself makes of texts and conversations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lpx.engine.async_engine import AsyncEngine
from lpx.engine.engine import Engine
from lpx.options import EngineOptions
from tests.reference.model_files import write_model_gguf
from tests.reference.tiny_models import make_tiny
from tests.server.live_server import LiveServer, eventually
from tests.server.test_refusals import error_of


def test_text_gives_the_ids_that_a_completion_counts(shared_server: LiveServer) -> None:
    answer = shared_server.post("/tokenize", {"prompt": "Hé"}).json()
    assert answer == {"count": 3, "max_model_len": 256, "tokens": list("Hé".encode()), "token_strs": None}
    usage = shared_server.post("/v1/completions", {"prompt": "Hé", "max_tokens": 1}).json()["usage"]
    assert usage["prompt_tokens"] == 3


def test_pieces_and_their_bytes(shared_server: LiveServer) -> None:
    answer = shared_server.post("/tokenize", {"content": "aé", "with_pieces": True}).json()
    assert answer["tokens"] == [
        {"id": 97, "piece": "a"},
        {"id": 195, "piece": [195]},
        {"id": 169, "piece": [169]},
    ]
    strings = shared_server.post("/tokenize", {"prompt": "ab", "return_token_strs": True}).json()["token_strs"]
    assert strings == ["a", "b"]


def test_conversation(shared_server: LiveServer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    answer = shared_server.post("/tokenize", {"messages": messages}).json()
    assert bytes(answer["tokens"]) == b"user: Hi\nassistant: "
    answer = shared_server.post("/tokenize", {"messages": messages, "add_generation_prompt": False}).json()
    assert bytes(answer["tokens"]) == b"user: Hi\n"


def test_round_trip(shared_server: LiveServer) -> None:
    text = "数据 😀"
    tokens = shared_server.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert shared_server.post("/detokenize", {"tokens": tokens}).json() == {"prompt": text, "content": text}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "content": "b"}, "content"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"messages": [], "add_special": True}, "messages"),
        ("/tokenize", {"prompt": "a", "add_special": True, "add_special_tokens": True}, "add_special"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}], "parse_special": True}, "parse_special"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [259]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
    ],
)
def test_refusals_name_the_field(shared_server: LiveServer, path: str, body: dict[str, Any], param: str) -> None:
    error = error_of(shared_server.post(path, body), 404 if param == "model" else 400)
    assert error["param"] == param


@pytest.fixture(scope="module")
def real_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    config, weights = make_tiny("llama", 5)
    path = write_model_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", config, weights)
    server = LiveServer(AsyncEngine.start(Engine.load(EngineOptions(model=str(path), max_model_len=128))))
    yield server
    eventually(lambda: server.idle, "an idle engine")
    server.close()


def test_spelled_markers_are_text_unless_asked_for(real_tokenizer: LiveServer) -> None:
    def ids(**body: Any) -> list[int]:
        tokens: list[int] = real_tokenizer.post("/tokenize", body).json()["tokens"]
        return tokens

    marker = real_tokenizer.post("/detokenize", {"tokens": [256]}).json()["prompt"]
    assert marker
    assert 256 not in ids(content=marker)
    assert ids(content=marker, parse_special=True) == [256]
    assert ids(prompt="a", add_special_tokens=False) == ids(content="a")
    assert ids(prompt="a") == ids(content="a", add_special=True)


def test_tokenizer_info_names_special_tokens_template_and_sizes(shared_server: LiveServer) -> None:
    answer = shared_server.get("/tokenizer_info").json()
    assert answer["bos_token"] == "<256>"
    assert answer["eos_token"] == "<257>"
    assert answer["pad_token"] is answer["unk_token"] is None
    assert answer["eos_token_ids"] == [257]
    assert "m.content" in answer["chat_template"]
    assert (answer["model_max_length"], answer["vocab_size"]) == (256, 259)
