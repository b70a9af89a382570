"""Bounds are read strictly, need what they need, and end in the exit codes that `lpx bench gate` has."""

from __future__ import annotations

import dataclasses

import pytest

from lpx.errors import ConfigError
from lpx.options import EngineOptions
from lpx.quality.divergence import Distance, Divergence, Perplexity
from lpx.quality.evaluation import EvalSettings, Evaluation, InUse, Side
from lpx.quality.gate import DEFAULT_BOUNDS, check_bounds, exit_code, judge, parse_bounds
from lpx.quality.reference import default_reference, differ_in_kv_only, parse_reference
from lpx.quality.review import ReviewReport, ReviewResult
from lpx.quality.stability import Finding, StabilityReport
from lpx.quality.weights import TensorSlope, WeightsReport


def review(passed: int, tries: int = 60) -> ReviewReport:
    return ReviewReport(tuple(ReviewResult(str(n), "k", n < passed, None, "") for n in range(tries)))


def evaluation(kl=0.005, top1=0.985, ppl=10.1, reference_ppl=10.0, findings=(), passed=40, before=42, slope=1.0):
    in_use = InUse("m", "Q8_0", "f16", "cpu", "avx2", 2)
    distance = Distance(100, kl, (kl / 2, kl * 2), kl, 10 * kl, 20 * kl, top1)
    divergence = Divergence(
        **{field.name: getattr(distance, field.name) for field in dataclasses.fields(Distance)},
        ppl=Perplexity(ppl, (9.0, 11.0), 50),
        reference_ppl=Perplexity(reference_ppl, (9.0, 11.0), 50),
        by_text={"a": distance},
    )
    tensor = TensorSlope("layers.0.up", "Q8_0", 8.5, slope, slope * 1.0001, 0.01)
    return Evaluation(
        subject=Side(in_use, StabilityReport(10, 5, tuple(findings)), review(passed)),
        reference=Side(in_use, StabilityReport(10, 5, (Finding("repetition", "p", "q", "a"),)), review(before)),
        windows=3,
        dequantized=False,
        perplexity=divergence.ppl,
        divergence=divergence,
        weights=WeightsReport((tensor,)),
    )


def outcome(text: str, **changes) -> str:
    (verdict,) = judge(evaluation(**changes), parse_bounds([text]))
    return verdict.outcome


@pytest.mark.parametrize(
    ("bound", "good", "bad"),
    [
        ("kl:0.01", {"kl": 0.01}, {"kl": 0.0101}),
        ("p99_kl:0.1", {"kl": 0.009}, {"kl": 0.011}),
        ("top1:0.98", {"top1": 0.98}, {"top1": 0.979}),
        ("top1:98%", {"top1": 0.98}, {"top1": 0.979}),
        ("ppl:+1%", {"ppl": 10.09}, {"ppl": 10.11}),
        ("ppl:12", {"ppl": 12.0}, {"ppl": 12.1}),
        ("weights", {"slope": 1.004}, {"slope": 1.03}),
        ("weights", {"slope": 0.996}, {"slope": 0.97}),
        ("review:-5%", {"passed": 39, "before": 42}, {"passed": 38, "before": 42}),
        ("review:-5%", {"passed": 30, "before": 33}, {"passed": 29, "before": 33}),
        ("review:50%", {"passed": 30}, {"passed": 29}),
        ("kl:0.01", {"kl": 0.001}, {"kl": float("nan")}),
        ("top1:0.9", {"top1": 0.95}, {"top1": float("nan")}),
        *(
            ("stability", {"findings": [Finding("cut", "p", "q", "a")]}, {"findings": [Finding(kind, "p", "q", "a")]})
            for kind in ("different", "garbled", "empty", "refused")
        ),
        (
            "stability",  # the reference has one loop, and two more of ten prompts may be chance
            {"findings": [Finding("repetition", "p", "q", "a")] * 3},
            {"findings": [Finding("repetition", "p", "q", "a")] * 4},
        ),
    ],
)
def test_bounds_hold_up_to_the_limit(bound: str, good: dict, bad: dict) -> None:
    assert outcome(bound, **good) == "passed"
    assert outcome(bound, **bad) == "failed"


@pytest.mark.parametrize(
    "text",
    ["kl", "kl:", "kl:-1%", "kl:+0.1", "top1:2", "ppl:-1%", "ppl:+1", "review:+5%", "weights:1", "speed:1", "kl:0.01x"],
)
def test_bounds_that_make_no_sense_are_refused_with_the_value(text: str) -> None:
    with pytest.raises(ConfigError, match=text.replace("+", r"\+")):
        parse_bounds([text])


def test_several_bounds_in_one_option() -> None:
    assert [bound.text for bound in parse_bounds(["kl:0.01, weights", "stability"])] == list(DEFAULT_BOUNDS)


def test_exit_codes() -> None:
    bounds = parse_bounds(["kl:0.01", "stability"])
    assert exit_code(judge(evaluation(), bounds)) == 0
    assert exit_code(judge(evaluation(kl=1), bounds)) == 1
    unknown = dataclasses.replace(evaluation(), divergence=None)
    assert exit_code(judge(unknown, bounds)) == 2
    assert exit_code(judge(unknown, parse_bounds(["kl:1", "review:-0%"]))) == 1  # a failure tells more


def test_bounds_that_cannot_be_judged_are_refused_before_the_work() -> None:
    alone = EvalSettings(EngineOptions("m"), checks=("distributions",))
    for text, said in (("kl:0.01", "--reference"), ("ppl:+1%", "--reference"), ("stability", "--checks")):
        with pytest.raises(ConfigError, match=said):
            check_bounds(parse_bounds([text]), alone)
    check_bounds(parse_bounds(["ppl:20"]), alone)


@pytest.mark.parametrize(
    ("changes", "said"), [({"checks": ("colour",)}, "colour"), ({"checks": ()}, "no check"), ({"runs": 1}, "2")]
)
def test_settings_that_make_no_sense_are_refused(changes: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EvalSettings(EngineOptions("m"), **changes)


def test_references() -> None:
    subject = EngineOptions("m.gguf", kv_cache_dtype="q8", quantization="q4", threads=2)
    assert parse_reference("big.gguf", subject) == EngineOptions("big.gguf", kv_cache_dtype="f16", threads=2)
    given = parse_reference("kv_cache_dtype=q8,q4, threads=1", subject)
    assert given == EngineOptions("m.gguf", kv_cache_dtype="q8,q4", threads=1)
    assert parse_reference("model=/a/b.gguf,quantization=q8", subject).quantization == "q8"
    for text, said in (("speed=1", "speed"), ("threads=two", "two"), ("kv_cache_dtype=q3", "q3")):
        with pytest.raises(ConfigError, match=said):
            parse_reference(text, subject)


def test_default_reference_is_there_where_it_differs() -> None:
    assert default_reference(EngineOptions("m")) is None
    assert default_reference(EngineOptions("m", kv_cache_dtype="f16", quantization="none")) is None
    kv = EngineOptions("m", kv_cache_dtype="q8", served_model_name="name")
    assert differ_in_kv_only(kv, default_reference(kv))
    load = EngineOptions("m", quantization="q4")
    assert default_reference(load) == EngineOptions("m", kv_cache_dtype="f16")
    assert not differ_in_kv_only(load, default_reference(load))
    assert not differ_in_kv_only(kv, EngineOptions("other", kv_cache_dtype="f16"))
