"""Drafts that the native core makes and verifies between steps change the pace, never the tokens."""

import random

import numpy as np
import pytest

from lpx import _native
from lpx.engine.drafting.step_costs import StepCosts
from lpx.engine.engine import Engine
from lpx.engine.sampling_params import SamplingParams
from lpx.options import EngineOptions
from lpx.runtime.step import SamplerSettings, SequenceInput, StepBatch
from tests.engine.drafting.test_speculation import OddsDrafter, make_costs, make_sequence, make_speculation
from tests.reference.executor_rows import blocks_for
from tests.reference.tiny_models import random_prompt

PROMPT = 30  # the steps cross the end of a KV block
TOKENS = 24
HELD = {"temperature 0": SamplerSettings(seed=3), "temperature 1": SamplerSettings(temperature=1.0, seed=3)}


def drafting(matcher, rows=8, **changes):
    """Drafts whatever it can: rows cost nearly nothing, and chances are high."""
    settings = {
        "matcher": matcher,
        "common": [0.9] * _native.MATCH_CLASSES,
        "common_weight": 1e6,
        "least_worth": 0.01,
        "step_ms": [1.0 + 0.01 * row for row in range(rows)],
        "least_gain": 1.1,
        "balance": 0.0,
        "allowance": 1e6,
        "allowance_share": 0.0,
        "most_ms": 1e6,
    }
    return _native.Drafting(**{**settings, **changes})


class Stream:
    """A prompt whose first token was sampled, and the tokens that single steps sample behind it."""

    def __init__(self, executor, config, sampling):
        self.executor, self.sampling = executor, sampling
        self.table = blocks_for(executor, PROMPT + TOKENS + 1)
        self.prompt = random_prompt(config, PROMPT, 20)
        self.first = self.step(self.prompt, 0).sampled_ids[0]
        self.expected, token_id = [], self.first
        for position in range(PROMPT, PROMPT + TOKENS):
            token_id = self.step([token_id], position).sampled_ids[0]
            self.expected.append(token_id)
        self.next = self.step([token_id], PROMPT + TOKENS).sampled_ids

    def row(self, ids, start, **changes):
        return SequenceInput(ids, start, self.table, sample_rows=1, sampling=self.sampling, **changes)

    def step(self, ids, start):
        return self.executor.step(StepBatch([self.row(ids, start)])).sequences[0]

    def matcher(self, other_text=()):
        texts = None
        if len(other_text):
            texts = _native.SharedTexts(most_tokens=1000, most_texts=4)
            texts.add(list(other_text))
        matcher = _native.SuffixMatcher(texts)
        matcher.extend([*self.prompt, self.first], False)
        return matcher

    def run(self, drafting, more=TOKENS - 1, **changes):
        row = self.row([self.first], PROMPT, **changes)
        return self.executor.step(StepBatch([row], more_steps=more, drafting=drafting))


@pytest.fixture(params=HELD.values(), ids=HELD)
def stream(request, executor, folder):
    return Stream(executor, folder[0], request.param)


def test_drafts_that_are_right_give_the_same_tokens_in_fewer_steps(stream):
    matcher = stream.matcher([*stream.prompt, stream.first, *stream.expected])
    result = stream.run(drafting(matcher, rows=6))
    assert result.sequences[0].sampled_ids == stream.expected
    # Six at once, and one behind the last full draft.
    assert [(step.drafted, step.accepted) for step in result.drafted_steps] == [(5, 5)] * (TOKENS // 6)
    assert all(step.found and step.ms > 0 for step in result.drafted_steps)
    assert len(matcher) == PROMPT + 1 + TOKENS
    assert result.draft_balance == pytest.approx(TOKENS // 6 * (5 - 0.05))
    assert len(set(stream.expected)) > 3


@pytest.mark.parametrize("wrong_at", [0, 1, 4, 9])
def test_a_wrong_draft_gives_the_same_tokens(stream, wrong_at):
    text = [*stream.prompt, stream.first, *stream.expected]
    text[PROMPT + 1 + wrong_at] = (text[PROMPT + 1 + wrong_at] + 1) % 50
    result = stream.run(drafting(stream.matcher(text)))
    assert result.sequences[0].sampled_ids == stream.expected
    steps = result.drafted_steps
    assert sum(step.accepted + 1 for step in steps) == TOKENS
    assert any(step.accepted < step.drafted for step in steps)
    # The rows behind the wrong one have left nothing in the cache.
    assert stream.step([stream.expected[-1]], PROMPT + TOKENS).sampled_ids == stream.next


def test_without_a_match_steps_follow_without_drafts(stream):
    result = stream.run(drafting(stream.matcher(), common=[0.0] * _native.MATCH_CLASSES))
    assert result.sequences[0].sampled_ids == stream.expected
    assert [step[:3] for step in result.drafted_steps] == [(0, 0, False)] * TOKENS


def test_an_id_that_stops_ends_the_steps_inside_a_draft(stream):
    text = [*stream.prompt, stream.first, *stream.expected]
    stop_id = stream.expected[3]
    count = stream.expected.index(stop_id) + 1
    matcher = stream.matcher(text)
    result = stream.run(drafting(matcher), stop_ids={stop_id})
    assert result.sequences[0].sampled_ids == stream.expected[:count]
    assert len(matcher) == PROMPT + 1 + count
    assert sum(step.accepted + 1 for step in result.drafted_steps) == count


def test_steps_end_with_their_time_and_their_tokens(stream):
    text = [*stream.prompt, stream.first, *stream.expected]
    alone = stream.run(drafting(stream.matcher(text), rows=4, most_ms=0.0))
    assert alone.sequences[0].sampled_ids == stream.expected[:4]
    few = stream.run(drafting(stream.matcher(text)), more=2)
    assert few.sequences[0].sampled_ids == stream.expected[:3]


def test_what_drafts_may_cost_bounds_them(stream):
    def drafted(text, **changes):
        steps = stream.run(drafting(stream.matcher(text), step_ms=[1.0, 1.5, 2.0], **changes)).drafted_steps
        return [step.drafted for step in steps]

    right = [*stream.prompt, stream.first, *stream.expected]
    assert drafted(right, allowance=0.0)[:2] == [1, 1]  # 0.5 more than nothing: one token, then what it has brought
    assert drafted(right, allowance=0.0, balance=-0.1)[0] == 0
    assert drafted(right, allowance=0.6, balance=-0.1)[0] == 1
    assert drafted(right, allowance=0.0, balance=-0.1, allowance_share=0.2)[:4] == [0, 0, 0, 1]


def test_refused_before_anything_is_written(stream):
    def refused(match, held, **changes):
        with pytest.raises(ValueError, match=match):
            stream.run(held, **changes)

    refused("does not know the text", drafting(_native.SuffixMatcher()))
    refused("one chance for each class", drafting(stream.matcher(), common=[0.5]))
    refused("positive time", drafting(stream.matcher(), step_ms=[]))
    refused("positive time", drafting(stream.matcher(), step_ms=[1.0, 0.0]))
    refused("positive time", drafting(stream.matcher(), step_ms=[1.0] * 10_000))
    refused("block table", drafting(stream.matcher()), more=1000)
    rows = [stream.row([stream.first], PROMPT), stream.row([stream.first], PROMPT)]
    with pytest.raises(ValueError, match="one row alone"):
        stream.executor.step(StepBatch(rows, more_steps=2, drafting=drafting(stream.matcher())))
    assert stream.run(drafting(stream.matcher())).sequences[0].sampled_ids == stream.expected


@pytest.mark.parametrize("per_row", [0.05, 0.4, 1.0, 4.0])
def test_a_lone_sequence_drafts_as_the_engine_would_choose(per_row):
    draw = random.Random(per_row)
    costs = make_costs(per_row)
    costs.between_ms = 0.0  # which steps that follow each other do not have
    chosen = set()
    for _ in range(300):
        chances = np.array([draw.random() ** 0.2 for _ in range(draw.randrange(16))], dtype=np.float32).tolist()
        while np.prod(chances) < 0.03:  # of tokens that are worth less neither gets any
            chances.pop()
        sequence = make_sequence()
        sequence.draft_balance = draw.choice([-1.0, -0.1, 0.0, 0.3, 5.0])
        speculation = make_speculation([OddsDrafter({sequence: chances})], costs)
        before = sequence.draft_balance
        drafts = speculation.draft([sequence])
        step_ms = [costs.ms(rows) for rows in range(1, 17)]
        settings = {"step_ms": step_ms, "least_gain": 1.12, "balance": before, "allowance": 0.25}
        count, cost = drafting(_native.SuffixMatcher(), **settings).choose(chances)
        assert count == (0 if drafts is None else len(drafts[0]))
        assert before - cost == pytest.approx(sequence.draft_balance)
        chosen.add(count)
    assert len(chosen) > 3 or per_row > 2


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_an_engine_that_drafts_ahead_gives_the_same_answers(folder, monkeypatch, temperature):
    monkeypatch.setattr(StepCosts, "ms", lambda self, rows, context=0: 1.0 + 1e-3 * rows)
    engine = Engine.load(EngineOptions(str(folder[1]), threads=2))
    drafted_by_executor = []
    step = engine.executor.step
    monkeypatch.setattr(
        engine.executor, "step", lambda b: drafted_by_executor.append(b.drafting is not None) or step(b)
    )

    def answer(mode, **params):
        engine.add_request(
            [3, 1, 4, 1, 5, 9, 3, 1, 4], SamplingParams(temperature=temperature, seed=2, speculative=mode, **params)
        )
        ids, pieces, last = [], [], None
        while engine.has_work:
            for delta in engine.step():
                ids += delta.token_ids
                pieces += delta.pieces or []
                last = delta
        assert engine.kv_cache.num_free == engine.kv_cache.num_blocks
        return ids, (last.finish_reason, last.stop_reason), last.timings, pieces

    try:
        plain = answer("off", max_tokens=61, ignore_eos=True)
        assert not any(drafted_by_executor)
        for _ in range(2):  # the second time the answer is among the texts of other requests
            ahead = answer("auto", max_tokens=61, ignore_eos=True)
            assert ahead[:2] == plain[:2]
        timings = ahead[2]
        assert any(drafted_by_executor)
        assert 30 < timings.accepted_tokens <= timings.drafted_tokens
        assert timings.speculation == "drafted"
        counts = engine.stats().drafts
        assert counts.accepted >= timings.accepted_tokens
        told = answer("auto", max_tokens=61, ignore_eos=True, return_drafts=True)
        assert told[0] == plain[0]
        assert 30 < sum(drafted for _, drafted in told[3]) <= told[2].accepted_tokens  # some have no text of their own
        stopped = {"max_tokens": 61, "stop_token_ids": [plain[0][40]]}
        assert answer("auto", **stopped)[:2] == answer("off", **stopped)[:2]
        for count in (1, 2, 3, 17):
            assert answer("auto", max_tokens=count, ignore_eos=True)[0] == plain[0][:count]
    finally:
        engine.close()
