"""How often drafted tokens were right, by class of evidence, with older judgements fading."""

from __future__ import annotations

from collections.abc import Sequence

COMMON_WEIGHT = 5.0  # judgements that what other sequences showed counts for
# The chance of a drafted token and all before it below which no more are looked at.
LEAST_WORTH = 0.03
_FADE = 15 / 16
_MOST_COMMON = 200.0  # judgements of a class that the engine remembers


class Judgements:
    """Of one sequence: `judged[c]` drafts of class `c`, of which `right[c]` were right."""

    __slots__ = ("judged", "right")

    def __init__(self, classes: int) -> None:
        self.judged = [0.0] * classes
        self.right = [0.0] * classes

    def add(self, evidence: int, right: bool) -> None:
        self.judged[evidence] = self.judged[evidence] * _FADE + 1.0
        self.right[evidence] = self.right[evidence] * _FADE + right

    def add_draft(self, drafted: int, accepted: int) -> None:
        """Judge a draft whose tokens are classed by their place: up to the first wrong one, for those behind it stood
        on something else than they were drafted for."""
        for place in range(min(accepted + 1, drafted)):
            self.add(place, place < accepted)


class CommonOdds:
    """What all sequences so far have shown: where a new sequence starts from."""

    def __init__(self, assumed: Sequence[float], weight: float = 8.0) -> None:
        self._judged = [weight] * len(assumed)
        self._right = [weight * odds for odds in assumed]
        self.by_class = list(assumed)

    def __len__(self) -> int:
        return len(self._judged)

    def add(self, judged: Sequence[float], right: Sequence[float]) -> None:
        """Take in the judgements of a sequence that has ended."""
        for i, count in enumerate(judged):
            total = self._judged[i] + count
            shrink = min(1.0, _MOST_COMMON / total)
            self._judged[i] = total * shrink
            self._right[i] = (self._right[i] + right[i]) * shrink
            self.by_class[i] = self._right[i] / self._judged[i]

    def chance(self, evidence: int, judged: Sequence[float], right: Sequence[float]) -> float:
        """That a draft of class `evidence` is right in a sequence with these judgements."""
        known = right[evidence] + COMMON_WEIGHT * self.by_class[evidence]
        return known / (judged[evidence] + COMMON_WEIGHT)
