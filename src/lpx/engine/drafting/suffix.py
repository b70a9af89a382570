"""Drafts what followed the last time that the text went on like this: in the sequence itself or in recent requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as SequenceOf

from lpx import _native
from lpx.engine.drafting.odds import COMMON_WEIGHT, CommonOdds
from lpx.engine.sequence import Sequence

# Chances by length of the match (see SuffixMatcher in native/src/suffix_matcher.h), until requests have shown them.
_ASSUMED_OWN = (0.15, 0.3, 0.4, 0.5, 0.65, 0.8, 0.9, 0.95)
_ASSUMED_SHARED = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9)
# Recent texts of one owner take 110 bytes a token.
_SHARED_TOKENS = 65_536
_MOST_OWNERS = 4


class SuffixDrafter:
    """Implements `Drafter`. `most_texts` recent requests are searched beside the sequence itself; 0: none.

    Drafts end before a token with a chance below `least_chance`, or below `least_worth` together with all before it.

    Texts of different owners (`Request.owner`) never meet.
    """

    name = "suffix"

    def __init__(self, most_texts: int, *, least_chance: float = 0.0, least_worth: float = 0.0) -> None:
        self._most_texts = most_texts
        self._least = (least_chance, least_worth)
        self._common = CommonOdds((*_ASSUMED_OWN, *_ASSUMED_SHARED))
        self._shared: OrderedDict[str, _native.SharedTexts] = OrderedDict()  # by owner, the latest last
        self._matchers: dict[Sequence, _native.SuffixMatcher] = {}
        self._drafts: dict[Sequence, list[int]] = {}

    def odds(self, sequence: Sequence, most: int) -> list[float]:
        matcher = self.matcher(sequence)
        self._drafts[sequence], odds = matcher.propose(most, self.common_chances, COMMON_WEIGHT, *self._least)
        return odds

    @property
    def common_chances(self) -> list[float]:
        """By the matcher's classes: what all sequences so far have shown."""
        return self._common.by_class

    def matcher(self, sequence: Sequence) -> _native.SuffixMatcher:
        """The sequence's, which knows all its tokens."""
        matcher = self._matchers.get(sequence)
        if matcher is None:
            matcher = self._matchers[sequence] = _native.SuffixMatcher(self._texts_of(sequence))
            matcher.extend(sequence.tokens[: sequence.prompt_length], False)
        known = len(matcher)
        if known < len(sequence.tokens):
            matcher.extend(sequence.tokens[known:], True)
        return matcher

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        return [self._drafts[sequence][:count] for sequence, count in wanted]

    def judge(self, sequence: Sequence, drafted: SequenceOf[int], accepted: int) -> None:
        """Nothing to learn here: every token is judged when it comes, drafted or not."""

    def measure_costs(self) -> None:
        """Nothing to measure: looking up takes microseconds."""

    def cost_ms(self, sequences: int, longest: int) -> float:
        return 0.0

    def end(self, sequence: Sequence) -> None:
        matcher = self._matchers.pop(sequence, None)
        self._drafts.pop(sequence, None)
        if matcher is None:
            return
        self._common.add(matcher.judged, matcher.right)
        texts = self._texts_of(sequence)
        if texts is not None and sequence.output_ids:
            texts.add(sequence.tokens)

    def close(self) -> None:
        self._matchers.clear()
        self._drafts.clear()
        self._shared.clear()

    def _texts_of(self, sequence: Sequence) -> _native.SharedTexts | None:
        if not self._most_texts:
            return None
        owner = sequence.request.owner
        texts = self._shared.get(owner)
        if texts is None:
            texts = _native.SharedTexts(most_tokens=_SHARED_TOKENS, most_texts=self._most_texts)
            self._shared[owner] = texts
            if len(self._shared) > _MOST_OWNERS:
                self._shared.popitem(last=False)
        self._shared.move_to_end(owner)
        return texts
