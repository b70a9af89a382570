"""How many tokens are drafted: what drafts are worth against what rows cost."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence as SequenceOf

import pytest

from lpx.engine.detokenizer import Detokenizer
from lpx.engine.drafting.speculation import Speculation
from lpx.engine.drafting.step_costs import StepCosts
from lpx.engine.kv_cache import KVCache
from lpx.engine.sampling_params import SamplingParams
from lpx.engine.sequence import Request, Sequence
from lpx.runtime.step import SequenceInput
from tests.engine.fake_executor import ByteTokenizer


class OddsDrafter:
    """Drafts `first`, `first` + 1, ... with given chances."""

    name = "odds"

    def __init__(self, odds: dict[Sequence, list[float]], cost: float = 0.0, first: int = 10) -> None:
        self.first = first
        self.by_sequence = odds
        self.cost = cost
        self.judged: list[tuple[list[int], int]] = []
        self.looks = 0

    def odds(self, sequence: Sequence, most: int) -> list[float]:
        self.looks += 1
        return self.by_sequence.get(sequence, [])[:most]

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        return [list(range(self.first, self.first + count)) for _, count in wanted]

    def judge(self, sequence: Sequence, drafted: SequenceOf[int], accepted: int) -> None:
        self.judged.append((list(drafted), accepted))

    def measure_costs(self) -> None: ...

    def cost_ms(self, sequences: int, longest: int) -> float:
        return self.cost * longest

    def end(self, sequence: Sequence) -> None: ...

    def close(self) -> None: ...


def make_sequence(length: int = 10, max_length: int = 1000, **params: object) -> Sequence:
    request = Request("r", list(range(length)), SamplingParams(max_tokens=None, **params), 0)  # type: ignore[arg-type]
    return Sequence(
        request,
        0,
        max_length=max_length,
        row=SequenceInput((), 0, ()),
        stop_ids=frozenset({3}),
        detokenizer=Detokenizer(ByteTokenizer()),
    )


def make_costs(per_row: float) -> StepCosts:
    costs = StepCosts()
    costs._take_in({rows: 10.0 + per_row * (rows - 1) for rows in (1, 2, 3, 4, 6, 8, 12, 16)})
    return costs


def make_speculation(
    drafters: list[OddsDrafter], costs: StepCosts, *, judging: bool = True, most: int = 15, blocks: int = 1000
) -> Speculation:
    return Speculation(drafters, most=most, judging=judging, costs=costs, kv_cache=KVCache(blocks, 4), max_rows=64)


def lengths(speculation: Speculation, sequences: list[Sequence]) -> list[int]:
    drafts = speculation.draft(sequences)
    return [0] * len(sequences) if drafts is None else [len(draft) for draft in drafts]


def expected_rate(odds: list[list[float]], counts: SequenceOf[int], costs: StepCosts, cost: float) -> float:
    tokens = float(len(odds))
    for chances, count in zip(odds, counts, strict=True):
        value = 1.0
        for chance in chances[:count]:
            value *= chance
            tokens += value
    drafting = cost * max(counts) + costs.between_ms if any(counts) else 0.0
    return tokens / (costs.ms(len(odds) + sum(counts)) + drafting)


@pytest.mark.parametrize("per_row", [0.2, 1.0, 2.5, 6.0])
@pytest.mark.parametrize("cost", [0.0, 0.7])
def test_the_choice_is_the_best_of_all(per_row: float, cost: float) -> None:
    random.seed(int(10 * per_row))
    costs = make_costs(per_row)
    for _ in range(20):
        odds = [[random.random() ** 0.3 for _ in range(random.randrange(5))] for _ in range(3)]
        sequences = [make_sequence() for _ in odds]
        for sequence in sequences:
            sequence.draft_balance = 100.0
        drafter = OddsDrafter(dict(zip(sequences, odds, strict=True)), cost)
        counts = lengths(make_speculation([drafter], costs), sequences)
        best = max(
            expected_rate(odds, choice, costs, cost)
            for choice in itertools.product(*(range(len(chances) + 1) for chances in odds))
        )
        plain = expected_rate(odds, [0, 0, 0], costs, cost)
        chosen = expected_rate(odds, counts, costs, cost)
        if not cost:  # then the worthiest tokens are the best choice of any size; else nearly so
            assert chosen == pytest.approx(best) or best < plain * 1.12
        assert chosen == plain or chosen > plain * 1.12


def test_nothing_is_drafted_when_rows_cost_as_much_as_steps() -> None:
    sequence = make_sequence()
    speculation = make_speculation([OddsDrafter({sequence: [0.9] * 15})], make_costs(10.0))
    assert speculation.draft([sequence]) is None
    assert sequence.speculation == "would_not_pay"
    assert speculation.declined["would_not_pay"] == 1


def test_without_judging_whatever_can_be_drafted_is() -> None:
    sequence = make_sequence()
    speculation = make_speculation([OddsDrafter({sequence: [0.1] * 9})], make_costs(10.0), judging=False, most=7)
    assert lengths(speculation, [sequence]) == [7]


def test_nothing_is_drafted_behind_a_token_that_ends_the_text() -> None:
    sequence = make_sequence()  # ends at 3
    speculation = make_speculation([OddsDrafter({sequence: [1.0] * 9}, first=1)], make_costs(0.1))
    assert lengths(speculation, [sequence]) == [3]


def test_costs_that_nobody_knows_allow_no_judgement() -> None:
    sequence = make_sequence()
    assert make_speculation([OddsDrafter({sequence: [0.99] * 9})], StepCosts()).draft([sequence]) is None


def test_the_better_of_two_drafters_is_taken() -> None:
    sequence = make_sequence()
    poor, good = OddsDrafter({sequence: [0.5]}), OddsDrafter({sequence: [0.99] * 2})
    speculation = make_speculation([poor, good], make_costs(0.5))
    assert lengths(speculation, [sequence]) == [2]
    speculation.verify(sequence, [1, 2], [1, 9, 5])
    assert good.judged == [([1, 2], 1)]
    assert not poor.judged


def test_drafts_stop_where_the_sequence_ends() -> None:
    sequence = make_sequence(length=10, max_length=12)
    speculation = make_speculation([OddsDrafter({sequence: [1.0] * 15})], make_costs(0.1))
    assert lengths(speculation, [sequence]) == [1]


def test_rows_up_to_the_least_length_are_not_mixed_with_rows_behind_it() -> None:
    sequence = make_sequence(min_tokens=3)
    speculation = make_speculation([OddsDrafter({sequence: [1.0] * 15})], make_costs(0.1))
    assert lengths(speculation, [sequence]) == [2]  # its 3 rows all ban the end
    sequence.output_ids.append(5)
    sequence.tokens.append(5)
    assert lengths(speculation, [sequence]) == [1]


def test_a_request_may_refuse_drafts() -> None:
    sequence = make_sequence(speculative="off")
    speculation = make_speculation([OddsDrafter({sequence: [1.0] * 15})], make_costs(0.1))
    assert speculation.draft([sequence]) is None


def test_no_room_in_the_kv_cache_means_no_draft() -> None:
    sequence = make_sequence(length=8)
    speculation = make_speculation([OddsDrafter({sequence: [1.0] * 2})], make_costs(0.1), blocks=2)
    assert speculation._kv_cache.grow(sequence.block_table, 8)
    assert speculation.draft([sequence]) is None
    assert len(sequence.block_table) == 2


@pytest.mark.parametrize(
    ("drafted", "sampled", "holds"),
    [([1, 2], [1, 2, 7], [1, 2, 7]), ([1, 2], [1, 5, 7], [1, 5]), ([1, 2], [4, 2, 7], [4])],
)
def test_samples_hold_up_to_the_first_that_differs_from_the_draft(
    drafted: list[int], sampled: list[int], holds: list[int]
) -> None:
    sequence = make_sequence()
    speculation = make_speculation([OddsDrafter({sequence: [1.0] * 2})], make_costs(0.1))
    assert lengths(speculation, [sequence]) == [2]
    assert speculation.verify(sequence, drafted, sampled) == holds
    assert (sequence.drafts.drafted, sequence.drafts.accepted) == (2, len(holds) - 1)
    assert speculation.counts.drafted_by_position == [1, 1]
    assert sum(speculation.counts.accepted_by_position) == len(holds) - 1


def test_every_token_is_looked_at_while_drafts_were_made_lately() -> None:
    sequence = make_sequence()
    speculation = make_speculation([OddsDrafter({sequence: [1.0] * 2})], make_costs(0.1))
    assert not speculation.expects([sequence])
    speculation.draft([sequence])
    speculation.verify(sequence, [1], [1, 2])
    assert speculation.expects([sequence])
    sequence.tokens += [5] * 4
    assert not speculation.expects([sequence])
    speculation.draft([sequence])
    speculation.verify(sequence, [1, 2, 3], [1, 9])
    assert not speculation.expects([sequence])  # it was mostly wrong


def decode(speculation: Speculation, sequence: Sequence, tokens: int, *, right: bool) -> tuple[float, list[int]]:
    """(milliseconds beyond those of steps without drafts, for as many steps, numbers of drafted tokens) of `tokens`
    tokens whose drafts are all right or all wrong."""
    added, drafted, costs = 0.0, [], speculation.costs
    while len(sequence.output_ids) < tokens:
        draft = (speculation.draft([sequence]) or [[]])[0]
        alone = bool(draft) or speculation.expects([sequence])
        held = speculation.verify(sequence, draft, [*draft, 99] if right else [99]) if draft else [99]
        added += costs.ms(1 + len(draft)) - costs.ms(1) + alone * costs.between_ms
        if draft:
            drafted.append(len(draft))
        sequence.output_ids += held
        sequence.tokens += held
    return added, drafted


@pytest.mark.parametrize("per_row", [0.1, 1.0, 2.5])
@pytest.mark.parametrize("tokens", [16, 64, 400])
def test_drafts_that_are_wrong_against_all_odds_cost_little(per_row: float, tokens: int) -> None:
    sequence = make_sequence()
    speculation = make_speculation([OddsDrafter({sequence: [0.95] * 15})], make_costs(per_row))
    added, drafted = decode(speculation, sequence, tokens, right=False)
    assert len(drafted) > tokens // 64  # it tries again
    assert added <= 10.0 * max(0.25 + 0.005 * tokens, 0.3) + 1e-9


def test_drafts_that_were_right_may_be_long() -> None:
    sequence = make_sequence()
    speculation = make_speculation([OddsDrafter({sequence: [0.95] * 15})], make_costs(1.0))
    _, drafted = decode(speculation, sequence, 60, right=True)
    assert drafted[0] < 4
    assert max(drafted[1:3]) == 15


def test_sequences_of_a_step_share_what_drafts_may_cost() -> None:
    one, other = make_sequence(), make_sequence()
    speculation = make_speculation([OddsDrafter({one: [0.95] * 8})], make_costs(1.0))
    one.draft_balance = -5.0
    assert speculation.draft([one, other]) is None
    other.draft_balance = 20.0
    assert lengths(speculation, [one, other])[0] > 1
    assert one.draft_balance < -5.0
    assert other.draft_balance == 20.0


def test_nobody_looks_for_drafts_that_cannot_be_afforded() -> None:
    one, other = make_sequence(), make_sequence()
    drafter = OddsDrafter({one: [0.95] * 8})
    speculation = make_speculation([drafter], make_costs(1.0))
    one.draft_balance = -1.0
    assert speculation.draft([one, other]) is None
    assert drafter.looks == 0
    assert speculation.declined == {"no_draft": 0, "would_not_pay": 2}
    one.output_ids = list(range(200))  # by now two tokens more may be risked
    assert lengths(speculation, [one, other])[0] > 0
    assert drafter.looks == 2


def test_a_sequence_that_refuses_drafts_lends_nothing() -> None:
    one, other = make_sequence(), make_sequence(speculative="off")
    speculation = make_speculation([OddsDrafter({one: [0.95] * 8})], make_costs(1.0))
    one.draft_balance, other.draft_balance = -5.0, 20.0
    assert speculation.draft([one, other]) is None


def test_looks_that_find_nothing_cost_as_well() -> None:
    sequence = make_sequence()
    speculation = make_speculation([OddsDrafter({})], make_costs(1.0))
    sequence.draft_held_at = len(sequence.tokens) - 1
    before = speculation.costs.between_ms / speculation.costs.ms(1)
    sequence.draft_balance = before - 0.25
    assert speculation.expects([sequence])
    assert speculation.draft([sequence]) is None
    assert sequence.draft_balance == pytest.approx(-0.25)
    assert not speculation.expects([sequence])
    sequence.draft_balance = 1.0
    assert speculation.expects([sequence])
