"""What a load came to: figures over all whole answers, and what failed, apart from them."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import fmean
from typing import Any

from lpx.bench.load.settings import LoadSettings
from lpx.bench.load.timings import Timings
from lpx.bench.measurement import Measurement, Subject
from lpx.bench.statistics import percentile

LATENCIES = ("ttft", "ttft_visible", "tpot", "itl", "e2el")


@dataclass(frozen=True, slots=True)
class Result:
    """One request with a whole answer."""

    number: int  # of the request
    sent_s: float  # since the start of the load
    late_s: float  # sent so much later than it was due, because max_concurrency were under way
    wanted_input: int | None  # tokens that the prompt was made for
    wanted_output: int  # tokens, at most
    timings: Timings
    text: str | None  # None: not kept, because the texts of earlier answers take all the memory for them
    hidden: str | None
    finish_reason: str | None
    streamed: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """One request without a whole answer."""

    number: int
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class RecountedTokens:
    """Tokens by the server's count, and by encoding the same texts again."""

    answers: int
    counted: int
    recounted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """One load on one server."""

    settings: LoadSettings
    subject: Subject
    started: datetime  # UTC
    seconds: float  # from the first request to the last answer
    results: Sequence[Result]
    failures: Sequence[Failure] = ()
    left_out: int = 0  # requests that were under way when the load was stopped
    interrupted: bool = False
    warmups: int = 0  # requests before, which are in no figure
    lengths: str = ""  # how the lengths of prompts were made
    warnings: Sequence[str] = ()
    recounted: RecountedTokens | None = None
    nonce: str = ""
    peak_concurrency: int = 0
    errors: Mapping[str, int] = field(init=False)
    figures: Mapping[str, float] = field(init=False)
    goodput_unknown: Mapping[str, int] = field(init=False)  # answers without a known value, for each limit

    def __post_init__(self) -> None:
        object.__setattr__(self, "errors", dict(Counter(failure.kind for failure in self.failures)))
        object.__setattr__(self, "figures", load_figures(self.settings, self.results, self.seconds))
        unknown = unknown_for_goodput(self.results, self.settings.goodput)
        object.__setattr__(self, "goodput_unknown", unknown)

    @property
    def sent(self) -> int:
        """Requests, whatever came of them; without the warm-up."""
        return len(self.results) + len(self.failures) + self.left_out

    def samples(self, latency: str) -> list[float]:
        """All values of one of `LATENCIES`, in milliseconds."""
        return latency_samples(self.results, latency)

    def measurement(self) -> Measurement:
        """For the ledger, `compare` and `gate`."""
        inputs = [result.timings.prompt_tokens for result in self.results]
        outputs = [result.timings.output_tokens for result in self.results]
        return Measurement(
            kind="serve",
            subject=self.subject,
            settings=self.settings.as_json(),
            figures=self.figures,
            samples={
                f"{name}_ms": tuple(values)
                for name in LATENCIES
                if name != "itl" and (values := self.samples(name))  # gaps are too many to keep
            },
            errors=self.errors,
            batch_size=self.settings.max_concurrency or self.peak_concurrency or None,
            input_len=_mean_length(inputs),
            output_len=_mean_length(outputs),
            started=self.started,
            seconds=self.seconds,
        )

    def as_json(self, detailed: bool = False) -> dict[str, Any]:
        """Everything as JSON values; every request with its text when `detailed`."""
        from dataclasses import asdict

        values: dict[str, Any] = {
            "started": self.started.isoformat(),
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "subject": asdict(self.subject),
            "settings": self.settings.as_json(),
            "nonce": self.nonce,
            "figures": dict(self.figures),
            "goodput_unknown": dict(self.goodput_unknown),
            "errors": dict(self.errors),
            "error_details": _examples(self.failures),
            "left_out": self.left_out,
            "warmups": self.warmups,
            "peak_concurrency": self.peak_concurrency,
            "lengths": self.lengths,
            "warnings": list(self.warnings),
            "recounted_tokens": None if self.recounted is None else asdict(self.recounted),
        }
        if detailed:
            values["requests"] = [_result_json(result) for result in self.results]
            values["failures"] = [asdict(failure) for failure in self.failures]
        return values


def load_figures(settings: LoadSettings, results: Sequence[Result], seconds: float) -> dict[str, float]:
    """Flat figures over whole answers. A figure whose tokens nobody counted is left out, not guessed."""
    figures: dict[str, float] = {"completed": float(len(results))}
    if not results or seconds <= 0:
        return figures
    figures["requests_per_second"] = len(results) / seconds
    outputs = [result.timings.output_tokens for result in results]
    inputs = [result.timings.prompt_tokens for result in results]
    output_tokens = _total(outputs)
    input_tokens = _total(inputs)
    if input_tokens is not None:
        figures["input_tokens"] = float(input_tokens)
    if output_tokens is not None:
        figures["output_tokens"] = float(output_tokens)
        figures["output_tokens_per_second"] = output_tokens / seconds
        if input_tokens is not None:
            figures["total_tokens_per_second"] = (input_tokens + output_tokens) / seconds
    cached = [result.timings.cached_tokens for result in results if result.timings.cached_tokens is not None]
    if cached and input_tokens:
        figures["cached_tokens"] = float(sum(cached))
    if settings.goodput:
        good = sum(meets(result.timings, settings.goodput) for result in results)
        figures["goodput_requests_per_second"] = good / seconds
    for name in LATENCIES:
        if values := sorted(latency_samples(results, name)):
            stem = f"{name}_ms"
            figures[f"{stem}_mean"] = fmean(values)
            figures[f"{stem}_median"] = percentile(values, 50)
            for percent in settings.percentiles:
                figures[f"{stem}_p{percent:g}"] = percentile(values, percent)
    return figures


def latency_samples(results: Iterable[Result], latency: str) -> list[float]:
    if latency == "itl":
        gaps = array("d")
        for result in results:
            gaps.extend(result.timings.itl_ms)
        return gaps.tolist()
    name = f"{latency}_ms"
    return [value for result in results if (value := getattr(result.timings, name)) is not None]


def meets(timings: Timings, goodput: Mapping[str, float]) -> bool:
    """Whether one answer keeps all limits. One token has no TPOT and no gaps, and keeps theirs; unknown ones do not."""
    for name, limit in goodput.items():
        value = _judged(timings, name)
        if value is None or value > limit:
            return False
    return True


def unknown_for_goodput(results: Iterable[Result], goodput: Mapping[str, float]) -> dict[str, int]:
    """How many answers have no known value for each limit, and so do not keep it; limits without any are left out."""
    found = Counter(name for result in results for name in goodput if _judged(result.timings, name) is None)
    return {name: found[name] for name in goodput if found[name]}


def _judged(timings: Timings, name: str) -> float | None:
    """What a limit of goodput is compared with; None: nobody knows."""
    without = 0.0 if timings.output_tokens is not None and timings.output_tokens <= 1 else None
    if name == "itl":
        return math.fsum(timings.itl_ms) / len(timings.itl_ms) if timings.itl_ms else without
    if name == "tpot":
        return without if timings.tpot_ms is None else timings.tpot_ms
    return timings.ttft_ms if name == "ttft" else timings.e2el_ms


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _mean_length(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return round(sum(known) / len(known)) if known else None


def _examples(failures: Sequence[Failure]) -> dict[str, str]:
    """The words of the first failure of each kind."""
    found: dict[str, str] = {}
    for failure in failures:
        found.setdefault(failure.kind, failure.detail)
    return found


def _result_json(result: Result) -> dict[str, Any]:
    timings = result.timings
    return {
        "number": result.number,
        "sent_s": result.sent_s,
        "late_s": result.late_s,
        "ttft_ms": timings.ttft_ms,
        "ttft_visible_ms": timings.ttft_visible_ms,
        "tpot_ms": timings.tpot_ms,
        "e2el_ms": timings.e2el_ms,
        "itl_ms": timings.itl_ms.tolist(),
        "prompt_tokens": timings.prompt_tokens,
        "cached_tokens": timings.cached_tokens,
        "output_tokens": timings.output_tokens,
        "first_tokens": timings.first_tokens,
        "recounted": timings.recounted,
        "finish_reason": result.finish_reason,
        "text": result.text,
        "hidden": result.hidden,
    }
