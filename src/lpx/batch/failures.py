"""Why lines failed, counted by reason: bounded, whatever a server thinks of, and without its words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from lpx.plain_text import plain_text

_MOST_REASONS = 100  # that are told apart; servers can make codes up
_LONGEST_CODE = 64


@dataclass(slots=True)
class Reason:
    code: str  # as in the results
    status: int | None  # None: nobody answered
    count: int
    line: int  # number in the file of one such line, from 1


@dataclass(slots=True)
class Failures:
    """Owns the counts of one run. The first line of the file that failed for a reason is its example."""

    _reasons: dict[tuple[str, int | None], Reason] = field(default_factory=dict)

    def note(self, code: str, status: int | None, line: int) -> None:
        code = plain_text(code[:_LONGEST_CODE])
        key = (code, status)
        if key not in self._reasons and len(self._reasons) >= _MOST_REASONS:
            key = ("other", None)
        reason = self._reasons.setdefault(key, Reason(*key, 0, line))
        reason.count += 1
        reason.line = min(reason.line, line)

    def largest(self, most: int) -> list[Reason]:
        """The most frequent reasons first, then by line."""
        return sorted(self._reasons.values(), key=lambda reason: (-reason.count, reason.line))[:most]

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(reason) for reason in self.largest(len(self._reasons))]
