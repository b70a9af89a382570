"""The same prompts to all sides, one after the other, round after round."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import resources
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from lpx.bench.compare.texts import Agreement, agreement
from lpx.bench.measurement import Measurement, Subject
from lpx.bench.sides.asking import AskedSide, Question, Reply, open_side
from lpx.bench.sides.spec import Side
from lpx.bench.statistics import Interval, alternating_ratio, summary
from lpx.errors import ConfigError
from lpx.regular_file import read_bounded

# Figures that are compared: name, and what it is of a reply; None where the side does not tell.
FIGURES: dict[str, Callable[[Reply], float | None]] = {
    "decode_tokens_per_second": lambda reply: 1e3 / reply.tpot_ms if reply.tpot_ms else None,
    "ttft_ms": lambda reply: reply.ttft_ms or None,
    "e2el_ms": lambda reply: reply.e2el_ms or None,
}
_PROMPTS = 8
_MOST_BYTES = 64 << 20  # of a file of prompts
_WARM_UP = "你好, hello."


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """What is asked. Raises ConfigError for values that make no sense."""

    rounds: int = 5
    max_tokens: int = 64
    chat: bool = False
    ignore_eos: bool = False
    prompts: tuple[str, ...] = ()  # none: the built-in ones, in Chinese and English
    nonce: str = ""  # none: a new one, so that no cache knows the prompts from an earlier run

    def __post_init__(self) -> None:
        for name, value in (("--rounds", self.rounds), ("--max-tokens", self.max_tokens)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")


@dataclass(frozen=True, slots=True)
class SideResult:
    """One side. Ratios are of this side's figure to the first side's, round by round."""

    name: str
    subject: Subject
    figures: Mapping[str, float]
    ratios: Mapping[str, Interval]  # none for the first side, and for figures that one of both does not tell
    texts: Agreement | None  # with the first side; None for the first
    replies: Sequence[Reply]


@dataclass(frozen=True, slots=True)
class CompareReport:
    settings: CompareSettings
    sides: tuple[SideResult, ...]
    started: datetime  # UTC
    seconds: float

    def measurements(self) -> list[Measurement]:
        """One a side, for the ledger."""
        settings = {**asdict(self.settings), "prompts": list(self.settings.prompts)}
        settings["sides"] = [side.name for side in self.sides]
        return [
            Measurement(
                kind="compare",
                subject=side.subject,
                settings={**settings, "side": side.name},
                figures={**side.figures, **{f"{name}_ratio": ratio.estimate for name, ratio in side.ratios.items()}},
                samples={
                    name: tuple(value for reply in side.replies if (value := of(reply)) is not None)
                    for name, of in FIGURES.items()
                },
                batch_size=1,
                output_len=self.settings.max_tokens,
                started=self.started,
                seconds=self.seconds,
            )
            for side in self.sides
        ]


def read_prompts(path: Path) -> tuple[str, ...]:
    """One prompt a line; lines of JSON objects give their `prompt`. Raises ConfigError."""
    try:
        text = read_bounded(path, _MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"--prompts {path} cannot be read: {reason}") from None
    prompts = []
    for number, line in enumerate(text.split("\n"), 1):  # other marks of lines may stand in a prompt
        line = line.strip()
        if not line:
            continue
        if line.startswith("{"):
            try:
                line = json.loads(line)["prompt"]
            except (ValueError, KeyError, RecursionError):
                raise ConfigError(f"--prompts {path}, line {number}: no JSON object with a prompt") from None
            if not isinstance(line, str) or not line.strip():
                raise ConfigError(f"--prompts {path}, line {number}: the prompt must be text")
        prompts.append(line)
    if not prompts:
        raise ConfigError(f"--prompts {path} holds no prompt; write one a line")
    return tuple(prompts)


def compare_sides(
    sides: Sequence[Side],
    settings: CompareSettings,
    *,
    api_key: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CompareReport:
    """Ask all sides in alternation, in another order each time; `progress` is told answers done and in all.

    Each round puts something of its own before every prompt, the same for all sides. Raises ConfigError for fewer than
    two sides, and what opening and asking them raises.
    """
    if len(sides) < 2:
        raise ConfigError("a comparison has two sides or more: lpx bench compare A B")
    question = Question(settings.max_tokens, settings.chat, settings.ignore_eos)
    prompts = settings.prompts or _built_in()
    nonce = settings.nonce or secrets.token_hex(3)
    started, began = monotonic(), datetime.now(timezone.utc)
    replies: dict[str, list[Reply]] = {side.name: [] for side in sides}
    done, total = 0, len(sides) * len(prompts) * settings.rounds
    with ExitStack() as stack:
        asked: list[AskedSide] = []
        for side in sides:
            asked.append(open_side(side, question, api_key))
            stack.callback(asked[-1].close)
        for each in asked:
            each.ask(_WARM_UP)
        turn = 0
        for number in range(settings.rounds):
            for prompt in prompts:
                order = asked[turn % len(asked) :] + asked[: turn % len(asked)]
                for each in order:
                    replies[each.name].append(each.ask(f"[{nonce}-{number + 1}] {prompt}"))
                    done += 1
                    if progress is not None:
                        progress(done, total)
                turn += 1
        subjects = {each.name: each.subject for each in asked}
    results = _results([side.name for side in sides], subjects, replies, len(prompts))
    return CompareReport(settings, results, began, monotonic() - started)


def _results(
    names: Sequence[str], subjects: Mapping[str, Subject], replies: Mapping[str, Sequence[Reply]], prompts: int
) -> tuple[SideResult, ...]:
    first = replies[names[0]]
    results = []
    for name in names:
        own = replies[name]
        answers = [(at % prompts + 1, a.text, b.text) for at, (a, b) in enumerate(zip(first, own, strict=True))]
        results.append(
            SideResult(
                name=name,
                subject=subjects[name],
                figures=_figures(own),
                ratios={} if name == names[0] else _ratios(own, first),
                texts=None if name == names[0] else agreement(answers),
                replies=own,
            )
        )
    return tuple(results)


def _figures(replies: Sequence[Reply]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, of in FIGURES.items():
        values = [value for reply in replies if (value := of(reply)) is not None]
        if not values:
            continue
        if name.endswith("_ms"):
            figures.update(summary(name, values))
        else:
            figures[name] = median(values)
    return figures


def _ratios(own: Sequence[Reply], first: Sequence[Reply]) -> dict[str, Interval]:
    ratios = {}
    for name, of in FIGURES.items():
        pairs = [(of(a), of(b)) for a, b in zip(own, first, strict=True)]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        if known:
            ratios[name] = alternating_ratio([a for a, _ in known], [b for _, b in known])
    return ratios


def _built_in() -> tuple[str, ...]:
    """Half of them Chinese, half English."""
    text = resources.files("lpx.bench.load").joinpath("data/fixed_prompts.json").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = json.loads(text)
    return tuple(str(entry["text"]) for entry in entries[:_PROMPTS])
