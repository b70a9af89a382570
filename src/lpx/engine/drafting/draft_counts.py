"""What became of drafted tokens."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class DraftCounts:
    """What became of drafts; of one sequence or of all."""

    steps: int = 0  # steps of a sequence in which drafts of it were verified
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    drafted_by_position: list[int] = field(default_factory=list)

    def add(self, drafted: int, accepted: int) -> None:
        self.steps += 1
        self.drafted += drafted
        self.accepted += accepted
        while len(self.drafted_by_position) < drafted:
            self.drafted_by_position.append(0)
            self.accepted_by_position.append(0)
        for i in range(drafted):
            self.drafted_by_position[i] += 1
        for i in range(accepted):
            self.accepted_by_position[i] += 1

    @property
    def mean_accepted_length(self) -> float:
        """Tokens that a verified draft gave on average, the one that sampling gives anyway included; 0: no draft."""
        return 1 + self.accepted / self.steps if self.steps else 0.0
