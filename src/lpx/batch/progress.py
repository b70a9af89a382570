"""How far a run is: numbers for a bar, a log file and a summary."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from lpx.batch.failures import Failures


@dataclass(slots=True)
class Progress:
    """Counts of lines and tokens; `done_before` are results of earlier runs."""

    total: int = 0  # lines that are not blank
    blank: int = 0
    done_before: int = 0
    failed_before: int = 0  # of these
    succeeded: int = 0  # in this run
    failed: int = 0  # in this run
    failures: Failures = field(default_factory=Failures)  # of these
    in_flight: int = 0
    retries: int = 0  # attempts beyond the first
    prompt_tokens: int = 0
    completion_tokens: int = 0
    started: float = field(default_factory=monotonic)

    @property
    def done(self) -> int:
        """In this run."""
        return self.succeeded + self.failed

    @property
    def remaining(self) -> int:
        return self.total - self.done_before - self.done

    @property
    def elapsed_s(self) -> float:
        return monotonic() - self.started

    @property
    def lines_per_second(self) -> float:
        return self.done / self.elapsed_s if self.done else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Of answers."""
        return self.completion_tokens / self.elapsed_s if self.completion_tokens else 0.0

    @property
    def eta_s(self) -> float | None:
        """Seconds until the end at this pace; None before the first line."""
        return self.remaining / self.lines_per_second if self.done else None

    def note_usage(self, body: Any) -> None:
        usage = body.get("usage") if isinstance(body, dict) else None
        if isinstance(usage, dict):
            prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
            self.prompt_tokens += _count(prompt)
            self.completion_tokens += _count(completion)

    def line(self) -> str:
        """One line for people."""
        eta = self.eta_s
        return (
            f"{self.done_before + self.done} of {self.total} lines, {self.failed_before + self.failed} failed, "
            f"{self.in_flight} in flight, {self.lines_per_second:.1f} lines/s, {self.tokens_per_second:.0f} tokens/s, "
            f"{clock(self.elapsed_s)} elapsed, {'?' if eta is None else clock(eta)} to go"
        )

    def as_json(self) -> dict[str, Any]:
        """The summary: this run's figures, and what the output holds in all."""
        return {
            "total": self.total,
            "succeeded": self.succeeded,
            "failed": self.failed,
            "done_before": self.done_before,
            "failed_before": self.failed_before,
            "failures": self.failures.as_json(),
            "remaining": self.remaining,
            "skipped_blank": self.blank,
            "retries": self.retries,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "elapsed_s": round(self.elapsed_s, 3),
            "lines_per_second": round(self.lines_per_second, 3),
            "tokens_per_second": round(self.tokens_per_second, 2),
        }


def clock(seconds: float) -> str:
    """`3:07`, `1:02:03`."""
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _count(tokens: Any) -> int:
    """What a server says, where it can be true of one request."""
    return tokens if type(tokens) is int and 0 <= tokens < 2**31 else 0
