"""Neighbours, chunks and preemption have no say in an output (I2, I4), and every stream is its whole text (I7)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from lpx.engine.engine import Engine
from lpx.engine.sampling_params import SamplingParams
from tests.engine.fake_executor import ByteTokenizer, FakeExecutor, expected_tokens

MakeEngine = Callable[..., Engine]


def drive(engine: Engine, on_step: Callable[[int], None] = lambda step: None) -> dict[str, list[int]]:
    """Run to the end; the output ids of each request's only choice."""
    outputs: dict[str, list[int]] = {}
    step = 0
    while engine.has_work:
        for delta in engine.step():
            assert delta.error is None, delta.error
            outputs.setdefault(delta.request_id, []).extend(delta.token_ids)
        step += 1
        on_step(step)
    return outputs


@pytest.mark.parametrize("budget", [8, 7 + 8, 512], ids=["tight", "odd", "whole"])
@pytest.mark.parametrize("blocks", [30, 400], ids=["preempting", "roomy"])
def test_output_is_the_same_alone_and_among_neighbours(make_engine: MakeEngine, budget: int, blocks: int) -> None:
    prompts = [f"prompt number {number} " * (1 + number % 4) for number in range(13)]
    engine = make_engine(
        FakeExecutor(num_blocks=blocks, block_size=4), max_num_batched_tokens=budget, max_model_len=110
    )
    for temperature, seed in ((0.0, 0), (0.8, 42)):
        params = SamplingParams(temperature=temperature, seed=seed, max_tokens=20)
        ids = [engine.add_request(prompt, params) for prompt in prompts]
        outputs = drive(engine)
        for request_id, prompt in zip(ids, prompts, strict=True):
            alone = expected_tokens(list(prompt.encode()), 20, temperature=temperature, seed=seed)
            assert outputs[request_id] == alone
    assert (engine.stats().preemptions_total > 0) == (blocks == 30)


def test_no_answer_holds_a_foreign_nonce(make_engine: MakeEngine) -> None:
    """The fake model repeats its own prompt; a third of the requests is aborted in prompts and in answers."""
    rng = random.Random(10)

    def repeat(tokens: list[int]) -> int:
        length = tokens.index(ord("|")) + 1
        return tokens[(len(tokens) - length) % length]

    engine = make_engine(
        FakeExecutor(num_blocks=40, block_size=4, choose=repeat), max_num_seqs=16, max_num_batched_tokens=24
    )
    for round_number in range(20):
        prompts = {}
        for number in range(16):
            prompt = f"nonce-{round_number}-{number}-{rng.randrange(10**9)}|"
            prompts[engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=40))] = prompt
        victims = dict(zip((1, 2, 4, 9, 15), rng.sample(list(prompts), 5), strict=True))

        def abort(step: int, victims: dict[int, str] = victims) -> None:
            engine.abort_request(victims.get(step, ""))

        outputs = drive(engine, abort)
        assert engine.stats().free_blocks == engine.stats().total_blocks
        for request_id, prompt in prompts.items():
            answer = bytes(outputs.get(request_id, [])).decode()
            assert answer == (prompt * 3)[: len(answer)]
            assert request_id in victims.values() or len(answer) == 40
    assert engine.stats().preemptions_total > 0


def test_small_temperatures_and_greedy_share_a_batch(make_engine: MakeEngine) -> None:
    engine = make_engine()
    temperatures = [0.0, 1e-7, 1e-3, 1.0]
    ids = [engine.add_request("x", SamplingParams(temperature=t, seed=4, max_tokens=6)) for t in temperatures]
    outputs = drive(engine)
    for request_id, temperature in zip(ids, temperatures, strict=True):
        assert outputs[request_id] == expected_tokens([ord("x")], 6, temperature=temperature, seed=4)


@pytest.mark.parametrize("stop", [None, "é", "界b", ["\N{GRINNING FACE}\N{GRINNING FACE}", "zz"]])
def test_joined_deltas_are_the_whole_text(make_engine: MakeEngine, stop: str | list[str] | None) -> None:
    """Characters of several bytes, some broken, one byte a token."""
    story = "héllo 世界b \N{GRINNING FACE}\N{GRINNING FACE} ".encode() + b"\xff\xe4\xb8 zz" + "界".encode()[:2]
    engine = make_engine(FakeExecutor(choose=lambda tokens: story[(len(tokens) - 1) % len(story)]))
    engine.add_request("p", SamplingParams(temperature=0, max_tokens=len(story), stop=stop))
    pieces: list[str] = []
    ids: list[int] = []
    while engine.has_work:
        for delta in engine.step():
            pieces.append(delta.text)
            ids.extend(delta.token_ids)
    whole = ByteTokenizer().decode(ids)
    if stop is None:
        assert "".join(pieces) == story.decode(errors="replace") == whole
    else:
        stops = [stop] if isinstance(stop, str) else stop
        ends = [whole.find(each) for each in stops if each in whole]
        assert "".join(pieces) == whole[: min(ends)]
