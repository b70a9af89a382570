"""Embeddings through the engine: pooled as the model says, whatever runs beside them, and every block given back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lpx.engine.embedding import check_dimensions, finish_embedding
from lpx.engine.engine import Engine
from lpx.engine.llm import LLM
from lpx.engine.outputs import RequestDelta
from lpx.engine.sampling_params import SamplingParams
from lpx.errors import ContextLengthError, InvalidRequestError
from lpx.model.pooling import Pooling
from tests.engine.fake_executor import ByteTokenizer, FakeExecutor, expected_hidden, expected_tokens
from tests.reference.model_files import write_hf_folder
from tests.reference.numpy_model import ReferenceModel
from tests.reference.tiny_models import make_tiny


def make(pooling: Pooling | None = None, *, num_blocks: int = 64, **options: Any) -> Engine:
    options.setdefault("max_model_len", 120)
    options.setdefault("max_num_seqs", 8)
    options.setdefault("max_num_batched_tokens", 16)
    return Engine(FakeExecutor(num_blocks=num_blocks), ByteTokenizer(), pooling=pooling, **options)


def drain(engine: Engine) -> dict[str, list[RequestDelta]]:
    deltas: dict[str, list[RequestDelta]] = {}
    while engine.has_work:
        for delta in engine.step():
            deltas.setdefault(delta.request_id, []).append(delta)
    assert engine.kv_cache.num_free == engine.kv_cache.num_blocks
    return deltas


def mean_of(prompt: Sequence[int]) -> Any:
    return sum(expected_hidden(prompt))


def test_hidden_states_are_summed_over_chunks_beside_running_streams() -> None:
    engine = make()
    stream = engine.add_request(b"a stream".hex(), SamplingParams(temperature=0, max_tokens=30), "stream")
    prompts = [list(b"x" * length) for length in (1, 4, 17, 50)]
    for index, prompt in enumerate(prompts):
        engine.add(engine.make_embedding_request(prompt, request_id=str(index)))
    deltas = drain(engine)
    for index, prompt in enumerate(prompts):
        (delta,) = deltas[str(index)]
        assert (delta.finish_reason, delta.token_ids, delta.text) == ("stop", [], "")
        assert np.array_equal(delta.pooled, mean_of(prompt))
    made = [token_id for delta in deltas[stream] for token_id in delta.token_ids]
    assert made == expected_tokens(list(b"a stream".hex().encode()), 30)


@pytest.mark.parametrize("kind", ["mean", "first", "last"])
def test_a_prompt_that_is_cached_has_the_same_embedding(kind: Any) -> None:
    engine = make(Pooling(kind))
    prompt = list(range(40, 83))
    states = expected_hidden(prompt)
    expected = {"mean": sum(states), "first": states[0], "last": states[-1]}[kind]
    for _ in range(2):
        engine.add(engine.make_embedding_request(prompt, request_id="one"))
        (delta,) = drain(engine)["one"]
        assert np.array_equal(delta.pooled, expected)
    assert delta.cached_tokens == (40 if kind == "last" else 0)


def test_an_embedding_that_gave_its_blocks_up_is_summed_anew() -> None:
    engine = make(num_blocks=16, max_num_batched_tokens=5, max_num_seqs=4, enable_prefix_caching=False)
    for name in ("a", "b", "c"):
        engine.add_request(list(name.encode()), SamplingParams(temperature=0, max_tokens=20), name)
    engine.step()
    prompt = list(range(40, 80))
    engine.add(engine.make_embedding_request(prompt, request_id="one"))
    (delta,) = drain(engine)["one"]
    assert engine.stats().preemptions_total > 0
    assert np.array_equal(delta.pooled, mean_of(prompt))


def test_texts_get_what_the_model_wants_behind_them() -> None:
    engine = make(Pooling("last", end_ids=(257,)))
    assert engine.make_embedding_request("ab").prompt_ids == [97, 98, 257]


def test_the_whole_context_can_be_embedded_and_not_more() -> None:
    engine = make()
    engine.add(engine.make_embedding_request([65] * 120))
    drain(engine)
    with pytest.raises(ContextLengthError, match="121 tokens"):
        engine.make_embedding_request([65] * 121)


@pytest.mark.parametrize(("prompt", "message"), [("", "empty"), ([], "no token ids"), ([259], "id 259"), ([-1], "-1")])
def test_input_without_meaning_is_refused(prompt: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        make().make_embedding_request(prompt)
    assert caught.value.param == "input"


def test_abort_gives_the_blocks_back() -> None:
    engine = make()
    engine.add(engine.make_embedding_request([65] * 100, request_id="one"))
    engine.step()
    (delta,) = engine.abort_request("one")
    assert delta.finish_reason == "abort"
    assert engine.kv_cache.num_free == engine.kv_cache.num_blocks


def test_embedding_is_averaged_cut_and_normalized_in_this_order() -> None:
    pooled = np.array([6.0, 8.0, 100.0])
    assert finish_embedding(pooled, "mean", 2, dimensions=2).tolist() == pytest.approx([0.6, 0.8])
    assert finish_embedding(pooled, "mean", 2, normalize=False).tolist() == [3, 4, 50]
    assert finish_embedding(pooled, "last", 2, dimensions=1, normalize=False).tolist() == [6]
    assert finish_embedding(np.zeros(3), "mean", 2).tolist() == [0, 0, 0]


@pytest.mark.parametrize("dimensions", [0, -1, 7])
def test_dimensions_that_the_model_lacks_are_refused(dimensions: int) -> None:
    with pytest.raises(InvalidRequestError, match="from 1 to 6"):
        check_dimensions(dimensions, 6)


def test_python_api_gives_the_reference_s_embeddings(tmp_path: Any) -> None:
    config, weights = make_tiny("qwen2", 31)
    reference = ReferenceModel(config, weights)
    prompts = [[5, 6, 7], list(range(20, 90)), [1]]
    with LLM(write_hf_folder(tmp_path / "model", config, weights), max_model_len=128) as llm:
        outputs = llm.embed(prompts, use_tqdm=False)
        (short,) = llm.embed([prompts[0]], dimensions=10, use_tqdm=False)
        (raw,) = llm.embed([prompts[0]], normalize=False, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        expected = reference.hidden(prompt).mean(axis=0)
        expected /= np.linalg.norm(expected)
        assert output.prompt_token_ids == prompt
        assert output.embedding @ expected == pytest.approx(1, abs=1e-5)  # the cache rounds keys and values
        assert np.linalg.norm(output.embedding) == pytest.approx(1, abs=1e-6)
    assert len(short.embedding) == 10
    assert np.allclose(short.embedding, raw.embedding[:10] / np.linalg.norm(raw.embedding[:10]), atol=1e-6)
