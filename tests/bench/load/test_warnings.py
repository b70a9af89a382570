"""What makes figures say something else than they seem to is said."""

from __future__ import annotations

import pytest

from tests.bench.load.fake_server import DONE, Script, run_load, text, usage, words


def test_prompts_from_the_prefix_cache_are_said_with_their_share():
    warm = run_load([words(0.1, 0.2, prompt=100, cached=60)] * 4)
    assert [warning for warning in warm.warnings if "prefix cache" in warning] == [
        "60 % of the prompt tokens came from the server's prefix cache: TTFT is better than it is for new prompts"
    ]
    assert warm.figures["cached_tokens"] == 240
    cold = run_load([words(0.1, 0.2, prompt=100, cached=4)] * 4)
    assert cold.warnings == ()
    on_purpose = run_load([words(0.1, 0.2, prompt=320, cached=256)] * 4, dataset_name="prefix_repetition")
    assert not any("prefix cache" in warning for warning in on_purpose.warnings)


def test_a_flat_ttft_curve_is_said():
    lengths = [100, 200, 400, 800] * 2
    flat = run_load([words(0.1, 0.2, prompt=length) for length in lengths])
    assert [warning for warning in flat.warnings if "flat" in warning] == [
        "TTFT is flat: 100.0 ms for 100 tokens, 100.0 ms for 800; the prompts may come from a prefix cache"
    ]
    rising = run_load([words(0.001 * length, 1.0, prompt=length) for length in lengths])
    assert not any("flat" in warning for warning in rising.warnings)
    short = run_load([words(0.1, 0.2, prompt=length // 10) for length in lengths])
    assert not any("flat" in warning for warning in short.warnings)


def test_the_same_prompt_again_and_again_is_said():
    report = run_load([words(0.1, 0.2)] * 2, unique_prompts=False, dataset_name="random")
    assert any("sent more than once" in warning for warning in report.warnings)


@pytest.mark.parametrize(
    ("requests", "before", "said"),
    [
        (16, 0, None),
        (48, 0, "16 different prompts are asked 3 times each: a server that drafts from its earlier answers"),
        (20, 0, "16 different prompts are asked 1.2 times each on average: "),
        (16, 16, "16 different prompts are asked 2 times each, levels before counted: "),
    ],
)
def test_how_often_the_prompts_of_the_fixed_set_are_asked_is_said(requests, before, said):
    report = run_load([words(0.1, 0.2)] * requests, dataset_name="fixed", sent_before=before)
    found = [warning for warning in report.as_json()["warnings"] if "drafts from its earlier answers" in warning]
    assert len(found) == (said is not None)
    assert said is None or (found[0].startswith(said) and "--dataset-name random" in found[0])


def test_random_prompts_are_asked_once():
    report = run_load([words(0.1, 0.2)] * 48, dataset_name="random", sent_before=48)
    assert not any("asked" in warning for warning in report.warnings)


def test_a_set_that_is_not_gone_through_twice_repeats_nothing():
    report = run_load([words(0.1, 0.2)] * 8, unique_prompts=False, dataset_name="fixed")
    assert report.warnings == ()


def test_a_rate_that_was_not_reached_is_said():
    report = run_load([words(0.001, 0.002, tokens=2)] * 30, request_rate=1e6, max_concurrency=1)
    assert any("the rate was not reached" in warning for warning in report.warnings)


def test_answers_that_end_without_a_reason_are_said():
    broken = Script([(0.1, text("a ")), (0.2, text("b ")), (0.2, usage(2) + DONE)])
    report = run_load([words(0.1, 0.2), broken, words(0.1, 0.2), broken])
    assert [warning for warning in report.warnings if "finish reason" in warning] == [
        "2 of 4 answers ended without a finish reason: the server may have broken them off, as some do when the next "
        "request comes"
    ]
    assert not any("finish reason" in warning for warning in run_load([words(0.1, 0.2)] * 4).warnings)


def test_answers_shorter_than_ignore_eos_asks_for_are_said():
    answers = [words(0.1, 0.2, tokens=tokens) for tokens in (64, 58, 57, 3)]  # of 64; nine tenths are 57.6
    asked = {"dataset_name": "random", "output_len": 64}
    report = run_load(answers, ignore_eos=True, **asked)
    assert [warning for warning in report.warnings if "--ignore-eos" in warning] == [
        "2 of 4 answers are shorter than --ignore-eos asks for: 30 tokens on average where 64 were wanted; the server "
        "does not take it, or broke them off"
    ]
    for more in ({}, {"ignore_eos": True, "extra_body": {"max_tokens": 3}}):  # they may end; the body asks for less
        assert not any("--ignore-eos" in warning for warning in run_load(answers, **asked, **more).warnings)
