"""The one or two figures that say most about a measurement, in units that people read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from lpx.bench.measurement import Measurement

BAD_FIT = "bad_fit"  # a figure of `lpx bench decode` where its others are not to be trusted

# Name of the figure, what it is divided by, unit, digits; the first that a measurement has is its headline.
_HEADLINES = (
    ("decode_tokens_per_second", 1, "tokens/s", 1),
    ("output_tokens_per_second", 1, "tokens/s", 1),
    ("total_tokens_per_second", 1, "tokens/s", 1),
    ("requests_per_second", 1, "requests/s", 2),
    ("read_bytes_per_second", 1e9, "GB/s", 1),
    ("perplexity", 1, "perplexity", 3),
    ("float_weights_perplexity", 1, "perplexity", 3),
    ("kl_nats_mean", 1, "nats KL", 4),
    ("review_fraction", 0.01, "% of review", 1),
    ("different_answers", 1, "answers differ", 0),
    ("faulty_tensors", 1, "faulty tensors", 0),
)
_FIRST_TOKEN = ("ttft_ms_median", "ttft_ms_mean", "ttft_ms")


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure as it is written: `73.6`, `tokens/s`."""

    number: str
    unit: str

    def __str__(self) -> str:
        return f"{self.number} {self.unit}".rstrip()


def headline(measurement: Measurement) -> Shown | None:
    """The figure that a run is about, with its unit; None without figures.

    A speed where there is one that can be trusted, of a gate in alternation how many times the other side it is.
    """
    figures = measurement.figures
    if BAD_FIT in figures:
        return Shown("bad fit", "")
    for name, divisor, unit, digits in _HEADLINES:
        if name in figures:
            return Shown(_number(figures[name] / divisor, digits), unit)
    for name, value in figures.items():
        if name.endswith("_ratio"):
            return Shown(f"×{value:.3f}", name.removesuffix("_ratio"))
    for name, value in figures.items():
        divisor, unit = figure_unit(name)
        return Shown(_significant(value / divisor), unit or name)
    return None


def first_token_ms(figures: Mapping[str, float]) -> str | None:
    """Milliseconds to the first token, the median where there is one."""
    for name in _FIRST_TOKEN:
        if name in figures:
            return _number(figures[name], 1)
    return None


def shape(measurement: Measurement) -> str:
    """`16×512→128`: sequences, tokens in, tokens out; what is not known is left out."""
    lengths = "→".join(
        "?" if length is None else f"{length:g}" for length in (measurement.input_len, measurement.output_len)
    )
    batch = "" if measurement.batch_size is None else str(measurement.batch_size)
    return "×".join(part for part in (batch, lengths if lengths != "?→?" else "") if part)


def figure_text(name: str, *values: float) -> str:
    """Values of a figure with the unit that its name says, in a size that people read: `28.3 GB/s`, `1.2 / 3.4 ms`."""
    divisor, unit = figure_unit(name)
    numbers = " / ".join("-" if math.isnan(value) else _significant(value / divisor) for value in values)
    return f"{numbers} {unit}".rstrip()


def figure_unit(name: str) -> tuple[float, str]:
    """What the figure is divided by, and the unit it then has; `_p99` and the like change neither."""
    name = re.sub(r"_(mean|median|std|min|max|low|high|p\d+(\.\d+)?)$", "", name)
    for tail, divisor, unit in (
        ("bytes_per_second", 1e9, "GB/s"),
        ("multiply_adds_per_second", 1e9, "G multiply-adds/s"),
        ("multiply_adds_per_token", 1e6, "M"),
        ("bytes_per_token", 1e6, "MB"),
        ("_bytes", 2**20, "MiB"),
        ("fraction", 0.01, "%"),
        ("tokens_per_second", 1, "tokens/s"),
        ("requests_per_second", 1, "requests/s"),
        ("_ms", 1, "ms"),
        ("_seconds", 1, "s"),
    ):
        if name.endswith(tail):
            return divisor, unit
    return 1, ""


def _significant(value: float) -> str:
    """Four digits that count, and never in powers of ten up to a million."""
    return f"{value:.4g}" if abs(value) < 1e4 or abs(value) >= 1e9 else f"{value:,.0f}"


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
