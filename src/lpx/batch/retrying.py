"""When a request is sent again, and after how long."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


def is_worth_a_retry(status: int) -> bool:
    """Of an HTTP status: too many requests, or a fault of the server. Other refusals stay what they are."""
    return status == 429 or 500 <= status < 600


@dataclass(slots=True)
class Backoff:
    """Pauses between the attempts of one request: doubling, with jitter so that many do not come back together.

    After "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015), half of each pause being fixed.
    """

    first_s: float = _FIRST_PAUSE_S
    longest_s: float = _LONGEST_PAUSE_S
    chance: random.Random = field(default_factory=random.Random)

    def pause_s(self, retry: int) -> float:
        """Before the retry of this number, from 1."""
        longest: float = min(self.longest_s, self.first_s * 2 ** min(retry - 1, 30))
        return longest / 2 + self.chance.random() * longest / 2
