from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.engine.sampling_params import SamplingParams, choice_seed
from lpx.errors import InvalidRequestError

REFUSED = [
    ("n", [0, -1, 129, 1.0, True, "2", None]),
    ("temperature", [-0.1, 1e7, 3.5e38, 1e300, math.nan, math.inf, "1", True, None]),
    ("top_p", [0, -0.1, 1.1, math.nan, "1"]),
    ("top_k", [-2, 1.5, "5", False]),
    ("min_p", [-0.1, 1.1, math.nan]),
    ("repetition_penalty", [0, -1, 1e-46, 1e-300, 1e7, 3.5e38, math.inf, math.nan]),
    ("presence_penalty", [-2.1, 2.1, math.nan, "0"]),
    ("frequency_penalty", [-2.1, 2.1, -math.inf]),
    ("seed", [2**64, -(2**63) - 1, "100", True, 1.5]),
    ("max_tokens", [-1, "16", 1.5, True, 0]),
    ("min_tokens", [-1, 17, None]),
    ("logprobs", [-1, 21, True, "5"]),
    ("prompt_logprobs", [-1, 21, False]),
    ("stop", ["", ["", "x"], [1], ["x"] * 100, "x" * 1_000_000, 5, {"a": 1}]),
    ("stop_token_ids", [[-1], [True], [1.5], ["1"], [2**40], list(range(200)), 5]),
    (
        "logit_bias",
        [{"-1": 1}, {-1: 1}, {"abc": 1}, {"5": 1e9}, {"5": "x"}, {5: math.nan}, {5: True}, {True: 1}, {1.5: 1}, [5],
         dict.fromkeys(range(301), 1)],
    ),
    ("ignore_eos", [1, "true", None]),
    ("skip_special_tokens", [0]),
    ("include_stop_str_in_output", ["no"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED for value in values])
def test_wrong_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        SamplingParams(**{name: value})
    assert refusal.value.param == name
    assert name in str(refusal.value)
    assert len(str(refusal.value)) < 250, "a huge value is not echoed"


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("n", 128, 128),
        ("top_k", -1, -1),
        ("top_k", 10**9, 10**9),
        ("top_p", 1, 1.0),
        ("seed", 2**63, 2**63),
        ("seed", 2**64 - 1, 2**64 - 1),
        ("seed", -(2**63), -(2**63)),
        ("max_tokens", None, None),
        ("max_tokens", 2**40, 2**40),
        ("stop", "x", ("x",)),
        ("stop", [], ()),
        ("stop", None, ()),
        ("stop", ["a", "b", "a"], ("a", "b")),
        ("stop_token_ids", [7, 7, 8], (7, 8)),
        ("logit_bias", {"5": -100, 6: 100}, {5: -100.0, 6: 100.0}),
    ],
)
def test_sound_value_is_kept_in_one_form(name: str, value: Any, kept: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == kept


def test_bias_message_names_the_key() -> None:
    with pytest.raises(InvalidRequestError, match="'abc'"):
        SamplingParams(logit_bias={"abc": 1})
    with pytest.raises(InvalidRequestError, match="5"):
        SamplingParams(logit_bias={"5": 1e9})


def test_scoring_alone_is_allowed() -> None:
    assert SamplingParams(max_tokens=0, prompt_logprobs=1).max_tokens == 0


def test_params_are_frozen_and_travel_by_pickle() -> None:
    params = SamplingParams(n=2, stop=["a"], logit_bias={5: 1}, seed=7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(params)) == params


@given(seed=st.integers(-(2**63), 2**64 - 1))
def test_choices_have_seeds_of_their_own(seed: int) -> None:
    seeds = [choice_seed(seed, index) for index in range(128)]
    assert seeds[0] == seed % 2**64
    assert len(set(seeds)) == 128
    assert all(0 <= each < 2**64 for each in seeds)


def test_settings_are_what_the_sampler_takes() -> None:
    settings = SamplingParams(top_k=-1, seed=3).sampler_settings(3, vocab_size=100)
    assert (settings.top_k, settings.seed) == (0, 3)
    assert SamplingParams(top_k=10**9).sampler_settings(3, vocab_size=100).top_k == 100
