"""Masks: only allowed ids come out, whatever else the settings ask for, and log-probabilities do not change."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpx import _native
from lpx.runtime.cpu.flat_step import FlatStep
from lpx.runtime.step import SamplerSettings, SequenceInput, StepBatch
from tests.native import sampler_twin as twin
from tests.native.test_sampler import random_logits, run, sequence


def mask_of(allowed, vocab):
    mask = np.zeros((1, (vocab + 31) // 32), dtype=np.uint32)
    for token in allowed:
        mask[0, token // 32] |= np.uint32(1 << token % 32)
    return mask


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_any_settings_and_mask_equal_the_twin(data):
    vocab = data.draw(st.integers(1, 150))
    values = st.sampled_from([-9.0, -1.5, 0.0, 0.25, 2.5])
    logits = np.array(data.draw(st.lists(values, min_size=vocab, max_size=vocab)), dtype=np.float32)
    ids = st.integers(0, vocab - 1)
    allowed = data.draw(st.sets(ids, min_size=1))
    banned = data.draw(st.lists(ids, max_size=5, unique=True))
    sampling = SamplerSettings(
        temperature=data.draw(st.sampled_from([0.0, 0.3, 1.0, 4.0])),
        top_k=data.draw(st.sampled_from([0, 1, 3, 64])),
        top_p=data.draw(st.sampled_from([1.0, 0.93, 0.5])),
        min_p=data.draw(st.sampled_from([0.0, 0.1])),
        seed=data.draw(st.integers(0, 2**64 - 1)),
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.5])),
        logit_bias=data.draw(st.dictionaries(ids, st.sampled_from([-100.0, 3.0]), max_size=4)),
    )
    output = data.draw(st.lists(ids, max_size=8))
    scored = data.draw(st.sampled_from([None, 0, 3]))
    row = sequence(sampling, 9, banned_ids=banned, output_ids=output, masks=mask_of(allowed, vocab), logprobs=scored)
    (result,) = run(logits[None], [row])
    barred = set(range(vocab)) - allowed
    if allowed - set(banned):
        barred |= set(banned)
    expected = twin.sample(logits, sampling, 9, banned=sorted(barred), output=output if sampling.needs_history else ())
    assert result.sampled_ids == [expected]
    if scored is not None:
        row.masks, row.banned_ids, row.logprobs = None, (), 3
        (unmasked,) = run(logits[None], [row])
        assert result.logprobs[0].top == unmasked.logprobs[0].top[:scored]


def test_impossible_logits_give_an_allowed_id():
    logits = np.full(100, -np.inf, dtype=np.float32)
    logits[3] = 1.0
    for sampling in (SamplerSettings(), SamplerSettings(temperature=1.0, top_k=2)):
        (output,) = run(logits[None], [sequence(sampling, masks=mask_of({70, 90}, 100))])
        assert output.sampled_ids == [70]


def test_each_row_has_its_own_mask_and_others_have_none():
    logits = np.stack([random_logits(seed, vocab=40) for seed in range(5)])
    masked = SequenceInput([1, 2, 3], 4, [0], 3, SamplerSettings())
    masked.masks = np.concatenate([mask_of({i}, 40) for i in (7, 39, 0)])
    plain = SequenceInput([1, 2], 0, [0], 1, SamplerSettings(), score_targets=[3, -1], score_logprobs=1)
    outputs = run(logits, [masked, plain])
    assert outputs[0].sampled_ids == [7, 39, 0]
    assert outputs[1].sampled_ids == [int(logits[4].argmax())]
    scored = SequenceInput([1, 2], 0, [0], 1, SamplerSettings(), score_targets=[3, -1], masks=mask_of({5}, 40))
    outputs = run(logits[:3], [scored, sequence(SamplerSettings())])
    assert outputs[0].sampled_ids == [5]
    assert outputs[0].scores[0].token_id == 3
    assert outputs[1].sampled_ids == [int(logits[2].argmax())]


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 2)])
def test_masks_that_do_not_fit_are_refused(shape):
    row = sequence(SamplerSettings(), masks=np.ones(shape, dtype=np.uint32))
    with pytest.raises(ValueError, match="mask"):
        run(random_logits(0, vocab=40)[None], [row])


def test_a_masked_row_names_only_masks_that_exist():
    step = FlatStep(StepBatch([sequence(SamplerSettings(), masks=mask_of({5}, 40))]), 40)
    step.sampling["mask"][0] = 1
    with pytest.raises(ValueError, match="mask"):
        _native.sample_rows(random_logits(0, vocab=40)[None], "", **step.sampling)
