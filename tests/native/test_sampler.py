"""The native sampler against a plain NumPy twin, and what it promises for any input (I2)."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpx import _native
from lpx.runtime.cpu.flat_step import FlatStep
from lpx.runtime.step import SamplerSettings, SequenceInput, StepBatch
from tests.native import sampler_twin as twin

VOCAB = 700


def flat(sequences, vocab):
    return FlatStep(StepBatch(sequences), vocab)


def run(logits, sequences, isa=""):
    """The native sampler's results for one row of logits per sampled or scored row."""
    rows = np.ascontiguousarray(logits, dtype=np.float32)
    step = flat(sequences, rows.shape[1])
    return step.results(_native.sample_rows(rows, isa, **step.sampling)).sequences


def sequence(sampling, position=5, **fields):
    return SequenceInput([0], position - 1, [0], 1, sampling, **fields)


def draw(logits, sampling, position=5, **fields):
    (output,) = run(np.asarray(logits)[None], [sequence(sampling, position, **fields)])
    (token,) = output.sampled_ids
    return token


def random_logits(seed, vocab=VOCAB, scale=3.0):
    return (np.random.default_rng(seed).standard_normal(vocab) * scale).astype(np.float32)


def test_noise_equals_its_definition():
    for arguments in [(0, 0, 0), (1, 2, 3), (2**64 - 1, 131071, 262143), (12345, 7, 49151)]:
        assert _native.gumbel_noise(*arguments) == pytest.approx(twin.noise(*arguments), rel=1e-12)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplerSettings(),
        SamplerSettings(temperature=1.0),
        SamplerSettings(temperature=0.7, top_k=5),
        SamplerSettings(temperature=1.3, top_k=200),
        SamplerSettings(temperature=1.0, top_p=0.9),
        SamplerSettings(temperature=2.5, top_p=0.999),
        SamplerSettings(temperature=1.0, top_p=0.0),
        SamplerSettings(temperature=1.0, min_p=0.05),
        SamplerSettings(temperature=1.5, min_p=0.01, top_k=30, top_p=0.8),
        SamplerSettings(temperature=1.0, top_k=1),
        SamplerSettings(temperature=1.0, top_k=10**9),
    ],
    ids=str,
)
def test_sampled_tokens_equal_the_twin(sampling):
    for seed in range(60):
        sampling.seed = seed * 77
        logits = random_logits(seed)
        assert draw(logits, sampling, position=seed + 1) == twin.sample(logits, sampling, seed + 1)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_any_settings_equal_the_twin(data):
    vocab = data.draw(st.integers(1, 150))
    # Few distinct values, so that ties are common.
    logits = np.array(
        data.draw(st.lists(st.sampled_from([-9.0, -1.5, 0.0, 0.25, 2.0, 2.5]), min_size=vocab, max_size=vocab))
    )
    ids = st.integers(0, vocab - 1)
    sampling = SamplerSettings(
        temperature=data.draw(st.sampled_from([0.0, 0.3, 1.0, 4.0])),
        top_k=data.draw(st.sampled_from([0, 1, 3, 64, 1000])),
        top_p=data.draw(st.sampled_from([1.0, 0.93, 0.5, 0.0])),
        min_p=data.draw(st.sampled_from([0.0, 0.1, 1.0])),
        seed=data.draw(st.integers(0, 2**64 - 1)),
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.5, 0.7])),
        presence_penalty=data.draw(st.sampled_from([0.0, 2.0, -1.0])),
        frequency_penalty=data.draw(st.sampled_from([0.0, 0.5])),
        logit_bias=data.draw(st.dictionaries(ids, st.sampled_from([-100.0, -1.0, 3.0]), max_size=4)),
    )
    banned = data.draw(st.lists(ids, max_size=3)) if vocab > 3 else []
    prompt, output = data.draw(st.lists(ids, max_size=8)), data.draw(st.lists(ids, max_size=8))
    token = draw(logits, sampling, 9, banned_ids=banned, prompt_ids=prompt, output_ids=output)
    history = sampling.needs_history
    expected = {"banned": banned, "prompt": prompt if history else (), "output": output if history else ()}
    assert token == twin.sample(logits, sampling, 9, **expected)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplerSettings(temperature=1.0),
        SamplerSettings(temperature=0.6),
        SamplerSettings(temperature=1.0, top_k=6),
        SamplerSettings(temperature=1.2, top_p=0.85),
        SamplerSettings(temperature=1.0, min_p=0.2),
    ],
    ids=str,
)
def test_frequencies_follow_the_distribution(sampling):
    logits = random_logits(3, vocab=20, scale=1.2)
    draws = 20_000
    sampling.seed = 2024
    rows = np.repeat(logits[None], draws, axis=0)
    outputs = run(rows, [sequence(sampling, position) for position in range(1, draws + 1)])
    counts = Counter(output.sampled_ids[0] for output in outputs)
    kept = twin.kept_ids(logits, sampling)
    mass = np.exp(logits[kept].astype(np.float64) / sampling.temperature)
    expected = mass / mass.sum() * draws
    assert set(counts) <= set(kept)
    observed = np.array([counts[i] for i in kept])
    chi_square = ((observed - expected) ** 2 / expected).sum()
    # Mean df, standard deviation sqrt(2 df); seeds are fixed, so this passes always or never.
    degrees = len(kept) - 1
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees)


def test_seeds_and_positions_give_different_streams():
    logits = np.zeros(VOCAB, dtype=np.float32)
    streams = {
        tuple(draw(logits, SamplerSettings(temperature=1.0, seed=seed), position) for position in range(1, 30))
        for seed in (0, 1, 2, 2**63, 2**64 - 1)
    }
    assert len(streams) == 5
    assert all(len(set(stream)) > 20 for stream in streams)


def test_a_row_does_not_depend_on_its_neighbours():
    settings_of = [
        SamplerSettings(temperature=1.0, seed=1),
        SamplerSettings(temperature=1e-7, seed=2),
        SamplerSettings(temperature=0.8, top_p=0.9, seed=3, repetition_penalty=1.3),
        SamplerSettings(temperature=1.0, top_k=4, seed=4, logit_bias={3: 5.0, 600: -2.0}),
        SamplerSettings(),
    ]
    sequences = [
        sequence(s, 10 + i, logprobs=i, prompt_ids=[1, 2], output_ids=[3, 3], banned_ids=[i])
        for i, s in enumerate(settings_of)
    ]
    logits = np.stack([random_logits(i) for i in range(5)])
    together = run(logits, sequences)
    alone = [run(logits[i : i + 1], [sequences[i]])[0] for i in range(5)]
    assert together == alone


@pytest.mark.parametrize("temperature", [0.0, 1e-40, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3])
def test_tiny_temperatures_are_greedy(temperature):
    for seed in range(20):
        logits = random_logits(seed, scale=30.0)
        assert draw(logits, SamplerSettings(temperature=temperature, seed=seed)) == int(logits.argmax())


def test_huge_temperature_is_uniform():
    logits = random_logits(1, vocab=8, scale=20.0)
    rows = np.repeat(logits[None], 8000, axis=0)
    outputs = run(rows, [sequence(SamplerSettings(temperature=1e6, seed=5), p) for p in range(1, 8001)])
    counts = np.bincount([o.sampled_ids[0] for o in outputs], minlength=8)
    assert counts.min() > 850
    assert counts.max() < 1150


def test_greedy_takes_the_lowest_of_equal_logits():
    logits = np.zeros(VOCAB, dtype=np.float32)
    logits[[77, 140, 699]] = 4.0
    assert draw(logits, SamplerSettings()) == 77
    assert draw(logits, SamplerSettings(), banned_ids=[77]) == 140


def test_repetition_penalty_lowers_positive_and_negative_logits_once_per_id():
    logits = np.full(10, -4.0, dtype=np.float32)
    logits[2] = -2.0
    # -2 * 1.5 = -3 still wins; dividing would raise it, once per occurrence would give -4.5.
    assert draw(logits, SamplerSettings(repetition_penalty=1.5), output_ids=[2, 2]) == 2
    assert draw(logits, SamplerSettings(repetition_penalty=2.5), output_ids=[2]) == 0
    assert draw(-logits, SamplerSettings(repetition_penalty=1.5), prompt_ids=[0]) == 1


def test_presence_and_frequency_count_output_only():
    logits = np.array([1.0, 0.9, 0.0], dtype=np.float32)
    assert draw(logits, SamplerSettings(presence_penalty=2.0), prompt_ids=[0]) == 0
    assert draw(logits, SamplerSettings(presence_penalty=2.0), output_ids=[0]) == 1
    assert draw(logits, SamplerSettings(frequency_penalty=0.06), output_ids=[0]) == 0
    assert draw(logits, SamplerSettings(frequency_penalty=0.06), output_ids=[0, 0]) == 1


def test_drafted_rows_see_the_drafted_tokens_before_them():
    sampling = SamplerSettings(presence_penalty=5.0)
    logits = np.tile(np.array([3.0, 2.0, 1.0, 0.0], dtype=np.float32), (3, 1))
    drafts = SequenceInput([2, 0, 1], 10, [0], 3, sampling, output_ids=[2])
    (output,) = run(logits, [drafts])
    assert output.sampled_ids == [0, 1, 3]


def test_logprobs_are_of_the_unmodified_logits():
    logits = random_logits(8)
    log_softmax = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    order = np.argsort(-logits, kind="stable")
    banned = order[:3].tolist()
    (output,) = run(logits[None], [sequence(SamplerSettings(), logprobs=5, banned_ids=banned)])
    (scores,) = output.logprobs
    assert output.sampled_ids == [order[3]]
    assert scores.token_id == order[3]
    assert scores.rank == 4
    assert scores.logprob == pytest.approx(log_softmax[order[3]], abs=1e-5)
    assert [token for token, _ in scores.top] == order[:5].tolist()
    assert [value for _, value in scores.top] == pytest.approx(log_softmax[order[:5]], abs=1e-5)


def test_scores_and_samples_of_one_step_come_in_row_order():
    logits = np.stack([random_logits(seed, vocab=30) for seed in range(4)])
    both = SequenceInput(
        [1, 2, 3], 0, [0], 1, SamplerSettings(), logprobs=0, score_targets=[7, -1, 9], score_logprobs=2
    )
    # Row 0 is scored, row 1 not at all, row 2 scored and sampled; then another sequence.
    outputs = run(logits, [both, sequence(SamplerSettings())])
    assert [None if s is None else s.token_id for s in outputs[0].scores] == [7, None, 9]
    assert outputs[0].scores[0].rank == 1 + int((logits[0] > logits[0][7]).sum())
    assert len(outputs[0].scores[0].top) == 2
    assert outputs[0].sampled_ids == [int(logits[2].argmax())]
    assert outputs[0].logprobs[0].token_id == outputs[0].sampled_ids[0]
    assert outputs[1].sampled_ids == [int(logits[3].argmax())]
    assert outputs[1].scores is None


def test_top_of_more_ids_than_the_vocabulary_is_all_of_them():
    (output,) = run(random_logits(1, vocab=5)[None], [sequence(SamplerSettings(), logprobs=50)])
    assert len(output.logprobs[0].top) == 5


def test_logprobs_are_finite_for_impossible_tokens():
    logits = np.zeros(6, dtype=np.float32)
    logits[4] = -np.inf
    (output,) = run(logits[None], [sequence(SamplerSettings(), logprobs=6)])
    assert output.logprobs[0].top[-1] == (4, -9999.0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", [0, 63, 64, 699])
def test_logits_that_are_not_finite_fail_their_sequence_alone(value, where):
    logits = np.stack([random_logits(1), random_logits(2)])
    logits[0, where] = value
    for sampling in (SamplerSettings(), SamplerSettings(temperature=1.0, top_p=0.5, repetition_penalty=1.2)):
        broken, sound = run(
            logits, [sequence(sampling, logprobs=3, output_ids=[1]), sequence(sampling, output_ids=[1])]
        )
        assert "not finite" in broken.error
        assert broken.sampled_ids == []
        assert sound.error is None
        assert len(sound.sampled_ids) == 1


def test_everything_banned_but_one_is_that_one():
    logits = random_logits(5, vocab=9)
    for sampling in (SamplerSettings(), SamplerSettings(temperature=1.0), SamplerSettings(temperature=1.0, top_p=0.9)):
        assert draw(logits, sampling, banned_ids=[0, 1, 2, 3, 4, 5, 6, 8]) == 7


@pytest.mark.parametrize(
    "fields",
    [
        {"banned_ids": [VOCAB]},
        {"banned_ids": [-1]},
        {"prompt_ids": [VOCAB]},
        {"output_ids": [2**31 - 1]},
    ],
    ids=str,
)
def test_ids_outside_the_vocabulary_are_refused(fields):
    with pytest.raises(ValueError, match="vocabulary"):
        draw(random_logits(0), SamplerSettings(repetition_penalty=1.1), **fields)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplerSettings(temperature=-1.0),
        SamplerSettings(temperature=float("nan")),
        SamplerSettings(repetition_penalty=0.0),
        SamplerSettings(logit_bias={VOCAB: 1.0}),
        SamplerSettings(logit_bias={1: float("nan")}),
        SamplerSettings(top_k=-5),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(sampling):
    with pytest.raises(ValueError, match=r"."):
        draw(random_logits(0), sampling)
