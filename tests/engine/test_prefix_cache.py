"""What is computed once is found again, by its whole content and by nobody else; and no count goes wrong by it."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

import pytest

from lpx.engine.drafting.speculation import Speculation
from lpx.engine.drafting.step_costs import StepCosts
from lpx.engine.engine import Engine
from lpx.engine.llm import LLM
from lpx.engine.outputs import RequestDelta
from lpx.engine.sampling_params import SamplingParams
from lpx.engine.sequence import Sequence, SequenceState
from lpx.errors import InvalidRequestError
from tests.engine.fake_executor import ByteTokenizer, FakeExecutor, FollowingExecutor, expected_scores, expected_tokens
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny

MakeEngine = Callable[..., Engine]
SIZE = 4  # tokens of a block of the fake model


def greedy(max_tokens: int = 1, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **more)


def run(engine: Engine, *requests: tuple[Any, SamplingParams]) -> list[RequestDelta]:
    """Run requests to their end; the last delta of choice 0 of each, with all its token ids."""
    ids = [engine.add_request(prompt, params) for prompt, params in requests]
    last: dict[str, RequestDelta] = {}
    made: dict[str, list[int]] = {request_id: [] for request_id in ids}
    while engine.has_work:
        for delta in engine.step():
            if delta.index == 0:
                made[delta.request_id].extend(delta.token_ids)
                last[delta.request_id] = delta
    for request_id, delta in last.items():
        delta.token_ids = made[request_id]
    return [last[request_id] for request_id in ids]


def computed(engine: Engine) -> int:
    """Rows that all steps so far had."""
    executor: Any = engine.executor
    return sum(step.total for step in executor.steps)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(32, 127) for _ in range(length)]


# What is found again.


@pytest.mark.parametrize(("length", "cached"), [(3, 0), (4, 0), (5, 4), (41, 40), (44, 40), (45, 44)])
def test_second_prompt_computes_its_last_block_only(make_engine: MakeEngine, length: int, cached: int) -> None:
    engine = make_engine()
    prompt = prompt_of(length)
    (first,) = run(engine, (prompt, greedy()))
    assert (computed(engine), first.cached_tokens) == (length, 0)
    (second,) = run(engine, (prompt, greedy()))
    assert computed(engine) == length + (length - cached)
    assert second.cached_tokens == cached
    assert second.token_ids == first.token_ids == expected_tokens(prompt, 1)


def test_conversation_finds_its_answers_too(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = prompt_of(10)
    (answer,) = run(engine, (prompt, greedy(12)))
    before = computed(engine)
    follow_up = [*prompt, *answer.token_ids, *prompt_of(6, seed=1)]
    (second,) = run(engine, (follow_up, greedy(3)))
    # 10 + 12 tokens, the last one without KV: five full blocks.
    assert second.cached_tokens == 20
    assert computed(engine) - before == 28 - 20 + 2
    assert second.token_ids == expected_tokens(follow_up, 3)


def test_running_sequence_can_be_found(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = prompt_of(13)
    engine.add_request(prompt, greedy(40), "long")
    for _ in range(5):
        engine.step()
    engine.add_request(prompt, greedy(), "late")
    deltas = {delta.request_id: delta for delta in engine.step()}
    assert deltas["late"].cached_tokens == 12
    engine.abort_all()


def test_edit_in_the_middle_keeps_what_is_before_it(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = prompt_of(40)
    run(engine, (prompt, greedy()))
    edited = [*prompt[:22], 1, *prompt[23:]]
    (answer,) = run(engine, (edited, greedy(4)))
    assert answer.cached_tokens == 20
    assert answer.token_ids == expected_tokens(edited, 4)


def test_same_block_behind_another_beginning_is_another_block(make_engine: MakeEngine) -> None:
    engine = make_engine()
    same = prompt_of(9)
    run(engine, (prompt_of(4, seed=1) + same, greedy()))
    (answer,) = run(engine, (prompt_of(4, seed=2) + same, greedy()))
    assert answer.cached_tokens == 0


def test_preempted_sequence_finds_its_own_blocks(make_engine: MakeEngine) -> None:
    engine = make_engine(FakeExecutor(num_blocks=12, block_size=SIZE), max_num_seqs=2)
    prompts = [prompt_of(12, seed) for seed in (1, 2)]
    answers = run(engine, *((prompt, greedy(20)) for prompt in prompts))
    stats = engine.stats()
    assert stats.preemptions_total > 0
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.token_ids == expected_tokens(prompt, 20)
        assert answer.cached_tokens == 0, "what it computed itself is no hit"
    # Nearly nothing twice: the blocks that were given up and not taken by the other one were found.
    once = sum(12 + 20 - 1 for _ in prompts)
    assert computed(engine) - once < 12


# What is not shared.


def test_salts_keep_requests_apart(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = prompt_of(21)
    salts = [None, "a", "b", "", "salt a"]
    with pytest.raises(InvalidRequestError, match="cache_salt"):
        greedy(cache_salt=salts.pop(3))
    for salt in salts:
        (answer,) = run(engine, (prompt, greedy(cache_salt=salt)))
        assert answer.cached_tokens == 0, f"salt {salt!r} found what another one computed"
    for salt in salts:
        (answer,) = run(engine, (prompt, greedy(cache_salt=salt)))
        assert answer.cached_tokens == 20


def test_salts_keep_requests_apart_that_come_together(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=8)
    prompt = prompt_of(21)
    first, second = run(engine, *((prompt, greedy(cache_salt=salt)) for salt in ("a", "b")))
    assert (first.cached_tokens, second.cached_tokens, computed(engine)) == (0, 0, 42)


@pytest.mark.parametrize("salt", [1, b"a", "x" * 257, ["a"], "a\ud800", "\ufffd"])
def test_wrong_salt_is_refused(salt: Any) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        SamplingParams(cache_salt=salt)
    assert refusal.value.param == "cache_salt"


def test_kinds_of_cache_never_meet() -> None:
    from lpx.engine.kv_cache import KVCache
    from lpx.engine.prefix_cache import PrefixCache

    f16, q8 = (PrefixCache(KVCache(1, SIZE), f"model|{kind}") for kind in ("f16", "q8_0"))
    assert f16._root(None) != q8._root(None)
    assert f16._root("a") != q8._root("a")


def test_scored_prompt_computes_every_position(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = prompt_of(117)
    scored = greedy(2, prompt_logprobs=1)
    run(engine, (prompt, greedy(2)))
    values = []
    for _ in range(2):
        engine.add_request(prompt, scored)
        while engine.has_work:
            for delta in engine.step():
                assert delta.cached_tokens == 0
                if delta.prompt_logprobs is not None:
                    values.append(delta.prompt_logprobs)
    assert len(values) == 2
    for entries in values:
        assert entries[0] is None
        assert [e[i].logprob for e, i in zip(entries[1:], prompt[1:], strict=True) if e] == expected_scores(prompt)
    assert engine.kv_cache.num_named == 29, "blocks with the same content are kept once"


def test_blocks_of_a_failed_request_are_forgotten(make_engine: MakeEngine) -> None:
    executor = FakeExecutor(poisoned=33)
    engine = make_engine(executor)
    prompt = [*range(40, 61), 33]
    (bad,) = run(engine, (prompt, greedy()))
    assert bad.finish_reason == "error"
    assert engine.kv_cache.num_named == 0
    executor.poisoned = None
    (good,) = run(engine, (prompt, greedy()))
    assert (good.cached_tokens, good.token_ids) == (0, expected_tokens(prompt, 1))


def test_reset_forgets_everything(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=8)
    prompt = prompt_of(30)
    run(engine, (prompt, greedy()))
    engine.add_request(prompt_of(30, seed=1), greedy())
    engine.step()
    engine.reset()
    assert (engine.kv_cache.num_named, engine.kv_cache.num_free) == (0, 64)
    (answer,) = run(engine, (prompt, greedy(5)))
    assert (answer.cached_tokens, answer.token_ids) == (0, expected_tokens(prompt, 5))


def test_switched_off_nothing_is_kept(make_engine: MakeEngine) -> None:
    engine = make_engine(enable_prefix_caching=False)
    prompt = prompt_of(30)
    for _ in range(2):
        (answer,) = run(engine, (prompt, greedy()))
        assert answer.cached_tokens == 0
    assert (computed(engine), engine.kv_cache.num_named) == (60, 0)
    assert engine.stats().prefix_cache_queries_total == 0
    assert not engine.info.prefix_caching


# Room.


def test_cached_blocks_are_free_blocks(make_engine: MakeEngine) -> None:
    engine = make_engine(FakeExecutor(num_blocks=16, block_size=SIZE))
    for seed in range(8):
        run(engine, (prompt_of(20, seed), greedy()))
        assert engine.kv_cache.num_free == 16
    assert engine.kv_cache.num_named == 16, "the pool is full of what was computed"
    prompt = prompt_of(60, seed=9)
    (answer,) = run(engine, (prompt, greedy(4)))
    assert answer.token_ids == expected_tokens(prompt, 4)


def test_least_recently_used_goes_first_and_tails_before_heads(make_engine: MakeEngine) -> None:
    engine = make_engine(FakeExecutor(num_blocks=16, block_size=SIZE))
    old, used, new = (prompt_of(21, seed) for seed in range(3))  # five full blocks each
    for prompt in (old, used, new, used):
        run(engine, (prompt, greedy()))
    run(engine, (prompt_of(9, seed=3), greedy()))  # takes three blocks: one was empty
    assert [run(engine, (prompt[:13], greedy()))[0].cached_tokens for prompt in (used, new, old)] == [12, 12, 12]
    (answer,) = run(engine, (old, greedy()))
    assert answer.cached_tokens == 12, "its tail has gone, its head is here"
    (answer,) = run(engine, (used, greedy()))
    assert answer.cached_tokens == 20


# Together.


def test_sixteen_together_compute_their_beginning_once(make_engine: MakeEngine) -> None:
    executor = FakeExecutor(num_blocks=400, block_size=SIZE)
    engine = make_engine(executor, max_num_seqs=16, max_num_batched_tokens=64, max_model_len=300)
    beginning = prompt_of(201)
    answers = run(engine, *((beginning, greedy()) for _ in range(16)))
    assert [answer.cached_tokens for answer in answers] == [0] + [200] * 15
    assert computed(engine) == 201 + 15
    stats = engine.stats()
    assert (stats.prefix_cache_queries_total, stats.prefix_cache_hits_total) == (16 * 201, 15 * 200)


def test_shorter_common_beginning_is_waited_for_no_longer_than_it_takes(make_engine: MakeEngine) -> None:
    engine = make_engine(FakeExecutor(num_blocks=400, block_size=SIZE), max_model_len=300)
    long, common = prompt_of(200), prompt_of(200)[:17]
    engine.add_request(long, greedy(), "long")
    engine.add_request([*common, 1], greedy(), "short")
    ends: dict[str, int] = {}
    step = 0
    while engine.has_work:
        step += 1
        for delta in engine.step():
            ends[delta.request_id] = step
            if delta.request_id == "short":
                assert delta.cached_tokens == 16
    assert ends["short"] == 2, "16 rows of the long prompt fit the first step"
    assert ends["long"] > 10


def test_nothing_in_common_is_not_held_back(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=16)
    prompt = prompt_of(90)
    for name in ("first", "twin"):
        engine.add_request(prompt, greedy(), name)
    engine.add_request([1, 2, 3], greedy(), "other")
    assert [delta.request_id for delta in engine.step()] == ["other"]
    engine.abort_all()


@pytest.mark.parametrize("how", ["abort", "preempt"])
def test_wait_ends_with_the_one_that_was_waited_for(make_engine: MakeEngine, how: str) -> None:
    engine = make_engine(max_num_batched_tokens=16)
    prompt = prompt_of(90)
    for name in ("first", "second"):
        engine.add_request(prompt, greedy(), name)
    for _ in range(2):
        engine.step()
    assert len(engine.scheduler.running) == 1
    if how == "abort":
        engine.abort_request("first")
    else:
        engine.scheduler._preempt(engine.scheduler.running[0])
    engine.step()
    assert engine.scheduler.running, "somebody goes on at once"
    answers = {}
    while engine.has_work:
        for delta in engine.step():
            answers[delta.request_id] = delta
    for delta in answers.values():
        assert delta.token_ids == expected_tokens(prompt, 1)
    assert answers["second"].cached_tokens >= 32
    assert computed(engine) <= 90 + 16, "what was computed before was found"


def test_one_that_does_not_advance_is_not_waited_for(make_engine: MakeEngine) -> None:
    """The donor gets no rows, since two other prompts take them all; the short one does not share its fate."""
    engine = make_engine(FakeExecutor(num_blocks=400, block_size=SIZE), max_model_len=300, max_num_batched_tokens=16)
    engine.add_request(prompt_of(150, seed=1), greedy(), "oldest")
    engine.step()
    engine.add_request(prompt_of(200, seed=2), greedy(), "donor")  # longer than the oldest: no row
    engine.step()
    donor = engine.scheduler.running[1]
    engine.add_request([*prompt_of(200, seed=2)[:5], 7], greedy(), "short")
    for number in range(12):  # keep the other half of the rows busy
        engine.add_request(prompt_of(8, seed=10 + number), greedy())
    ended = [delta.request_id for _ in range(4) for delta in engine.step()]
    assert "short" in ended
    assert donor.state is SequenceState.RUNNING
    assert donor.num_computed < 4 * SIZE
    engine.abort_all()


def test_slot_and_blocks_are_kept_for_one_that_waits(make_engine: MakeEngine) -> None:
    engine = make_engine(FakeExecutor(num_blocks=14, block_size=SIZE), max_num_seqs=8, max_num_batched_tokens=8)
    prompt = prompt_of(25)
    engine.add_request(prompt, greedy(), "first")
    engine.add_request([*prompt, *prompt_of(8, seed=1)], greedy(), "waits")
    engine.add_request(prompt_of(16, seed=2), greedy(40), "later")  # its blocks are free, but promised
    engine.step()
    assert [s.request.request_id for s in engine.scheduler.running] == ["first"]
    order = []
    while engine.has_work:
        order += [delta.request_id for delta in engine.step() if delta.request_id not in order]
    assert order.index("waits") < order.index("later")


def test_slots_are_kept_for_those_that_wait(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=2, max_num_batched_tokens=8)
    prompt = prompt_of(25)
    for name in ("first", "waits"):
        engine.add_request(prompt, greedy(), name)
    engine.add_request(prompt_of(3, seed=2), greedy(40), "later")
    engine.step()
    assert [s.request.request_id for s in engine.scheduler.running] == ["first"]
    engine.abort_all()


def test_cached_blocks_that_nobody_has_are_taken_from_the_free_ones(make_engine: MakeEngine) -> None:
    engine = make_engine(FakeExecutor(num_blocks=10, block_size=SIZE))
    prompt = prompt_of(21)
    run(engine, (prompt, greedy()))  # five blocks stay cached
    engine.add_request(prompt_of(13, seed=1), greedy(20), "stream")  # has four blocks and may want one at any time
    engine.step()
    engine.add_request(prompt, greedy(8), "again")
    engine.step()
    assert [s.request.request_id for s in engine.scheduler.running] == ["stream"], "six are free, and six it would take"
    while engine.has_work:
        engine.step()
    assert engine.stats().preemptions_total == 0


# Steps that nobody looks at in between.


@pytest.mark.parametrize("stop", [None, "stop string"])
def test_tokens_of_unseen_steps_are_named_when_they_are_known(make_engine: MakeEngine, stop: str | None) -> None:
    prompt = prompt_of(10)
    wanted = expected_tokens(prompt, 60)
    text = bytes(wanted).decode()
    engine = make_engine(FollowingExecutor(num_blocks=64, block_size=SIZE))
    engine.ahead.step_ns = 1
    params = greedy(60, stop=text[33:36] if stop else None)
    (answer,) = run(engine, (prompt, params))
    executor: Any = engine.executor
    made = answer.token_ids
    assert made == wanted[: len(made)]
    assert len(made) == (36 if stop else 60)
    assert engine.stats().steps_total == len(executor.steps)
    # Whatever can be found holds what its name says: the fake model checks it position by position.
    (again,) = run(engine, ([*prompt, *wanted], greedy(9)))
    assert again.cached_tokens == (10 + len(made) - 1) // SIZE * SIZE
    assert again.token_ids == expected_tokens([*prompt, *wanted], 9)


def test_first_token_of_a_cached_prompt_comes_at_once(make_engine: MakeEngine) -> None:
    engine = make_engine(FollowingExecutor(num_blocks=64, block_size=SIZE))
    prompt = prompt_of(13)
    run(engine, (prompt, greedy(20)))
    engine.ahead.step_ns = 1
    engine.add_request(prompt, greedy(20))  # one row is left to compute, as in a decode step
    assert [len(delta.token_ids) for delta in engine.step()] == [1]
    engine.ahead.step_ns = 1
    assert [len(delta.token_ids) for delta in engine.step()] == [8]
    engine.abort_all()


# Drafts.


class HalfRight:
    """A drafter whose first token is right and whose others are wrong, one time in two."""

    name = "half right"

    def odds(self, sequence: Sequence, most: int) -> list[float]:
        return [0.5] * most

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        drafts = []
        for sequence, count in wanted:
            right = expected_tokens(sequence.tokens, count)
            at = len(sequence.tokens) % 4
            drafts.append([*right[:at], *(1 for _ in right[at:])])
        return drafts

    def judge(self, sequence: Sequence, drafted: SequenceOf[int], accepted: int) -> None: ...

    def measure_costs(self) -> None: ...

    def cost_ms(self, sequences: int, longest: int) -> float:
        return 0.0

    def end(self, sequence: Sequence) -> None: ...

    def close(self) -> None: ...


def test_rejected_drafts_are_never_found(make_engine: MakeEngine) -> None:
    """They leave keys and values of tokens that do not stand, behind those that do."""
    engine = make_engine(
        FakeExecutor(num_blocks=20, block_size=SIZE),
        make_speculation=lambda kv_cache: Speculation(
            [HalfRight()], most=7, judging=False, costs=StepCosts(), kv_cache=kv_cache, max_rows=16
        ),
    )
    rng = random.Random(6)
    prompt = prompt_of(10)
    for _ in range(30):
        (answer,) = run(engine, (prompt, greedy(rng.randint(1, 30))))
        assert answer.token_ids == expected_tokens(prompt, len(answer.token_ids))
        whole = [*prompt, *answer.token_ids]
        (again,) = run(engine, ([*whole, 5], greedy(5)))
        assert again.token_ids == expected_tokens([*whole, 5], 5)
        # The last token has been computed if it was drafted.
        assert (len(whole) - 1) // SIZE <= again.cached_tokens // SIZE <= len(whole) // SIZE
        prompt = whole[: rng.randint(1, 40)]
    counts = engine.stats().drafts
    assert 0 < counts.accepted < counts.drafted


# The native decoder.


@pytest.mark.parametrize("kv_cache_dtype", ["f16", "q8", "q8,q4"])
@pytest.mark.parametrize("arch", ["mistral", "gemma2"])  # windows of 19 tokens, in all layers and in every other one
def test_sliding_window_finds_every_position_it_needs(tmp_path: Path, arch: str, kv_cache_dtype: str) -> None:
    config, weights = make_tiny(arch, 3, max_position_embeddings=512)
    path = write_hf_folder(tmp_path, config, weights)
    rng = random.Random(5)
    prompt = [rng.randrange(10, 90) for _ in range(300)]
    turns = [prompt, prompt, prompt[:-70], [*prompt[:150], 11, *prompt[151:]], prompt[:96]]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=5)
    outputs: list[list[Any]] = []
    for enabled in (True, False):
        options: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "threads": 2}
        options["kv_cache_dtype"] = kv_cache_dtype
        with LLM(path, max_model_len=512, enable_prefix_caching=enabled, **options) as llm:
            size = llm.info.block_size
            made = [llm.generate([turn], params, use_tqdm=False)[0] for turn in turns]
            outputs.append([(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in made])
            cached = [output.num_cached_tokens for output in made]
            assert cached == [output.timings.cached_tokens for output in made if output.timings is not None]
            wanted = [0, 300 // size * size, 229 // size * size, 150 // size * size, 95 // size * size]
            assert cached == (wanted if enabled else [0] * 5)
    assert outputs[0] == outputs[1]


# Figures.


def test_cached_tokens_are_told_once_a_request(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = prompt_of(21)
    run(engine, (prompt, greedy()))
    engine.add_request(prompt, SamplingParams(n=3, seed=1, max_tokens=2))
    last = [delta for delta in iter_deltas(engine) if delta.finish_reason]
    assert [delta.cached_tokens for delta in last] == [20, 20, 20]
    for delta in last:
        assert delta.timings is not None
        assert (delta.timings.prompt_tokens, delta.timings.cached_tokens) == (21, 20)
        assert delta.timings.prefill_tokens_per_second == pytest.approx(1 / (delta.timings.prefill_ms / 1000))
    stats = engine.stats()
    assert (stats.prefix_cache_queries_total, stats.prefix_cache_hits_total) == (42, 20)
    assert stats.prompt_tokens_total == 2 * 21


def iter_deltas(engine: Engine) -> list[RequestDelta]:
    deltas = []
    while engine.has_work:
        deltas += engine.step()
    return deltas


# Random load.


def random_requests(rng: random.Random, count: int) -> list[tuple[list[int], SamplingParams]]:
    """Prompts that branch off one another at any token."""
    prompts: list[list[int]] = [prompt_of(40, seed=rng.randrange(1000))]
    requests = []
    for _ in range(count):
        base = rng.choice(prompts)
        prompt = base[: rng.randint(1, len(base))] + prompt_of(rng.randint(0, 12), rng.randrange(10**6))
        prompts.append(prompt[:70])
        seed = rng.choice([None, 3])
        params = SamplingParams(
            n=rng.choice([1, 1, 1, 2]),
            temperature=0.0 if seed is None else 1.0,
            seed=seed,
            max_tokens=rng.randint(1, 20),
            prompt_logprobs=rng.choice([None, None, None, 0]),
            cache_salt=rng.choice([None, None, "a"]),
        )
        requests.append((prompts[-1], params))
    return requests


def drive_randomly(engine: Engine, seed: int, check: Callable[[], None]) -> dict[tuple[str, int], list[int]]:
    """Requests come, some are aborted at a fixed number of tokens of theirs, all others run to their end."""
    rng = random.Random(seed)
    requests = random_requests(rng, 40)
    cut = {f"r{number}": rng.randint(0, 8) for number in range(40) if rng.random() < 0.25}
    outputs: dict[tuple[str, int], list[int]] = {}
    added = 0
    steps = 0
    while added < len(requests) or engine.has_work:
        while added < len(requests) and (rng.random() < 0.5 or not engine.has_work):
            prompt, params = requests[added]
            engine.add_request(prompt, params, f"r{added}")
            added += 1
        for delta in engine.step():
            assert delta.error is None, delta.error
            outputs.setdefault((delta.request_id, delta.index), []).extend(delta.token_ids)
        for request_id, at in cut.items():
            if len(outputs.get((request_id, 0), [])) > at:
                engine.abort_request(request_id)
        check()
        steps += 1
        assert steps < 5000, "every request ends"
    for number, (prompt, params) in enumerate(requests):
        if f"r{number}" not in cut:
            wanted = expected_tokens(
                prompt, params.max_tokens or 0, temperature=params.temperature, seed=params.seed or 0
            )
            assert outputs[f"r{number}", 0] == wanted
    return {key: ids for key, ids in outputs.items() if key[0] not in cut}


@pytest.mark.parametrize("seed", range(12))
def test_random_load_is_the_same_with_and_without(seed: int) -> None:
    rng = random.Random(1000 + seed)
    blocks, budget, seqs = rng.randint(30, 60), rng.randint(8, 40), rng.randint(2, 8)
    tokenizer: Any = ByteTokenizer()
    results = []
    for enabled in (True, False):
        executor = FakeExecutor(num_blocks=blocks, block_size=SIZE, budget=budget)
        engine = Engine(
            executor,
            tokenizer,
            max_model_len=110,
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            enable_prefix_caching=enabled,
        )

        def check(engine: Engine = engine) -> None:
            held = {block for s in engine.scheduler.running for block in s.block_table}
            assert len(held) + engine.kv_cache.num_free == blocks
            assert all(not s.block_table and s.num_computed == 0 for s in engine.scheduler.waiting)

        results.append(drive_randomly(engine, seed, check))
        assert engine.kv_cache.num_free == blocks
        assert engine.scheduler.prefix_cache is None or not engine.scheduler.prefix_cache._in_progress
        assert (engine.stats().prefix_cache_hits_total > 0) == enabled
    assert results[0] == results[1]
