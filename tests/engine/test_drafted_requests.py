"""Requests with drafts give exactly what they give without, whatever else they ask for."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from lpx.engine.drafting.draft_model import DraftModelDrafter, check_same_vocabulary
from lpx.engine.drafting.drafter import Drafter
from lpx.engine.drafting.ngram import NgramDrafter
from lpx.engine.drafting.speculation import Speculation
from lpx.engine.drafting.step_costs import StepCosts
from lpx.engine.drafting.suffix import SuffixDrafter
from lpx.engine.engine import Engine
from lpx.engine.kv_cache import KVCache
from lpx.engine.sampling_params import SamplingParams
from lpx.errors import ConfigError
from tests.engine.fake_executor import END_OF_TURN, ByteTokenizer, FakeExecutor

Outcome = tuple[str, list[int], str | None, Any, Any]


def mostly_repeats(tokens: list[int]) -> int:
    """A text of period 9 with a surprise every now and then."""
    surprise = sum(tokens[-3:]) % 11 == 0
    return 97 + (len(tokens) * 7) % 13 if surprise or len(tokens) < 9 else tokens[-9]


def drafters(kind: str) -> list[Drafter]:
    if kind == "suffix":
        return [SuffixDrafter(100)]
    if kind == "ngram":
        return [NgramDrafter(1, 4, 6)]
    if kind == "auto":
        return [SuffixDrafter(0), *drafters("draft_model")]
    draft = FakeExecutor(num_blocks=64, block_size=4, choose=lambda tokens: tokens[-9] if len(tokens) > 9 else 97)
    return [DraftModelDrafter(draft, most=6, max_model_len=60, max_rows=16, vocab_size=259)]


@pytest.fixture
def run(make_engine: Callable[..., Engine]) -> Callable[..., tuple[Engine, dict[str, list[Outcome]]]]:
    def run_all(
        kind: str | None,
        requests: list[tuple[list[int], SamplingParams]],
        choose: Callable[[list[int]], int | str] = mostly_repeats,
        abort: tuple[int, str] | None = None,
        **options: Any,
    ) -> tuple[Engine, dict[str, list[Outcome]]]:
        def make_speculation(kv_cache: KVCache) -> Speculation:
            costs = StepCosts()
            costs._take_in({rows: 1.0 + 0.05 * rows for rows in (1, 2, 3, 4, 6, 8, 12, 16)})
            assert kind is not None
            return Speculation(
                drafters(kind), most=6, judging=kind == "auto", costs=costs, kv_cache=kv_cache, max_rows=16
            )

        executor = FakeExecutor(num_blocks=options.pop("num_blocks", 64), block_size=4, choose=choose)
        engine = make_engine(executor, make_speculation=None if kind is None else make_speculation, **options)
        for i, (prompt, params) in enumerate(requests):
            engine.add_request(prompt, params, f"r{i}")
        texts: dict[tuple[str, int], list[Any]] = {}
        steps = 0
        while engine.has_work:
            deltas = engine.step()
            steps += 1
            if abort is not None and steps == abort[0]:
                deltas += engine.abort_request(abort[1])
            for delta in deltas:
                assert delta.error is None
                texts.setdefault((delta.request_id, delta.index), []).append(delta)
        outcomes: dict[str, list[Outcome]] = {}
        for (request_id, _), parts in sorted(texts.items()):
            ids = [token_id for part in parts for token_id in part.token_ids]
            logprobs = [entry for part in parts for entry in part.logprobs or ()]
            assert logprobs == [] or len(logprobs) == len(ids)
            outcomes.setdefault(request_id, []).append(
                ("".join(p.text for p in parts), ids, parts[-1].finish_reason, parts[-1].stop_reason, logprobs)
            )
        return engine, outcomes

    return run_all


KINDS = ["suffix", "ngram", "draft_model", "auto"]


def prompts(count: int, seed: int = 3) -> list[list[int]]:
    random.seed(seed)
    return [[97 + random.randrange(6) for _ in range(random.randrange(3, 24))] for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_those_without_drafts(kind: str, run: Callable[..., Any]) -> None:
    asked = [
        (prompts(1, seed)[0], params)
        for seed, params in enumerate(
            [
                SamplingParams(temperature=0, max_tokens=60),
                SamplingParams(temperature=1, seed=5, max_tokens=60),
                SamplingParams(temperature=0, max_tokens=40, logprobs=3),
                SamplingParams(temperature=0, max_tokens=40, presence_penalty=1.0, repetition_penalty=1.1),
                SamplingParams(temperature=0, max_tokens=60, stop=["gha", "ba"], min_tokens=9),
                SamplingParams(temperature=0, max_tokens=40, n=2, seed=1),
                SamplingParams(temperature=0, max_tokens=10, prompt_logprobs=1),
                SamplingParams(temperature=0, max_tokens=None),
            ]
        )
    ]
    _, plain = run(None, asked)
    engine, drafted = run(kind, asked)
    assert drafted == plain
    assert engine.stats().drafts.accepted > 20
    assert engine.stats().drafts.drafted > engine.stats().drafts.accepted


@pytest.mark.parametrize("kind", KINDS)
def test_ends_of_text_inside_an_accepted_run(kind: str, run: Callable[..., Any]) -> None:
    def with_end(tokens: list[int]) -> int:
        return END_OF_TURN if len(tokens) == 47 else tokens[-9] if len(tokens) > 9 else 97

    asked = [([97, 98, 99, 100, 101, 102, 103, 104, 105, 106] * 2, SamplingParams(temperature=0, max_tokens=None))]
    asked.append(([97, 98, 99] * 5, SamplingParams(temperature=0, max_tokens=20, stop_token_ids=[98], min_tokens=7)))
    _, plain = run(None, asked, choose=with_end)
    engine, drafted = run(kind, asked, choose=with_end)
    assert drafted == plain
    assert plain["r0"][0][2:4] == ("stop", None)
    assert plain["r1"][0][2:4] == ("stop", 98)
    assert engine.stats().drafts.accepted > 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_pool_preempts_and_changes_nothing(kind: str, run: Callable[..., Any]) -> None:
    asked = [(prompt, SamplingParams(temperature=0, max_tokens=40)) for prompt in prompts(6)]
    _, plain = run(None, asked)
    engine, drafted = run(kind, asked, num_blocks=24)
    assert drafted == plain
    assert engine.stats().preemptions_total > 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_abort_in_between_leaves_nothing_behind(kind: str, run: Callable[..., Any]) -> None:
    asked = [(prompt, SamplingParams(temperature=0, max_tokens=40)) for prompt in prompts(4)]
    _, plain = run(None, asked)
    engine, drafted = run(kind, asked, abort=(9, "r1"))
    assert drafted.pop("r1")[0][2] == "abort"
    del plain["r1"]
    assert drafted == plain
    for drafter in engine.speculation.drafters:
        assert not drafter._states if hasattr(drafter, "_states") else not drafter._matchers
        if isinstance(drafter, DraftModelDrafter):
            assert drafter._kv_cache.num_free == drafter._kv_cache.num_blocks


def test_speculation_may_be_refused_by_a_request(run: Callable[..., Any]) -> None:
    asked = [([97, 98] * 9, SamplingParams(temperature=0, max_tokens=30, speculative="off"))]
    engine, _ = run("suffix", asked)
    assert engine.stats().drafts.drafted == 0


def test_a_sequence_beyond_the_draft_models_context_goes_on_alone(run: Callable[..., Any]) -> None:
    asked = [(prompts(1)[0], SamplingParams(temperature=0, max_tokens=100)) for _ in range(2)]
    _, plain = run(None, asked)
    engine, drafted = run("draft_model", asked)
    assert drafted == plain
    assert engine.stats().drafts.accepted > 10
    assert len(drafted["r0"][0][1]) == 100  # far beyond the 60 positions of the draft model


def test_texts_of_other_owners_are_never_drafted_from(make_engine: Callable[..., Engine]) -> None:
    drafter = SuffixDrafter(100)

    def drafted_after(owner: str) -> int:
        engine = make_engine(
            FakeExecutor(choose=lambda tokens: 97 + (7 * len(tokens) ** 2) % 25),
            make_speculation=lambda kv_cache: Speculation(
                [drafter], most=6, judging=False, costs=StepCosts(), kv_cache=kv_cache, max_rows=16
            ),
        )
        request = engine.make_request([65, 66, 67, 68], SamplingParams(temperature=0, max_tokens=20))
        request.owner = owner
        engine.add(request)
        while engine.has_work:
            engine.step()
        return engine.stats().drafts.accepted

    first = drafted_after("a")
    assert drafted_after("b") == first
    assert drafted_after("a") > first + 10


def test_timings_tell_what_became_of_drafts(run: Callable[..., Any], make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(
        FakeExecutor(choose=lambda tokens: tokens[-3]),
        make_speculation=lambda kv_cache: Speculation(
            [SuffixDrafter(0)], most=6, judging=False, costs=StepCosts(), kv_cache=kv_cache, max_rows=16
        ),
    )
    engine.add_request([97, 98, 99] * 4, SamplingParams(temperature=0, max_tokens=29))
    deltas = []
    while engine.has_work:
        deltas += engine.step()
    timings = deltas[-1].timings
    assert timings is not None
    assert timings.speculation == "drafted"
    assert timings.drafted_tokens == timings.accepted_tokens == 24
    assert timings.mean_accepted_length == pytest.approx(7.0)
    assert engine.stats().generation_tokens_total == 29


class _Vocabulary(ByteTokenizer):
    def __init__(self, size: int = 259, **other: bytes) -> None:
        super().__init__()
        self.vocab_size = size
        self._other = {int(name[1:]): text for name, text in other.items()}

    def token_bytes(self, token_id: int, *, skip_special: bool = False) -> bytes:
        return self._other.get(token_id) or super().token_bytes(token_id, skip_special=skip_special)


def test_a_draft_model_must_share_the_vocabulary() -> None:
    check_same_vocabulary(_Vocabulary(), _Vocabulary(), "d")
    check_same_vocabulary(_Vocabulary(300), _Vocabulary(), "d")  # padding of the embedding
    with pytest.raises(ConfigError, match=r"id 77 is 'M' in the model and 'x' in the draft model"):
        check_same_vocabulary(_Vocabulary(), _Vocabulary(_77=b"x"), "d")
    other_end = _Vocabulary()
    other_end.eos_ids = frozenset({258})
    with pytest.raises(ConfigError, match="ends texts"):
        check_same_vocabulary(_Vocabulary(), other_end, "d")


def test_rows_of_a_draft_are_one_step(make_engine: Callable[..., Engine]) -> None:
    executor = FakeExecutor(choose=lambda tokens: tokens[-3])
    engine = make_engine(
        executor,
        make_speculation=lambda kv_cache: Speculation(
            [SuffixDrafter(0)], most=6, judging=False, costs=StepCosts(), kv_cache=kv_cache, max_rows=16
        ),
    )
    assert engine.speculation is not None
    observed: list[tuple[int, float]] = []
    engine.speculation.costs.observe = lambda rows, ms, _: observed.append((rows, ms))  # type: ignore[method-assign]
    engine.add_request([97, 98, 99] * 4, SamplingParams(temperature=0, max_tokens=29))
    while engine.has_work:
        engine.step()
    assert engine.stats().steps_total == len(executor.steps)
    assert [rows for rows, _ in observed] == [record.total for record in executor.steps[1:]]
