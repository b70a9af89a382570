"""How long the engine takes for one batch of requests, prefill and decode apart, and how near that is to the limit.

The limit of decoding is the read bandwidth of the machine over the bytes that a token moves: the weights, shared by the
streams of a step, and the keys and values of its own context.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

from lpx.bench.measurement import Measurement
from lpx.bench.roofline import MemoryReader, ReadBandwidth
from lpx.bench.room import check_room
from lpx.bench.series import Series
from lpx.bench.streams import Pass, Streams
from lpx.bench.weather import OthersWatch
from lpx.errors import ConfigError

if TYPE_CHECKING:
    from lpx.engine.engine import Engine
    from lpx.engine.outputs import EngineInfo
    from lpx.options import EngineOptions
    from lpx.runtime.cpu.executor import CpuExecutor

_WARM_UP_STEPS = 4
_PROFILE_PASSES = 3

# Parts of a decode step: name, and the phases of the executor that it holds. "python" is what they leave of the step.
_PARTS = {
    "qkv": ("qkv",),
    "output": ("output",),
    "gate_up": ("gate_up",),
    "down": ("down",),
    "attention": ("attention",),
    "norm": ("norm",),  # and quantization of activations
    "head": ("head",),
    "sampling": ("sample",),
    "wait": ("wait",),  # at barriers, for the other threads
    "begin": ("begin",),  # embedding and rotary tables
}
MATRIX_PARTS = ("qkv", "output", "gate_up", "down")
PARTS = (*_PARTS, "python")


@dataclass(frozen=True, slots=True)
class StepPart:
    """What one decode step spends on one thing, on the first thread."""

    ms: float
    share: float  # of the step


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """One decode step, from a pass of its own: reading the clock in every phase costs a little."""

    step_ms: float  # wall time; the parts add up to it
    steps: int  # that it is the mean of
    parts: dict[str, StepPart]  # by PARTS; "python" is scheduling, sampling results and text


@dataclass(frozen=True, slots=True)
class DecodeLimit:
    """What reading memory alone would allow, for the mean context of the measured steps.

    The memory of a shared machine may be twice as fast in one second as in the next. So there are two limits: what
    reading gave in the best moment, and what it gave in turns with decoding, before and after each repeat.
    """

    mean_context: float  # tokens that a row attends to
    weight_bytes_per_token: float  # of a step, shared by its streams
    kv_bytes_per_token: float
    bytes_per_token: float
    best_read: ReadBandwidth
    tokens_per_second: float  # at the best
    fraction: float  # of it that the median decode speed reaches
    turns_read_bytes_per_second: Series  # a value a repeat, with the best pattern
    turns_tokens_per_second: float  # at the median of those
    turns_fraction: float  # the median over the repeats, each against its own turn


@dataclass(frozen=True, slots=True)
class Latency:
    """One batch of requests, `repeats` times."""

    in_use: EngineInfo  # with speculation off, as it was for these requests
    input_len: int
    output_len: int
    batch_size: int
    repeats: int
    others_share: float  # of the processors, that other programs used meanwhile; 0.1 and more make figures doubtful
    prefill_tokens_per_second: Series  # of all streams together
    decode_tokens_per_second: Series  # of all streams together
    time_to_first_token_ms: Series  # from the requests to the first token of the last stream
    decode_step_ms: Series
    limit: DecodeLimit
    step: StepBreakdown

    def measurement(self, options: EngineOptions, started: datetime, seconds: float) -> Measurement:
        """For the ledger; `options` are those that the engine was loaded with."""
        from lpx.bench.engine_settings import settings_of
        from lpx.bench.engine_subject import engine_subject, model_path, multiply_adds_per_token

        path, limit, step = model_path(options), self.limit, self.step
        engine = {**settings_of(options), "model": str(path)}
        engine.pop("models_dir", None)
        series = {
            "prefill_tokens_per_second": self.prefill_tokens_per_second,
            "decode_tokens_per_second": self.decode_tokens_per_second,
            "ttft_ms": self.time_to_first_token_ms,
            "decode_step_ms": self.decode_step_ms,
            "turns_read_bytes_per_second": limit.turns_read_bytes_per_second,
        }
        return Measurement(
            kind="latency",
            subject=engine_subject(self.in_use),
            settings={
                "engine": engine,
                "input_len": self.input_len,
                "output_len": self.output_len,
                "batch_size": self.batch_size,
                "repeats": self.repeats,
            },
            figures={
                "prefill_tokens_per_second": self.prefill_tokens_per_second.median,
                "decode_tokens_per_second": self.decode_tokens_per_second.median,
                "ttft_ms_median": self.time_to_first_token_ms.median,
                "decode_step_ms_median": self.decode_step_ms.median,
                "mean_context_tokens": limit.mean_context,
                "weight_bytes_per_token": limit.weight_bytes_per_token,
                "kv_bytes_per_token": limit.kv_bytes_per_token,
                "multiply_adds_per_token": float(multiply_adds_per_token(path)),
                "read_bytes_per_second": limit.best_read.bytes_per_second,
                "limit_tokens_per_second": limit.tokens_per_second,
                "limit_fraction": limit.fraction,
                "turns_read_bytes_per_second": limit.turns_read_bytes_per_second.median,
                "turns_limit_tokens_per_second": limit.turns_tokens_per_second,
                "turns_limit_fraction": limit.turns_fraction,
                **{f"step_{name}_ms": part.ms for name, part in step.parts.items()},
            },
            samples={name: one.values for name, one in series.items()},
            batch_size=self.batch_size,
            input_len=self.input_len,
            output_len=self.output_len,
            started=started,
            seconds=seconds,
        )


def measure_latency_again(settings: Mapping[str, Any]) -> Measurement:
    """Load an engine and measure what the `settings` of a measurement of this kind say.

    Raises ConfigError for settings that are not those, and what loading and measuring raise.
    """
    from lpx.bench.engine_settings import options_from
    from lpx.engine.engine import Engine

    own = {name: value for name, value in settings.items() if name != "engine"}
    if not isinstance(settings.get("engine"), Mapping) or own.keys() != {
        "input_len",
        "output_len",
        "batch_size",
        "repeats",
    }:
        raise ConfigError("these are not the settings of a latency measurement")
    options = options_from(settings["engine"])
    engine = Engine.load(options)
    try:
        started, begun = datetime.now(timezone.utc), perf_counter()
        measured = measure_latency(engine, **own)
        return measured.measurement(options, started, perf_counter() - begun)
    finally:
        engine.close()


def measure_latency(
    engine: Engine,
    *,
    input_len: int = 512,
    output_len: int = 128,
    batch_size: int = 1,
    repeats: int = 5,
    read_seconds: float = 0.3,
    working_set_bytes: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Latency:
    """Run greedy requests of random tokens on an idle engine and see where the time goes.

    Prefill is measured with requests for one token; decoding over the steps in which all streams get a token, in turns
    with reading memory.
    `read_seconds` and `working_set_bytes` are for the read bandwidth, see `lpx.bench.roofline`. Raises ConfigError when
    the numbers do not fit the engine and MemoryLimitError when the bandwidth cannot be measured.
    """
    _check(engine, input_len, output_len, batch_size, repeats)
    tell = progress or (lambda what: None)
    executor = _executor(engine)
    info = executor.info
    prompts = _Prompts(engine, input_len, batch_size)
    steps = output_len - 1

    watch = OthersWatch()
    tell("reading memory")
    reader = MemoryReader(info.threads, info.isa, working_set_bytes)
    best_read = reader.bandwidth(read_seconds)
    tell("warming up")
    _prefill(engine, prompts.fresh())
    _decode(engine, prompts.fresh(), min(steps, _WARM_UP_STEPS))
    prefill_seconds: list[float] = []
    passes: list[Pass] = []
    turns: list[float] = []  # one more than there are passes

    def take_turn() -> None:
        turns.append(reader.read(best_read.best_pattern, read_seconds).repetitions.median)

    for number in range(repeats):
        tell(f"repeat {number + 1} of {repeats}")
        prefill_seconds.append(_prefill(engine, prompts.fresh()))
        take_turn()
        passes.append(_decode(engine, prompts.fresh(), steps))
    take_turn()
    others_share = watch.share()
    tell("profiling")
    step = _profile(engine, executor, prompts, steps, min(repeats, _PROFILE_PASSES))
    best_read = max(best_read, reader.bandwidth(read_seconds), key=lambda measured: measured.bytes_per_second)

    decode = Series.of(batch_size * done.steps / done.seconds for done in passes)
    mean_context = sum(done.mean_context for done in passes) / repeats
    weights, kv = info.bytes_per_token / batch_size, executor.kv_bytes_read(mean_context)
    most = best_read.bytes_per_second / (weights + kv)
    around = Series.of((before + after) / 2 for before, after in pairwise(turns))
    return Latency(
        in_use=replace(engine.info, speculation="off"),
        input_len=input_len,
        output_len=output_len,
        batch_size=batch_size,
        repeats=repeats,
        others_share=others_share,
        prefill_tokens_per_second=Series.of(batch_size * input_len / seconds for seconds in prefill_seconds),
        decode_tokens_per_second=decode,
        time_to_first_token_ms=Series.of(1e3 * seconds for seconds in prefill_seconds),
        decode_step_ms=Series.of(1e3 * done.seconds / done.steps for done in passes),
        limit=DecodeLimit(
            mean_context=mean_context,
            weight_bytes_per_token=weights,
            kv_bytes_per_token=kv,
            bytes_per_token=weights + kv,
            best_read=best_read,
            tokens_per_second=most,
            fraction=decode.median / most,
            turns_read_bytes_per_second=around,
            turns_tokens_per_second=around.median / (weights + kv),
            turns_fraction=statistics.median(
                speed * (weights + kv) / read for speed, read in zip(decode.values, around.values, strict=True)
            ),
        ),
        step=step,
    )


def _check(engine: Engine, input_len: int, output_len: int, batch_size: int, repeats: int) -> None:
    for name, value, least in (
        ("--input-len", input_len, 1),
        ("--output-len", output_len, 2),  # decoding begins with the second token
        ("--batch-size", batch_size, 1),
        ("--repeats", repeats, 1),
    ):
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, not {value}")
    check_room(asdict(engine.info), input_len, output_len, batch_size)


def _executor(engine: Engine) -> CpuExecutor:
    from lpx.runtime.cpu.executor import CpuExecutor

    if not isinstance(engine.executor, CpuExecutor):
        raise ConfigError(f"the device {engine.info.device!r} cannot tell where a step spends its time")
    return engine.executor


class _Prompts:
    """Random prompts, new ones every time, so that nothing kept from earlier ones can help."""

    def __init__(self, engine: Engine, length: int, count: int) -> None:
        self._random = random.Random(0)
        self._vocab_size, self._length, self._count = engine.info.vocab_size, length, count

    def fresh(self) -> list[list[int]]:
        return [[self._random.randrange(self._vocab_size) for _ in range(self._length)] for _ in range(self._count)]


def _prefill(engine: Engine, prompts: list[list[int]]) -> float:
    """Seconds until all prompts have their first token."""
    with Streams(engine, prompts, max_tokens=1) as streams:
        return streams.prefill()


def _decode(engine: Engine, prompts: list[list[int]], steps: int, begin: Callable[[], None] | None = None) -> Pass:
    """Prefill, then `steps` steps, fewer when a stream is at the end of its context; `begin` is called between."""
    with Streams(engine, prompts) as streams:
        streams.prefill()
        if begin is not None:
            begin()
        return streams.decode(steps)


def _profile(engine: Engine, executor: CpuExecutor, prompts: _Prompts, steps: int, passes: int) -> StepBreakdown:
    """The breakdown of the pass with the median step."""
    found: list[StepBreakdown] = []
    try:
        for _ in range(passes):
            done = _decode(engine, prompts.fresh(), steps, begin=lambda: executor.set_profiling(True))
            found.append(_breakdown(executor.step_profile(), done))
    finally:
        executor.set_profiling(False)
    return sorted(found, key=lambda breakdown: breakdown.step_ms)[len(found) // 2]


def _breakdown(profile: dict[str, float], done: Pass) -> StepBreakdown:
    seconds = {name: sum(profile[phase] for phase in phases) for name, phases in _PARTS.items()}
    seconds["python"] = done.seconds - sum(profile.values())
    return StepBreakdown(
        step_ms=1e3 * done.seconds / done.steps,
        steps=done.steps,
        parts={name: StepPart(1e3 * part / done.steps, part / done.seconds) for name, part in seconds.items()},
    )
