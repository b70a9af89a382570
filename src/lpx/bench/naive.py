"""Plain `transformers` `generate()`, the baseline that people come from, and LPX on the same work in alternation."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from lpx.bench.measurement import Measurement, Subject
from lpx.bench.room import check_room
from lpx.bench.sides.worker import EngineWorker, SideError, Worker
from lpx.bench.statistics import Interval, alternating_ratio
from lpx.errors import ConfigError, MissingExtraError

DTYPES = ("float32", "bfloat16", "float16")
PREFILL, DECODE = "prefill_tokens_per_second", "decode_tokens_per_second"
_WARM_UP = (8, 4)  # tokens in and out


@dataclass(frozen=True, slots=True, kw_only=True)
class NaiveSettings:
    """The work, as of `lpx bench latency`. `engine` are the settings of LPX's engine, its model a path."""

    engine: Mapping[str, Any]
    input_len: int = 128
    output_len: int = 64
    batch_size: int = 1
    repeats: int = 5
    dtype: str = "float32"
    python: str | None = None  # an interpreter that has torch and transformers

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"--dtype {self.dtype!r} is not known; take one of {', '.join(DTYPES)}")
        for name, value, least in (
            ("--input-len", self.input_len, 1),
            ("--output-len", self.output_len, 2),
            ("--batch-size", self.batch_size, 1),
            ("--repeats", self.repeats, 1),
        ):
            if value < least:
                raise ConfigError(f"{name} must be at least {least}, not {value}")


@dataclass(frozen=True, slots=True)
class NaiveReport:
    """Tokens a second of both, by PREFILL and DECODE, one a repeat; ratios are of LPX to the other."""

    settings: NaiveSettings
    naive: Mapping[str, tuple[float, ...]]
    lpx: Mapping[str, tuple[float, ...]]
    ratios: Mapping[str, Interval]
    naive_subject: Subject
    lpx_subject: Subject
    started: datetime  # UTC
    seconds: float

    def measurement(self) -> Measurement:
        """Of the naive side, with the ratios."""
        settings = self.settings
        return Measurement(
            kind="naive",
            subject=self.naive_subject,
            settings={
                "engine": dict(settings.engine),
                **{
                    name: getattr(settings, name)
                    for name in ("input_len", "output_len", "batch_size", "repeats", "dtype", "python")
                },
            },
            figures={
                **{name: median(values) for name, values in self.naive.items()},
                **{f"lpx_{name}": median(values) for name, values in self.lpx.items()},
                **{f"lpx_{name}_ratio": ratio.estimate for name, ratio in self.ratios.items()},
            },
            samples={**self.naive, **{f"lpx_{name}": values for name, values in self.lpx.items()}},
            batch_size=settings.batch_size,
            input_len=settings.input_len,
            output_len=settings.output_len,
            started=self.started,
            seconds=self.seconds,
        )


def measure_naive(settings: NaiveSettings, progress: Callable[[str], None] | None = None) -> NaiveReport:
    """Both in alternation, with the same prompts and as many threads.

    Raises MissingExtraError without torch and transformers, SideError when transformers cannot load the model, and what
    loading the engine raises.
    """
    tell = progress or (lambda what: None)
    started, began = monotonic(), datetime.now(timezone.utc)
    tell("loading LPX")
    engine_settings = {**settings.engine, "measure_steps": False, "speculative_config": {"method": "off"}}
    with EngineWorker("LPX", engine_settings) as engine:
        check_room(engine.info, settings.input_len, settings.output_len, settings.batch_size)
        tell("loading transformers")
        with _open_naive(settings.python) as other:
            threads = engine.info["threads"]
            model = str(settings.engine["model"])
            loaded = _ask(other, "load", model=model, threads=threads, dtype=settings.dtype)
            vocabulary = min(engine.info["vocab_size"], loaded["vocab_size"])
            naive, lpx = _alternate(settings, engine, other, vocabulary, tell)
    return NaiveReport(
        settings=settings,
        naive=naive,
        lpx=lpx,
        ratios={name: alternating_ratio(lpx[name], naive[name]) for name in (PREFILL, DECODE)},
        naive_subject=Subject(
            model=engine.info["model"],
            engine="transformers",
            engine_version=loaded["version"],
            quantization=settings.dtype,
            device="cpu",
            isa=loaded["isa"],
            threads=threads,
        ),
        lpx_subject=engine.subject,
        started=began,
        seconds=monotonic() - started,
    )


def _open_naive(python: str | None) -> Worker:
    if python is None:
        return Worker("transformers", [sys.executable, "-m", "lpx.bench.naive_worker"], own_python=True)
    # As text: the folder of a script comes first on its path, and this one has a module called statistics.
    script = Path(__file__).with_name("naive_worker.py").read_text(encoding="utf-8")
    return Worker("transformers", [python, "-c", script], own_python=False)


def _ask(worker: Worker, op: str, **arguments: Any) -> dict[str, Any]:
    try:
        return worker.ask(op, **arguments)
    except SideError as error:
        if "No module named" in str(error):
            raise MissingExtraError(
                f"{error}. The baseline needs torch and transformers: pip install 'lpx[naive]', or name an interpreter "
                "that has them with --python"
            ) from None
        raise


def _alternate(
    settings: NaiveSettings, engine: EngineWorker, other: Worker, vocabulary: int, tell: Callable[[str], None]
) -> tuple[dict[str, tuple[float, ...]], dict[str, tuple[float, ...]]]:
    draw = random.Random(0)

    def prompts(length: int) -> list[list[int]]:
        return [[draw.randrange(vocabulary) for _ in range(length)] for _ in range(settings.batch_size)]

    def ask_lpx(given: list[list[int]], tokens: int) -> tuple[float, float]:
        prefill = engine.ask("prefill", prompts=given)["seconds"]
        done = engine.ask("decode", steps=tokens - 1)
        engine.ask("release")
        return _speeds(settings.batch_size, len(given[0]), prefill, done["steps"], done["seconds"])

    def ask_naive(given: list[list[int]], tokens: int) -> tuple[float, float]:
        done = _ask(other, "generate", prompts=given, tokens=tokens)
        return _speeds(
            settings.batch_size, len(given[0]), done["prefill_seconds"], done["steps"], done["decode_seconds"]
        )

    tell("warming up")
    for ask in (ask_naive, ask_lpx):
        ask(prompts(_WARM_UP[0]), _WARM_UP[1])
    found: dict[Any, list[tuple[float, float]]] = {ask_naive: [], ask_lpx: []}
    for number in range(settings.repeats):
        tell(f"repeat {number + 1} of {settings.repeats}")
        given = prompts(settings.input_len)
        for ask in (ask_naive, ask_lpx) if number % 2 == 0 else (ask_lpx, ask_naive):
            found[ask].append(ask(given, settings.output_len))
    naive, lpx = (
        dict(zip((PREFILL, DECODE), zip(*found[ask], strict=True), strict=True)) for ask in (ask_naive, ask_lpx)
    )
    return naive, lpx


def _speeds(batch: int, length: int, prefill: float, steps: int, decode: float) -> tuple[float, float]:
    return batch * length / prefill, batch * steps / decode
