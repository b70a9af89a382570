"""What a tuning is for: a target, and limits that must hold."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from lpx.errors import ConfigError

TARGETS = ("latency", "throughput")
_LIMIT = re.compile(r"(ttft|itl):(\d{1,9}(?:\.\d{1,6})?)(?:ms)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in milliseconds that 95 of 100 requests keep; None: no limit."""

    ttft_ms: float | None = None  # to the first token
    itl_ms: float | None = None  # between tokens, the mean of a request

    @classmethod
    def parse(cls, text: str | None) -> Slo:
        """Of `ttft:200,itl:10`. Raises ConfigError."""
        values: dict[str, float] = {}
        for part in (text or "").split(",") if text else []:
            match = _LIMIT.fullmatch(part.strip())
            if match is None or float(match[2]) <= 0 or f"{match[1]}_ms" in values:
                raise ConfigError(
                    f"--slo {text!r}: write limits in milliseconds, ttft and itl once each, such as ttft:200,itl:10"
                )
            values[f"{match[1]}_ms"] = float(match[2])
        return cls(**values)

    def __bool__(self) -> bool:
        return self.ttft_ms is not None or self.itl_ms is not None

    def excess(self, ttft_ms: float, itl_ms: float) -> float:
        """How many times the limit the worse of the two is: up to 1 is kept; 0 without limits."""
        return max(
            0.0 if self.ttft_ms is None else ttft_ms / self.ttft_ms,
            0.0 if self.itl_ms is None else itl_ms / self.itl_ms,
        )

    def describe(self) -> str:
        named = (("ttft", self.ttft_ms), ("itl", self.itl_ms))
        return ",".join(f"{name}:{limit:g}" for name, limit in named if limit is not None)


@dataclass(frozen=True, slots=True)
class Goal:
    """`latency`: one request at a time, its first token and the tokens after it. `throughput`: many at once."""

    target: str
    slo: Slo = Slo()
    concurrency: int = 1  # requests at once
    allow_lossy: bool = False  # whether options that cost quality may be tried

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ConfigError(f"--target {self.target!r} is not known; use {' or '.join(TARGETS)}")
        if not 1 <= self.concurrency <= 1024:
            raise ConfigError(f"--concurrency must be from 1 to 1024, not {self.concurrency}")
        if self.target == "latency" and self.concurrency != 1:
            raise ConfigError("--target latency is about one request at a time; --concurrency is for throughput")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Goal:
        return cls(**{**values, "slo": Slo(**values["slo"])})
