"""Decides how many tokens to draft: as many as make decoding fastest, by what drafts are worth and what rows cost."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from functools import partial

from lpx import _native
from lpx.engine.drafting.draft_counts import DraftCounts
from lpx.engine.drafting.drafter import Drafter
from lpx.engine.drafting.odds import COMMON_WEIGHT, LEAST_WORTH
from lpx.engine.drafting.step_costs import StepCosts
from lpx.engine.drafting.suffix import SuffixDrafter
from lpx.engine.kv_cache import KVCache
from lpx.engine.sequence import Sequence
from lpx.runtime.step import DraftedStep, Executor

# A gain smaller than this is within the error of costs and chances.
_LEAST_GAIN = 1.12
# Tokens behind a draft that was mostly right after which none is expected for a while. Then several steps may run
# before anybody looks for a draft, which is cheaper than to look after each.
_QUIET_TOKENS = 4
# What drafts may cost a sequence beyond what they have brought it: tokens that would have come meanwhile, at once and
# for each token of its output. Chances are learned, so the first ones are wrong for some texts; this bounds the harm.
_RISK_AT_ONCE, _RISK_SHARE = 0.25, 0.005


class Speculation:
    """Owns the drafters. `draft` before a step, `verify` after it, `end` when a sequence ends."""

    def __init__(
        self,
        drafters: SequenceOf[Drafter],
        *,
        most: int,
        judging: bool,
        costs: StepCosts,
        kv_cache: KVCache,
        max_rows: int,
    ) -> None:
        self.drafters = list(drafters)
        self.most = most
        self.judging = judging  # draft what pays; else whatever can be drafted
        self.costs = costs
        self.counts = DraftCounts()
        self.declined = {"no_draft": 0, "would_not_pay": 0}  # sequences' decode steps without a draft, by reason
        self._kv_cache = kv_cache
        self._max_rows = max_rows
        self._drafted_by: dict[Sequence, Drafter] = {}

    @property
    def name(self) -> str:
        """Such as "auto (suffix)"."""
        names = ", ".join(drafter.name for drafter in self.drafters)
        return f"auto ({names})" if self.judging else names

    def measure(self, executor: Executor, vocab_size: int, max_model_len: int) -> None:
        """Measure the costs of steps on blocks that are free, for the model and for a draft model."""
        self.costs.measure(executor, vocab_size, self._max_rows, max_model_len)
        for drafter in self.drafters:
            drafter.measure_costs()

    def draft(self, sequences: SequenceOf[Sequence], forced_rows: int = 0) -> list[list[int]] | None:
        """Drafts for sequences that decode, one list each; None when there is none. Block tables cover them.

        The step has `forced_rows` beside one for each sequence.
        """
        if self.judging and not self.costs.known:
            return None
        rows = len(sequences) + forced_rows
        context = mean_context(sequences)
        balance, allowance = self._means(sequences)
        if self.judging and not self._affords_a_token(len(sequences), rows, context, balance, allowance):
            self._decline(sequences, set(range(len(sequences))), rows, context)
            return None
        limits = [self._limit(sequence) for sequence in sequences]
        best_rate, best = 1.0, None
        found: set[int] = set()  # sequences that something could be drafted for
        for drafter in self.drafters:
            odds = [
                drafter.odds(sequence, limit) if limit > 0 else []
                for sequence, limit in zip(sequences, limits, strict=True)
            ]
            found.update(i for i, chances in enumerate(odds) if chances)
            if not any(odds):
                continue
            counts, rate, cost = self._choose(odds, drafter, rows, context, balance, allowance)
            if any(counts) and (best is None or rate > best_rate):
                best_rate, best = rate, (drafter, counts, cost)
        if best is None:
            self._decline(sequences, found, rows, context)
            return None
        drafter, counts, cost = best
        grow = self._kv_cache.grow
        wanted = [
            (i, (sequence, count))
            for i, (sequence, count) in enumerate(zip(sequences, counts, strict=True))
            if count and grow(sequence.block_table, len(sequence.tokens) + count)
        ]
        if not wanted:
            return None
        cost_of_each = cost / sum(counts)
        for _, (sequence, count) in wanted:
            sequence.draft_balance -= cost_of_each * count
        drafts: list[list[int]] = [[] for _ in sequences]
        for (i, (sequence, _)), ids in zip(wanted, drafter.propose([want for _, want in wanted]), strict=True):
            drafts[i] = self._cut(sequence, ids)
            self._drafted_by[sequence] = drafter
        return drafts

    def ahead(self, sequence: Sequence, most_ms: float) -> _native.Drafting | None:
        """For a lone sequence that decodes: how an executor drafts for it between steps of `most_ms` in all.

        None where that is not for the executor: when drafts are not judged by what they bring, or not by suffix alone.
        """
        if not self.judging or not self.costs.known or len(self.drafters) != 1:
            return None
        drafter = self.drafters[0]
        if not isinstance(drafter, SuffixDrafter) or sequence.request.params.speculative == "off":
            return None
        balance, allowance = self._means([sequence])
        context = mean_context([sequence])
        return _native.Drafting(
            matcher=drafter.matcher(sequence),
            common=drafter.common_chances,
            common_weight=COMMON_WEIGHT,
            least_worth=LEAST_WORTH,
            step_ms=[self.costs.ms(rows, context) for rows in range(1, min(1 + self.most, self._max_rows) + 1)],
            least_gain=_LEAST_GAIN,
            balance=balance,
            allowance=allowance,
            allowance_share=_RISK_SHARE,
            most_ms=most_ms,
        )

    def take_in(self, sequence: Sequence, steps: SequenceOf[DraftedStep], balance: float) -> None:
        """What an executor that drafted by itself (`ahead`) says of its steps."""
        context = mean_context([sequence])
        for step in steps:
            self.costs.observe(1 + step.drafted, step.ms, context)
            if step.drafted:
                self.counts.add(step.drafted, step.accepted)
                sequence.drafts.add(step.drafted, step.accepted)
                sequence.speculation = "drafting"
            else:
                sequence.speculation = "would_not_pay" if step.found else "no_draft"
                self.declined[sequence.speculation] += 1
        sequence.draft_balance = balance

    def verify(self, sequence: Sequence, drafted: SequenceOf[int], sampled: list[int]) -> list[int]:
        """Of the ids sampled at the rows of a sequence with a draft, those that hold: up to the first that differs from
        its draft. To be called while `sequence.tokens` is as it was when the draft was made."""
        accepted = 0
        for draft, token_id in zip(drafted, sampled, strict=False):
            if draft != token_id:
                break
            accepted += 1
        self.counts.add(len(drafted), accepted)
        sequence.drafts.add(len(drafted), accepted)
        sequence.draft_balance += accepted
        sequence.speculation = "drafting"
        sequence.draft_held_at = len(sequence.tokens) if 2 * accepted >= len(drafted) else 0
        self._drafted_by[sequence].judge(sequence, drafted, accepted)
        return sampled[: accepted + 1]

    def expects(self, sequences: SequenceOf[Sequence]) -> bool:
        """Whether the next tokens may bring a draft, so that each of them should be looked at."""
        if not any(map(_draft_held_lately, sequences)):
            return False
        return not self.judging or sum(self._means(sequences)) > 0

    def end(self, sequence: Sequence) -> None:
        self._drafted_by.pop(sequence, None)
        for drafter in self.drafters:
            drafter.end(sequence)

    def close(self) -> None:
        """Free what the drafters hold; idempotent."""
        for drafter in self.drafters:
            drafter.close()

    def _decline(self, sequences: SequenceOf[Sequence], found: set[int], rows: int, context: float) -> None:
        for i, sequence in enumerate(sequences):
            if sequence.request.params.speculative != "off":
                sequence.speculation = "would_not_pay" if i in found else "no_draft"
                self.declined[sequence.speculation] += 1
        looking = [sequence for sequence in sequences if _draft_held_lately(sequence)]
        if looking and self.judging:  # this step runs alone, for another look behind it
            cost = self.costs.between_ms * len(sequences) / self.costs.ms(rows, context)
            for sequence in looking:
                sequence.draft_balance -= cost / len(looking)

    def _means(self, sequences: SequenceOf[Sequence]) -> tuple[float, float]:
        """(what drafts have brought these sequences, what they may cost beyond that), in tokens.

        Sequences of a step share both, as they share its time.
        """
        drafting = [sequence for sequence in sequences if sequence.request.params.speculative != "off"]
        tokens = sum(len(sequence.output_ids) for sequence in drafting)
        balance = sum(sequence.draft_balance for sequence in drafting)
        return balance, _RISK_AT_ONCE * len(drafting) + _RISK_SHARE * tokens

    def _affords_a_token(self, sequences: int, rows: int, context: float, balance: float, allowance: float) -> bool:
        """Whether the cheapest draft is within the means, so that it makes sense to look for one."""
        plain_ms = self.costs.ms(rows, context)
        added_ms = self.costs.ms(rows + 1, context) - plain_ms + self.costs.between_ms
        return balance >= 0 or sequences * added_ms <= (balance + allowance) * plain_ms

    def _limit(self, sequence: Sequence) -> int:
        """Drafted tokens that the sequence could take at most."""
        params = sequence.request.params
        if params.speculative == "off":
            return 0
        limit = min(self.most, sequence.max_length - len(sequence.tokens) - 1)
        missing = params.min_tokens - len(sequence.output_ids)
        # Bans of end tokens hold for all rows of a step: rows behind the least length are for another step.
        return min(limit, missing - 1) if missing > 0 else limit

    def _choose(
        self,
        odds: list[list[float]],
        drafter: Drafter,
        rows: int,
        context: float,
        balance: float,
        allowance: float,
    ) -> tuple[list[int], float, float]:
        """Numbers of drafted tokens with the most expected tokens for the time; how many times the speed of none; and
        what they cost: tokens that the added time would give without them.

        A token further on is worth the product of the chances up to it. These fall within a sequence, so the best
        choice of any size takes the worthiest tokens of all sequences in order. It may not cost more than `balance`
        and `allowance`, but for one token while nothing is lost yet.
        """
        counts = [0] * len(odds)
        room = self._max_rows - rows  # which the step has without drafts
        if not self.judging:
            for i, chances in enumerate(odds):
                counts[i] = min(len(chances), room)
                room -= counts[i]
            return counts, 1.0, 0.0
        worth: list[tuple[float, int]] = []
        for i, chances in enumerate(odds):
            value = 1.0
            for chance in chances:
                value *= chance
                if value < LEAST_WORTH:
                    break
                worth.append((value, i))
        ms = partial(self.costs.ms, context=context)
        plain_ms = ms(rows)
        plain = len(odds) / plain_ms
        expected = float(len(odds))
        best, best_size, best_cost = plain * _LEAST_GAIN, 0, 0.0
        most = expected + sum(value for value, _ in worth)
        if most <= best * (ms(rows + 1) + self.costs.between_ms):  # which any draft takes at least
            return counts, 1.0, 0.0
        worth.sort(key=lambda item: -item[0])
        drafting = longest = 0
        lengths = [0] * len(odds)
        for size, (value, i) in enumerate(worth[:room], start=1):
            expected += value
            drafting += lengths[i] == 0
            lengths[i] += 1
            longest = max(longest, lengths[i])
            # Steps without drafts follow each other within one call of the executor, mostly.
            step_ms = ms(rows + size) + drafter.cost_ms(drafting, longest) + self.costs.between_ms
            cost = plain * (step_ms - plain_ms)
            if cost > balance + allowance and (size > 1 or balance < 0):
                break
            if expected / step_ms > best:
                best, best_size, best_cost = expected / step_ms, size, cost
        for _, i in worth[:best_size]:
            counts[i] += 1
        return counts, best / plain, best_cost

    def _cut(self, sequence: Sequence, ids: list[int]) -> list[int]:
        """Nothing comes after a token that ends the text."""
        for at, token_id in enumerate(ids):
            if token_id in sequence.stop_ids and at + 1 < len(ids):
                return ids[: at + 1]
        return ids


def mean_context(sequences: SequenceOf[Sequence]) -> float:
    """Tokens that rows of these sequences see on average."""
    return sum(len(sequence.tokens) for sequence in sequences) / len(sequences)


def _draft_held_lately(sequence: Sequence) -> bool:
    return sequence.draft_held_at > 0 and len(sequence.tokens) - sequence.draft_held_at < _QUIET_TOKENS
