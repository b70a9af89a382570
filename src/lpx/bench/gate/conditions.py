"""What must not get worse, and by how much: `decode:-5%`, `p99_ttft:+10%`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lpx.errors import ConfigError

_SPEEDS = {
    "decode": "decode_tokens_per_second",
    "prefill": "prefill_tokens_per_second",
    "throughput": "output_tokens_per_second",
    "requests": "requests_per_second",
}
_TIMES = ("ttft", "tpot", "itl", "e2el")
_EXAMPLE = "--fail-on decode:-5%"


@dataclass(frozen=True, slots=True)
class Condition:
    """`worse_by` is the share by which the figure may get worse: 0.05 for `decode:-5%`."""

    name: str  # as the user spelled it
    figure: str
    worse_by: float

    def __post_init__(self) -> None:
        if not 0 < self.worse_by < (1 if is_speed(self.figure) else 100):
            raise ConfigError(
                f"{self.name} may get worse by more than 0 % and by less than 100 %, not by {100 * self.worse_by:g} %"
            )

    @property
    def least_ratio(self) -> float:
        """How much of the earlier performance must be left; of times, performance is their inverse."""
        return 1 - self.worse_by if is_speed(self.figure) else 1 / (1 + self.worse_by)

    @property
    def allowed(self) -> str:
        return f"{'-' if is_speed(self.figure) else '+'}{100 * self.worse_by:g} %"


def is_speed(figure: str) -> bool:
    """Whether more of it is better; else it is a time."""
    return "_per_second" in figure


def parse_condition(text: str) -> Condition:
    """Raises ConfigError for what is no condition, and for a sign that asks for the better."""
    match = re.fullmatch(r"\s*([a-z0-9_]+)\s*[:=]\s*([+-]?)\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if match is None:
        raise ConfigError(f"--fail-on {text!r} is no condition; write a figure and how much worse, such as {_EXAMPLE}")
    name, sign, percent = match[1], match[2], float(match[3])
    figure = figure_of(name)
    worse = "-" if is_speed(figure) else "+"
    condition = Condition(name, figure, percent / 100)  # its bounds first: another sign would not mend them
    if sign and sign != worse:
        kind = "a speed: it gets worse by falling" if is_speed(figure) else "a time: it gets worse by rising"
        raise ConfigError(f"--fail-on {text!r}: {name} is {kind}, so write {name}:{worse}{match[3]}%")
    return condition


def parse_conditions(texts: Iterable[str]) -> tuple[Condition, ...]:
    """Raises ConfigError as `parse_condition`, and for a figure that has two limits."""
    conditions = tuple(parse_condition(text) for text in texts)
    figures = [condition.figure for condition in conditions]
    for condition in conditions:
        if figures.count(condition.figure) > 1:
            raise ConfigError(f"--fail-on has more than one limit for {condition.figure}; leave one")
    return conditions


def figure_of(name: str) -> str:
    """The figure that a name or its short form means; see `lpx.bench.measurement`. Raises ConfigError."""
    if name in _SPEEDS:
        return _SPEEDS[name]
    if match := re.fullmatch(r"(?:(mean|median|p\d+)_)?(ttft|tpot|itl|e2el)", name):
        which = "median" if match[1] in (None, "p50") else match[1]
        return f"{match[2]}_ms_{which}"
    if is_speed(name) or re.fullmatch(rf"(?:{'|'.join(_TIMES)})_ms_(?:mean|median|p\d+)", name):
        return name
    raise ConfigError(
        f"the figure {name!r} is not known; there are {', '.join(_SPEEDS)}, {', '.join(_TIMES)}, and mean_, p90_, p95_ "
        "or p99_ before one of the times, such as p99_ttft"
    )


def short_name(figure: str) -> str:
    """The short form of a figure, for tables."""
    for name, full in _SPEEDS.items():
        if full == figure:
            return name
    if match := re.fullmatch(r"([a-z0-9]+)_ms_(\w+)", figure):
        return match[1] if match[2] == "median" else f"{match[2]}_{match[1]}"
    return figure
