"""The engine on the fake model: what a request gets, and that nothing else has a say in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lpx.engine.engine import Engine
from lpx.engine.outputs import RequestDelta
from lpx.engine.sampling_params import SamplingParams, choice_seed
from lpx.errors import ContextLengthError, InvalidRequestError
from lpx.runtime.step import StepBatch, StepResult
from tests.engine.fake_executor import BOS, END_OF_TURN, EOS, FakeExecutor, expected_scores, expected_tokens

MakeEngine = Callable[..., Engine]


def run(engine: Engine, *requests: tuple[Any, SamplingParams]) -> list[dict[int, list[RequestDelta]]]:
    """Run requests to their end; deltas by choice for each."""
    ids = [engine.add_request(prompt, params) for prompt, params in requests]
    deltas: dict[str, dict[int, list[RequestDelta]]] = {request_id: {} for request_id in ids}
    while engine.has_work:
        for delta in engine.step():
            deltas[delta.request_id].setdefault(delta.index, []).append(delta)
    return [deltas[request_id] for request_id in ids]


def text_of(deltas: list[RequestDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def ids_of(deltas: list[RequestDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def complete(engine: Engine, prompt: Any, **params: Any) -> list[RequestDelta]:
    return run(engine, (prompt, SamplingParams(**params)))[0][0]


# Ends of a request.


def test_length_ends_after_max_tokens(make_engine: MakeEngine) -> None:
    deltas = complete(make_engine(), "hello", max_tokens=5)
    assert len(ids_of(deltas)) == 5
    assert len(text_of(deltas)) == 5
    assert [d.finish_reason for d in deltas] == [None] * 4 + ["length"]
    assert deltas[-1].stop_reason is None


@pytest.mark.parametrize("eos", [EOS, END_OF_TURN], ids=["tokenizer's", "model's"])
def test_every_end_token_stops_and_stays_out_of_the_text(make_engine: MakeEngine, eos: int) -> None:
    executor = FakeExecutor(choose=lambda tokens: eos if len(tokens) == 7 else "a")
    deltas = complete(make_engine(executor), "hello", skip_special_tokens=False)
    assert text_of(deltas) == "aa"
    assert ids_of(deltas) == [97, 97, eos]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", None)


def test_ignore_eos_ignores_all_of_them(make_engine: MakeEngine) -> None:
    executor = FakeExecutor(choose=lambda tokens: (EOS, END_OF_TURN)[len(tokens) % 2])
    deltas = complete(make_engine(executor), "hello", max_tokens=6, ignore_eos=True)
    assert (len(ids_of(deltas)), deltas[-1].finish_reason) == (6, "length")


def test_stop_token_id_is_reported(make_engine: MakeEngine) -> None:
    executor = FakeExecutor(choose=lambda tokens: "abcdef"[len(tokens) - 5])
    deltas = complete(make_engine(executor), "hello", stop_token_ids=[ord("d")])
    assert (text_of(deltas), deltas[-1].finish_reason, deltas[-1].stop_reason) == ("abc", "stop", ord("d"))
    deltas = complete(make_engine(executor), "hello", stop_token_ids=[ord("d")], include_stop_str_in_output=True)
    assert text_of(deltas) == "abcd"


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        ("DEF", "ABC", "DEF"),
        (["HI", "EFG"], "ABCD", "EFG"),
        ("XY", "ABCDEFGHIJ", None),
        ("JX", "ABCDEFGHIJ", None),  # a beginning of it at the end is no match
    ],
)
def test_stop_string_over_several_tokens(make_engine: MakeEngine, stop: Any, text: str, reason: str | None) -> None:
    executor = FakeExecutor(choose=lambda tokens: "ABCDEFGHIJ"[len(tokens) - 5])
    deltas = complete(make_engine(executor), "hello", max_tokens=10, stop=stop)
    assert text_of(deltas) == text
    assert deltas[-1].stop_reason == reason
    assert deltas[-1].finish_reason == ("stop" if reason else "length")
    for delta in deltas:
        assert reason is None or delta.text in text


def test_min_tokens_bars_end_tokens_until_then(make_engine: MakeEngine) -> None:
    executor = FakeExecutor(choose=lambda tokens: EOS)
    assert len(ids_of(complete(make_engine(executor), "hello", min_tokens=4))) == 5
    assert len(ids_of(complete(make_engine(executor), "hello"))) == 1


def test_context_limit_ends_with_length(make_engine: MakeEngine) -> None:
    engine = make_engine(max_model_len=32)
    for params in (SamplingParams(max_tokens=None), SamplingParams(max_tokens=2**40)):
        deltas = run(engine, ("x" * 20, params))[0][0]
        assert (len(ids_of(deltas)), deltas[-1].finish_reason) == (12, "length")
    deltas = complete(engine, "x" * 31, max_tokens=None)
    assert (len(ids_of(deltas)), deltas[-1].finish_reason) == (1, "length")


# Refusals.


@pytest.mark.parametrize("length", [32, 33, 500])
def test_overlong_prompt_is_refused_with_both_lengths(make_engine: MakeEngine, length: int) -> None:
    engine = make_engine(max_model_len=32)
    with pytest.raises(ContextLengthError, match=rf"{length} tokens.* 32 tokens") as refusal:
        engine.add_request("x" * length, SamplingParams(max_tokens=None))
    assert refusal.value.code == "context_length_exceeded"
    assert not engine.has_work


def test_context_is_never_longer_than_the_kv_cache(make_engine: MakeEngine) -> None:
    engine = make_engine(FakeExecutor(num_blocks=4, block_size=4), max_model_len=128)
    assert engine.info.max_model_len == 16
    with pytest.raises(ContextLengthError, match="16"):
        engine.add_request("x" * 16, SamplingParams())


@pytest.mark.parametrize(
    "prompt", [[-1], [[-1]], [200000], [2**32 - 1], [97, 259], [1.5], [True], [], ["a"], None, 5, {"a": 1}]
)
def test_wrong_prompt_ids_are_refused(make_engine: MakeEngine, prompt: Any) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        make_engine().add_request(prompt, SamplingParams())
    assert refusal.value.param == "prompt"


def test_ids_beyond_the_vocabulary_are_refused_by_name(make_engine: MakeEngine) -> None:
    engine = make_engine(vocab_size=300)  # the embedding is padded beyond the tokenizer's 259
    for name, params in (
        ("logit_bias", SamplingParams(logit_bias={"191222": -100})),
        ("logit_bias", SamplingParams(logit_bias={280: 5})),
        ("stop_token_ids", SamplingParams(stop_token_ids=[1, 259])),
    ):
        with pytest.raises(InvalidRequestError, match=name) as refusal:
            engine.validate("hello", params)
        assert refusal.value.param == name


def test_empty_prompt_needs_a_token_of_the_model(make_engine: MakeEngine) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        make_engine().add_request("", SamplingParams())
    engine = make_engine(add_bos=True)
    assert engine.validate("", SamplingParams()) == [BOS]
    assert len(ids_of(complete(engine, "", max_tokens=3))) == 3


# Log-probabilities.


def test_logprobs_hold_the_sampled_token_first(make_engine: MakeEngine) -> None:
    deltas = complete(make_engine(), "hello", max_tokens=6, logprobs=3)
    for delta in deltas:
        assert delta.logprobs is not None
        (entry,) = delta.logprobs
        assert next(iter(entry)) == delta.token_ids[0]
        assert len(entry) in (3, 4)
        assert sorted(e.rank for e in entry.values())[:3] == [1, 2, 3]
        assert entry[delta.token_ids[0]].bytes == bytes(delta.token_ids)
    assert complete(make_engine(), "hello", max_tokens=1)[0].logprobs is None


@pytest.mark.parametrize("budget", [8, 64], ids=["in chunks", "whole"])
def test_prompt_logprobs_cover_every_position_but_the_first(make_engine: MakeEngine, budget: int) -> None:
    engine = make_engine(max_num_batched_tokens=budget, max_num_seqs=8)
    deltas = complete(engine, "x" * 20 + "yz", max_tokens=2, prompt_logprobs=2)
    scores = deltas[0].prompt_logprobs
    assert scores is not None
    assert len(scores) == 22
    assert scores[0] is None
    assert [next(iter(entry)) for entry in scores[1:] if entry] == list(b"x" * 19 + b"yz")
    assert deltas[1].prompt_logprobs is None, "only once"
    alone = complete(make_engine(max_num_batched_tokens=100), "x" * 20 + "yz", max_tokens=2, prompt_logprobs=2)
    assert scores == alone[0].prompt_logprobs


def test_prompt_can_be_scored_alone(make_engine: MakeEngine) -> None:
    engine = make_engine(max_model_len=32)
    for length in (1, 5, 32):
        (delta,) = complete(engine, "x" * length, max_tokens=0, prompt_logprobs=1)
        assert (delta.token_ids, delta.text, delta.finish_reason) == ([], "", "length")
        assert delta.prompt_logprobs is not None
        assert len(delta.prompt_logprobs) == length
    with pytest.raises(ContextLengthError):
        engine.add_request("x" * 33, SamplingParams(max_tokens=0, prompt_logprobs=1))


def test_prompt_logprobs_survive_preemption(make_engine: MakeEngine) -> None:
    params = SamplingParams(max_tokens=30, prompt_logprobs=2, temperature=0)
    prompts = ["first " * 3, "second " * 3, "third " * 3]
    alone = [run(make_engine(), (prompt, params))[0][0] for prompt in prompts]
    engine = make_engine(FakeExecutor(num_blocks=14, block_size=4), max_num_batched_tokens=8)
    together = run(engine, *((prompt, params) for prompt in prompts))
    assert engine.stats().preemptions_total > 0
    for one, other in zip(alone, together, strict=True):
        assert one[0].prompt_logprobs == other[0][0].prompt_logprobs
        assert ids_of(one) == ids_of(other[0])


def test_prompt_preempted_in_its_middle_is_scored_once(make_engine: MakeEngine) -> None:
    prompt = list(b"twenty tokens are it")
    engine = make_engine(FakeExecutor(num_blocks=13, block_size=2), max_num_seqs=2, max_num_batched_tokens=4)
    engine.add_request("abcd", SamplingParams(temperature=0, max_tokens=14))
    engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0), "scored")
    scores: list[Any] = []
    while engine.has_work:
        for delta in engine.step():
            scores.extend(delta.prompt_logprobs or ())
            assert delta.request_id != "scored" or engine.stats().preemptions_total == 1
    assert [entry[token_id].logprob for entry, token_id in zip(scores[1:], prompt[1:], strict=True)] == (
        expected_scores(prompt)
    )


# Choices and seeds.


def test_choices_differ_and_are_reproducible_whatever_the_order(make_engine: MakeEngine) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=12)
    first = run(make_engine(), ("one", params), ("two", params))
    second = run(make_engine(), ("two", params), ("one", params))
    texts = [[text_of(first[prompt][index]) for index in range(3)] for prompt in range(2)]
    assert len({*texts[0]}) == 3
    assert texts == [[text_of(second[1 - prompt][index]) for index in range(3)] for prompt in range(2)]
    for index in range(3):
        assert [d.finish_reason for d in first[0][index]].count("length") == 1


def test_first_choice_is_the_single_one(make_engine: MakeEngine) -> None:
    single = complete(make_engine(), "one", seed=9, max_tokens=8)
    several = run(make_engine(), ("one", SamplingParams(n=4, seed=9, max_tokens=8)))[0]
    assert text_of(several[0]) == text_of(single)


def test_requests_without_a_seed_differ(make_engine: MakeEngine) -> None:
    for seed in (None, -1):
        engine = make_engine()
        assert text_of(complete(engine, "x", seed=seed)) != text_of(complete(engine, "x", seed=seed))
    assert text_of(complete(make_engine(seed=5), "x")) == text_of(complete(make_engine(seed=5), "x"))


def test_choices_share_full_prompt_blocks(make_engine: MakeEngine) -> None:
    executor = FakeExecutor(num_blocks=64, block_size=4)
    engine = make_engine(executor, max_num_batched_tokens=16)
    run(engine, ("x" * 41, SamplingParams(n=4, seed=3, max_tokens=3)))
    # 41 prompt rows once, one row for each other choice, two more tokens for each of four.
    assert sum(step.total for step in executor.steps) == 41 + 3 * 1 + 4 * 2


# Errors.


def test_error_of_one_sequence_ends_that_request_alone(make_engine: MakeEngine) -> None:
    engine = make_engine(FakeExecutor(poisoned=ord("!")))
    clean = SamplingParams(temperature=0, max_tokens=8, logit_bias={ord("!"): -100})
    bad, good = run(engine, ("bad!", SamplingParams(n=2, seed=1)), ("good", clean))
    for index in (0, 1):
        assert bad[index][-1].finish_reason == "error"
        assert "not a number" in str(bad[index][-1].error)
    assert good[0][-1].finish_reason == "length"
    assert text_of(good[0]) == text_of(run(make_engine(), ("good", clean))[0][0])
    assert engine.failed is None
    assert engine.stats().finished_total == {"stop": 0, "length": 1, "timeout": 0, "abort": 0, "error": 2}


def test_error_of_one_choice_ends_the_others_at_once(make_engine: MakeEngine) -> None:
    fine, bad = (expected_tokens([120], 8, temperature=1.0, seed=choice_seed(5, index)) for index in (1, 0))
    at = next(i for i, token_id in enumerate(bad) if token_id not in bad[:i] + fine + [120])
    engine = make_engine(FakeExecutor(poisoned=bad[at]))
    (choices,) = run(engine, ("x", SamplingParams(n=2, seed=5, max_tokens=50)))
    for index, made in ((0, bad), (1, fine)):
        assert ids_of(choices[index]) == made[: at + 1]
        assert [d.finish_reason for d in choices[index]] == [None] * (at + 1) + ["error"]


def test_what_the_executor_refuses_ends_that_request_alone(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = FakeExecutor()
    engine = make_engine(executor)
    step = executor.step

    def refusing(batch: StepBatch) -> StepResult:
        if any(sequence.sampling.temperature == 2.5 for sequence in batch.sequences if sequence.sampling):
            raise ValueError("a setting that makes no sense")
        return step(batch)

    monkeypatch.setattr(executor, "step", refusing)
    bad, good = run(engine, ("bad", SamplingParams(temperature=2.5)), ("good", SamplingParams(temperature=0)))
    assert "makes no sense" in str(bad[0][-1].error)
    assert ids_of(good[0]) == expected_tokens(list(b"good"), 16)
    assert engine.failed is None
    assert engine.kv_cache.num_free == engine.kv_cache.num_blocks


def test_device_fault_ends_all_requests_and_the_engine(make_engine: MakeEngine) -> None:
    from lpx.errors import EngineStoppedError

    engine = make_engine(FakeExecutor(fail_at_step=2), max_num_seqs=2)
    results = run(engine, *[("x", SamplingParams())] * 4)
    for result in results:
        assert result[0][-1].finish_reason == "error"
        assert isinstance(result[0][-1].error, EngineStoppedError)
    assert isinstance(engine.failed, RuntimeError)
    with pytest.raises(EngineStoppedError, match="injected"):
        engine.add_request("x", SamplingParams())


def test_abort_is_safe_at_any_time(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=1)
    engine.abort_request("unknown")
    first = engine.add_request("x" * 40, SamplingParams(max_tokens=50))
    second = engine.add_request("y", SamplingParams(n=2))
    assert [d.finish_reason for d in engine.abort_request(second)] == ["abort", "abort"], "while it waits"
    engine.step()
    (delta,) = engine.abort_request(first)  # in the middle of its prompt
    assert (delta.finish_reason, delta.text) == ("abort", "")
    assert engine.abort_request(first) == []
    assert engine.stats().free_blocks == engine.stats().total_blocks
    assert engine.stats().finished_total["abort"] == 3


def test_request_id_in_use_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add_request("x", SamplingParams(), "mine")
    with pytest.raises(InvalidRequestError, match="in use"):
        engine.add_request("x", SamplingParams(), "mine")
    engine.abort_request("mine")
    engine.add_request("x", SamplingParams(), "mine")
    engine.abort_all()


# Figures.


def test_timings_add_up(make_engine: MakeEngine) -> None:
    deltas = complete(make_engine(), "hello", max_tokens=4)
    timings = deltas[-1].timings
    assert timings is not None
    assert [d.timings for d in deltas[:-1]] == [None] * 3
    assert (timings.prompt_tokens, timings.completion_tokens) == (5, 4)
    assert timings.ttft_ms == pytest.approx(timings.queue_ms + timings.prefill_ms)
    assert timings.decode_tokens_per_second == pytest.approx(3 / (timings.decode_ms / 1000))
    assert timings.prefill_tokens_per_second == pytest.approx(5 / (timings.prefill_ms / 1000))


def test_counters_add_up(make_engine: MakeEngine) -> None:
    engine = make_engine()
    run(engine, ("four", SamplingParams(n=2, max_tokens=3)), ("five!", SamplingParams(max_tokens=1)))
    stats = engine.stats()
    assert (stats.requests_total, stats.prompt_tokens_total, stats.generation_tokens_total) == (2, 9, 7)
    assert stats.finished_total["length"] == 3
    assert (stats.running, stats.waiting) == (0, 0)


def test_chat_needs_a_template(make_engine: MakeEngine) -> None:
    from lpx.errors import ChatTemplateError

    engine = make_engine()
    assert engine.encode_chat([{"role": "user", "content": "hi"}]) == list(b"user: hi\nassistant: ")
    engine.chat_template = None
    with pytest.raises(ChatTemplateError, match="--chat-template"):
        engine.encode_chat([{"role": "user", "content": "hi"}])
    assert text_of(complete(engine, "plain completion still works", max_tokens=2))


def test_text_that_no_tokens_could_shorten_enough_is_refused_before_it_is_split(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(max_model_len=64)
    monkeypatch.setattr(engine.tokenizer, "encode", lambda text: pytest.fail("the text was split"))
    with pytest.raises(ContextLengthError, match=r"the prompt has 100000 characters.*the context holds 64 tokens"):
        engine.encode_prompt("x" * 100_000)
