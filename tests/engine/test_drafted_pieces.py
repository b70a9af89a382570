"""Which tokens of a text were drafted, told token by token on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lpx.engine.detokenizer import PieceDetokenizer
from lpx.engine.drafting.ngram import NgramDrafter
from lpx.engine.drafting.speculation import Speculation
from lpx.engine.drafting.step_costs import StepCosts
from lpx.engine.engine import Engine
from lpx.engine.kv_cache import KVCache
from lpx.engine.outputs import RequestDelta, merge_deltas
from lpx.engine.sampling_params import SamplingParams
from lpx.errors import InvalidRequestError
from tests.engine.fake_executor import END_OF_TURN, FakeExecutor

PROMPT = [*b"abcdefg abcdefg abcde"]


def repeats(tokens: list[int]) -> int:
    """A text of period 8 that ends after 60 tokens, with a surprise now and then."""
    if len(tokens) > 60:
        return END_OF_TURN
    return ord("!") if len(tokens) % 17 == 0 else tokens[-8]


@pytest.fixture
def answer(make_engine: Callable[..., Engine]) -> Callable[..., tuple[Engine, list[RequestDelta]]]:
    def run(
        params: SamplingParams, choose: Callable[[list[int]], int | str] = repeats
    ) -> tuple[Engine, list[RequestDelta]]:
        def make_speculation(kv_cache: KVCache) -> Speculation:
            return Speculation(
                [NgramDrafter(1, 4, 6)], most=6, judging=False, costs=StepCosts(), kv_cache=kv_cache, max_rows=16
            )

        engine = make_engine(FakeExecutor(choose=choose), make_speculation=make_speculation)
        engine.add_request(PROMPT, params)
        deltas: list[RequestDelta] = []
        while engine.has_work:
            deltas += engine.step()
        return engine, deltas

    return run


def asked(**options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, return_drafts=True, **{"max_tokens": None, **options})


def test_pieces_are_the_text_and_mark_what_was_accepted(answer: Callable[..., Any]) -> None:
    engine, deltas = answer(asked())
    for delta in deltas:
        assert "".join(piece for piece, _ in delta.pieces) == delta.text
    pieces = [piece for delta in deltas for piece in delta.pieces]
    assert sum(drafted for _, drafted in pieces) == deltas[-1].timings.accepted_tokens > 20
    assert sum(not drafted for _, drafted in pieces) > 3
    assert [merged.pieces for merged in merge_deltas(deltas)] == [pieces]
    assert engine.stats().drafts.accepted == deltas[-1].timings.accepted_tokens


def test_the_token_after_a_draft_is_not_of_it(answer: Callable[..., Any]) -> None:
    _, deltas = answer(asked(ignore_eos=True, max_tokens=30))
    for delta in deltas:
        assert [drafted for _, drafted in delta.pieces] == [True] * (len(delta.pieces) - 1) + [False]


def test_text_that_a_stop_string_held_back_is_in_the_pieces(answer: Callable[..., Any]) -> None:
    _, deltas = answer(asked(stop=["g abcdefgh", "e!"]))
    assert "".join(piece for delta in deltas for piece, _ in delta.pieces) == "".join(delta.text for delta in deltas)
    assert any(len(piece) > 1 for delta in deltas for piece, _ in delta.pieces)


def test_nothing_is_marked_without_speculation(answer: Callable[..., Any]) -> None:
    _, deltas = answer(asked(speculative="off"))
    assert not any(drafted for delta in deltas for _, drafted in delta.pieces)


def test_requests_that_do_not_ask_get_none(answer: Callable[..., Any]) -> None:
    engine, deltas = answer(SamplingParams(temperature=0, max_tokens=20))
    assert all(delta.pieces is None for delta in deltas)
    assert engine.stats().drafts.accepted > 5
    request = engine.make_request(PROMPT, SamplingParams())
    assert not isinstance(request.sequences[0].detokenizer, PieceDetokenizer)


def test_the_field_is_a_flag() -> None:
    with pytest.raises(InvalidRequestError, match="return_drafts must be true or false") as raised:
        SamplingParams(return_drafts=1)  # type: ignore[arg-type]
    assert raised.value.param == "return_drafts"
