"""What every way of drafting offers."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from lpx.engine.sequence import Sequence


class Drafter(Protocol):
    """Drafts tokens for sequences that decode.

    `odds` comes first and is cheap; `propose` follows for those whose drafts are worth their rows, and `judge` after
    the step for these. Only for tokens of `sequence.tokens`: whatever a drafter keeps beyond them is its own business.
    """

    name: str

    def odds(self, sequence: Sequence, most: int) -> list[float]:
        """Chances of up to `most` drafted tokens, each given that those before it are right. Empty: no draft."""
        ...

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        """Up to so many tokens for each sequence."""
        ...

    def judge(self, sequence: Sequence, drafted: SequenceOf[int], accepted: int) -> None:
        """Learn that the first `accepted` of the drafted tokens were right; the tokens themselves come later."""
        ...

    def measure_costs(self) -> None:
        """Measure what drafting costs, before anything runs."""
        ...

    def cost_ms(self, sequences: int, longest: int) -> float:
        """What drafting `longest` tokens for `sequences` sequences takes."""
        ...

    def end(self, sequence: Sequence) -> None:
        """The sequence has ended: forget it. It may never have been seen."""
        ...

    def close(self) -> None: ...
