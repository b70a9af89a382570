"""Requests with a form: the text has it, whatever else they ask for, and drafts change nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from llguidance import LLParserLimits

from lpx.engine.drafting.speculation import Speculation
from lpx.engine.drafting.step_costs import StepCosts
from lpx.engine.drafting.suffix import SuffixDrafter
from lpx.engine.engine import Engine
from lpx.engine.kv_cache import KVCache
from lpx.engine.outputs import RequestDelta
from lpx.engine.sampling_params import SamplingParams
from lpx.errors import InvalidRequestError
from tests.engine.fake_executor import END_OF_TURN, FakeExecutor

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6, "pattern": "^[a-z]*$"},
        "number": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["alpha", "beta"]},
    },
    "required": ["name", "number", "kind"],
    "additionalProperties": False,
}
FORM = {"json": SCHEMA}


def likes_json(tokens: list[int]) -> int:
    """Writes the text of its own 40 tokens ago, so that drafts are often right."""
    return tokens[-40] if len(tokens) > 40 else 34


def run(engine: Engine, *requests: SamplingParams, prompt: str = "p") -> list[list[list[RequestDelta]]]:
    """Deltas by request and choice."""
    for i, params in enumerate(requests):
        engine.add_request(f"{prompt}{i}", params, f"r{i}")
    deltas: dict[str, dict[int, list[RequestDelta]]] = {}
    while engine.has_work:
        for delta in engine.step():
            deltas.setdefault(delta.request_id, {}).setdefault(delta.index, []).append(delta)
    return [[parts for _, parts in sorted(deltas[f"r{i}"].items())] for i in range(len(requests))]


def text_of(parts: list[RequestDelta]) -> str:
    return "".join(part.text for part in parts)


def ids_of(parts: list[RequestDelta]) -> list[int]:
    return [token_id for part in parts for token_id in part.token_ids]


def params(form: dict[str, Any] = FORM, **others: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 100, "structured_outputs": form, **others})  # type: ignore[arg-type]


def with_drafts(kv_cache: KVCache) -> Speculation:
    costs = StepCosts()
    costs._take_in({rows: 1.0 + 0.05 * rows for rows in (1, 2, 3, 4, 6, 8, 12, 16)})
    return Speculation([SuffixDrafter(100)], most=6, judging=False, costs=costs, kv_cache=kv_cache, max_rows=16)


def make_grammar(engine: Engine, form: dict[str, Any]) -> object:
    return engine.compile_grammar(params(form))


def is_of_form(text: str) -> bool:
    value = json.loads(text)
    return list(value) == ["name", "number", "kind"] and 0 <= value["number"] <= 99


@pytest.mark.parametrize("others", [{"temperature": 0.0}, {"seed": 7}, {"seed": 7, "n": 3, "logprobs": 2}], ids=str)
def test_every_choice_has_the_form(make_engine: Callable[..., Engine], others: dict[str, Any]) -> None:
    (choices,) = run(make_engine(), params(**others))
    assert len(choices) == others.get("n", 1)
    for parts in choices:
        assert is_of_form(text_of(parts))
        assert (parts[-1].finish_reason, parts[-1].stop_reason) == ("stop", None)
    assert others.get("n", 1) == len({text_of(parts) for parts in choices})


def test_forced_text_takes_no_steps_of_its_own(make_engine: Callable[..., Engine]) -> None:
    executor = FakeExecutor()
    ((parts,),) = run(make_engine(executor), params(seed=3))
    rows = [record.rows[0] for record in executor.steps]
    assert ids_of(parts)[:10] == list(b'{"name": "')
    assert rows[1] == (2, 10, 1)  # behind the prompt of two bytes: ten tokens, the last of them sampled from
    assert len(rows) < len(ids_of(parts)) - 20


def test_forced_text_is_the_same_with_logprobs_for_every_token(make_engine: Callable[..., Engine]) -> None:
    (plain,), (scored,) = (run(make_engine(), params(seed=5, logprobs=wanted)) for wanted in (None, 1))
    assert ids_of(plain[0]) == ids_of(scored[0])
    logprobs = [entry for part in scored[0] for entry in part.logprobs or ()]
    assert [next(iter(entry)) for entry in logprobs] == ids_of(scored[0])


@pytest.mark.parametrize("others", [{"temperature": 0.0}, {"seed": 11}, {"seed": 11, "logprobs": 0, "n": 2}], ids=str)
@pytest.mark.parametrize(
    "form",
    [
        FORM,
        {"json": {"type": "array", "items": SCHEMA, "minItems": 2, "maxItems": 2}},
        {"regex": "([a-c]{3}-){2,20}x?"},
        {"json_object": True},
    ],
    ids=str,
)
def test_drafts_change_nothing(
    make_engine: Callable[..., Engine], form: dict[str, Any], others: dict[str, Any]
) -> None:
    outcomes = []
    for speculation in (None, with_drafts):
        executor = FakeExecutor(num_blocks=256, block_size=4, choose=likes_json)
        engine = make_engine(executor, make_speculation=speculation, max_model_len=400)
        wanted = params(form, max_tokens=200, **others)
        # The later ones find drafts in what the first has left.
        results = run(engine, wanted) + run(engine, wanted, params(form, max_tokens=200, speculative="off", **others))
        outcomes.append(
            [
                [
                    (text_of(c), ids_of(c), c[-1].finish_reason, [e for p in c for e in p.logprobs or ()])
                    for c in choices
                ]
                for choices in results
            ]
        )
    assert outcomes[0] == outcomes[1]
    drafted = engine.stats().drafts
    assert drafted.accepted > 0


def test_the_form_holds_beside_other_requests_in_chunks_and_after_preemption(
    make_engine: Callable[..., Engine],
) -> None:
    alone = [run(make_engine(), params(seed=i), prompt="a longer prompt " * 2)[0][0] for i in range(1)]
    executor = FakeExecutor(num_blocks=40, block_size=4)
    engine = make_engine(executor, max_num_batched_tokens=8, enable_prefix_caching=False)
    free = SamplingParams(max_tokens=60, seed=2)
    together = run(engine, params(seed=0), free, params(seed=0), free, prompt="a longer prompt " * 2)
    assert engine.stats().preemptions_total > 0
    assert ids_of(together[0][0]) == ids_of(alone[0])
    assert is_of_form(text_of(together[2][0]))
    assert all(len(ids_of(together[i][0])) == 60 for i in (1, 3))


def test_many_forced_rows_stay_within_the_budget_of_a_step(make_engine: Callable[..., Engine]) -> None:
    form = {"regex": "(one long text that is all there can be|x){3}"}
    engine = make_engine(FakeExecutor(num_blocks=400, block_size=4), max_num_batched_tokens=9, max_model_len=200)
    results = run(engine, *[params(form, max_tokens=150, seed=i) for i in range(8)])  # the executor checks the budget
    for (parts,) in results:
        assert re.fullmatch(form["regex"], text_of(parts))


def test_the_end_of_the_sequence_comes_where_the_grammar_allows_it(make_engine: Callable[..., Engine]) -> None:
    def ends(tokens: list[int]) -> int:
        return END_OF_TURN

    def text(**others: Any) -> str:
        ((parts,),) = run(make_engine(FakeExecutor(choose=ends)), params({"regex": "[ab]{3,6}c?"}, **others))
        assert parts[-1].finish_reason == "stop"
        return text_of(parts)

    assert len(text()) == 3
    assert re.fullmatch("[ab]{3,6}c|[ab]{5,6}", text(min_tokens=5))
    assert re.fullmatch("[ab]{3,6}c", text(min_tokens=50))  # the form ends before the least length
    assert re.fullmatch("[ab]{3,6}c", text(ignore_eos=True))  # and goes on as long as it can


def test_other_ends_come_first(make_engine: Callable[..., Engine]) -> None:
    def outcome(form: dict[str, Any] = FORM, **others: Any) -> tuple[str, Any, Any]:
        ((parts,),) = run(make_engine(), params(form, seed=1, **others))
        assert parts[-1].finish_reason is not None
        return text_of(parts), parts[-1].finish_reason, parts[-1].stop_reason

    assert outcome(max_tokens=4) == ('{"na', "length", None)
    assert outcome(stop=['me"']) == ('{"na', "stop", 'me"')
    assert outcome(stop_token_ids=[ord(":")]) == ('{"name"', "stop", ord(":"))
    assert outcome({"choice": ["abc"]}, max_tokens=3) == ("abc", "stop", None)


def test_a_request_with_a_form_can_be_cancelled(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    engine.add_request("p", params(seed=1), "r")
    for _ in range(3):
        engine.step()
    (delta,) = engine.abort_request("r")
    assert delta.finish_reason == "abort"
    assert not engine.has_work


def test_a_form_that_needs_too_much_work_ends_its_request_alone(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lpx.engine.structured.compiler._limits", lambda: LLParserLimits(max_items_in_row=50))
    engine = make_engine(FakeExecutor(choose=lambda tokens: 97))
    wild = {"grammar": 'start: a "."\na: /[a-z]/ a | a a | /[a-z]/'}  # in ever more ways
    before = make_grammar(engine, wild)
    results = run(engine, params(wild, ignore_eos=True, seed=1), SamplingParams(max_tokens=50, seed=1))
    last = results[0][0][-1]
    assert last.finish_reason == "error"
    assert isinstance(last.error, InvalidRequestError)
    assert "cannot be followed any further" in str(last.error)
    assert results[1][0][-1].finish_reason == "length"
    assert engine.failed is None
    assert make_grammar(engine, wild) is not before  # what is left of it in memory goes


def test_a_form_that_takes_too_long_ends_its_request_alone(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lpx.engine.structured.position._USUAL_S", -0.1)
    ((slow,), (free,)) = run(make_engine(), params(seed=1), SamplingParams(max_tokens=9, seed=1))
    assert slow[-1].finish_reason == "error"
    assert "takes too much time" in str(slow[-1].error)
    assert free[-1].finish_reason == "length"


def test_penalties_and_bias_do_not_break_the_form(make_engine: Callable[..., Engine]) -> None:
    bias = {ord("{"): -100.0, ord("x"): 50.0}
    ((parts,),) = run(make_engine(), params(seed=1, repetition_penalty=1.5, presence_penalty=1.0, logit_bias=bias))
    assert is_of_form(text_of(parts))
