"""Workloads that can be measured session by session, beside the weather."""

from __future__ import annotations

import ipaddress
import random
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any, Protocol
from urllib.parse import urlsplit

from lpx.bench.gate.adjusted import USUAL_SHARES
from lpx.bench.gate.pieces import DECODE, PREFILL, Piece, phase_of, split_by_phase
from lpx.bench.measurement import Measurement, Subject
from lpx.bench.sides.spec import engine_setting
from lpx.bench.sides.worker import EngineWorker
from lpx.bench.weather import Look, OthersWatch, WeatherGlass
from lpx.bench.workloads import measure_again
from lpx.errors import ConfigError

_PIECE_SECONDS = 0.06  # of decoding between two looks
_LEAST_STEPS = 8  # of a piece: the engine may run as many at once
_WARM_UP_TOKENS, _WARM_UP_STEPS = 64, 8
_SHORT_PREFILL_SECONDS = 0.5  # below, a session has two rounds


class Workload(Protocol):
    """What a gate runs again and again."""

    @property
    def subject(self) -> Subject | None:
        """What was measured last; None before the first session."""
        ...

    def session(self, number: int) -> list[Piece]: ...

    def usual_share(self, figure: str) -> tuple[float, float]:
        """What is known beforehand of the share of its time that goes with the memory: likeliest, and how sure."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWorkload:
    """One batch of requests as `lpx bench latency` has it: the `settings` of such a measurement, but for repeats."""

    engine: Mapping[str, Any]
    input_len: int
    output_len: int
    batch_size: int

    def __post_init__(self) -> None:
        for name, value, least in (
            ("--input-len", self.input_len, 1),
            ("--output-len", self.output_len, 2),
            ("--batch-size", self.batch_size, 1),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} must be at least {least}, not {value}")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> EngineWorkload:
        """Raises ConfigError for settings of another kind."""
        try:
            return cls(**{name: settings[name] for name in ("engine", "input_len", "output_len", "batch_size")})
        except (KeyError, TypeError):
            raise ConfigError("these are not the settings of a latency measurement") from None

    def settings(self, repeats: int) -> dict[str, Any]:
        return {**asdict(self), "engine": dict(self.engine), "repeats": repeats}


class EngineSessions:
    """Sessions of an engine that is loaded anew, in a process of its own, for each."""

    def __init__(self, workload: EngineWorkload, python: str | None = None) -> None:
        self._workload, self._python = workload, python
        self.subject: Subject | None = None

    def session(self, number: int) -> list[Piece]:
        glass = WeatherGlass()  # its memory, too, lies elsewhere every time
        with open_stream_engine("engine", self._workload, self._python) as engine:
            self.subject = engine.subject
            return list(self._pieces(number, glass, engine))

    def _pieces(self, number: int, glass: WeatherGlass, engine: StreamEngine) -> Iterator[Piece]:
        for prompts in engine.rounds(number):
            watch, pieces = OthersWatch(engine.pid), []
            before = glass.look()
            figures = engine.prefill(prompts)
            after = glass.look()
            pieces.append(Piece(PREFILL, number, figures, Look.mean((before, after)), 0.0))
            for _ in range(engine.pieces):
                before, figures = after, engine.decode()
                if not figures:
                    break
                after = glass.look()
                pieces.append(Piece(DECODE, number, figures, Look.mean((before, after)), 0.0))
            share = watch.share()
            yield from (replace(piece, others_share=share) for piece in pieces)

    def usual_share(self, figure: str) -> tuple[float, float]:
        return usual_engine_share(figure, self._workload.batch_size)


def usual_share(kind: str, batch_size: int) -> Callable[[str], tuple[float, float]]:
    """What is known beforehand of each figure of a workload of this kind; see `Workload.usual_share`."""
    if kind == "latency":
        return lambda figure: usual_engine_share(figure, batch_size)
    return lambda figure: USUAL_SHARES["mixed"]


def usual_engine_share(figure: str, batch_size: int) -> tuple[float, float]:
    if phase_of(figure) == PREFILL:
        return USUAL_SHARES["prefill"]
    return USUAL_SHARES["decode" if batch_size <= 2 else "batch"]


class StreamEngine:
    """An engine of its own process that decodes streams in pieces, warmed up."""

    def __init__(self, worker: EngineWorker, workload: EngineWorkload) -> None:
        info = worker.info
        if workload.input_len + workload.output_len > info["max_model_len"]:
            raise ConfigError(
                f"{workload.input_len} tokens in and {workload.output_len} out do not fit the context of "
                f"{info['max_model_len']}; lower --input-len or --output-len, or raise --max-model-len"
            )
        if workload.batch_size > info["max_num_seqs"]:
            raise ConfigError(
                f"a batch of {workload.batch_size} needs --max-num-seqs {workload.batch_size}: the engine runs "
                f"{info['max_num_seqs']} at once"
            )
        self._worker, self._workload = worker, workload
        tokens = min(_WARM_UP_TOKENS, workload.input_len)
        prompts = [prompt[:tokens] for prompt in self._prompts("warm-up")]
        seconds = worker.ask("prefill", prompts=prompts)["seconds"] * workload.input_len / tokens
        self._rounds = 2 if seconds < _SHORT_PREFILL_SECONDS else 1
        done = worker.ask("decode", steps=_WARM_UP_STEPS)
        a_piece = done["steps"] * _PIECE_SECONDS / max(done["seconds"], 1e-9)
        steps = workload.output_len - 1
        self.pieces = max(1, round(steps / max(_LEAST_STEPS, a_piece)))
        self._steps = ceil(steps / self.pieces)

    @property
    def pid(self) -> int:
        return self._worker.pid

    @property
    def subject(self) -> Subject:
        return self._worker.subject

    def rounds(self, session: int) -> Iterator[list[list[int]]]:
        """Prompts of each round of a session: the same ones for whatever engine."""
        for number in range(self._rounds):
            yield self._prompts(f"{session} {number}")

    def prefill(self, prompts: list[list[int]]) -> dict[str, float]:
        """Begin with new prompts. Times are until the last of them has its first token."""
        seconds = self._worker.ask("prefill", prompts=prompts)["seconds"]
        tokens = self._workload.batch_size * self._workload.input_len
        return {"prefill_tokens_per_second": tokens / seconds, "ttft_ms_median": 1e3 * seconds}

    def decode(self) -> dict[str, float]:
        """One piece of decoding; nothing when the streams are at the end of their context."""
        done = self._worker.ask("decode", steps=self._steps)
        if not done["steps"]:
            return {}
        return {
            "decode_tokens_per_second": self._workload.batch_size * done["steps"] / done["seconds"],
            "tpot_ms_median": 1e3 * done["seconds"] / done["steps"],
        }

    def _prompts(self, seed: str) -> list[list[int]]:
        draw, vocabulary = random.Random(seed), self._worker.info["vocab_size"]
        return [
            [draw.randrange(vocabulary) for _ in range(self._workload.input_len)]
            for _ in range(self._workload.batch_size)
        ]


@contextmanager
def open_stream_engine(name: str, workload: EngineWorkload, python: str | None = None) -> Iterator[StreamEngine]:
    """Raises ConfigError when the workload does not fit the engine, and what loading raises."""
    # What drafts would cost is not asked for: nothing is drafted here.
    with EngineWorker(name, {"measure_steps": False, **workload.engine}, python) as worker:
        yield StreamEngine(worker, workload)


class ServerSessions:
    """A load on a server, run again for each session. The machine is looked at only if the server runs on it."""

    def __init__(self, kind: str, settings: Mapping[str, Any]) -> None:
        self._kind, self._settings = kind, settings
        self._glass = WeatherGlass() if runs_here(settings["base_url"]) else None
        self.subject: Subject | None = None

    def session(self, number: int) -> list[Piece]:
        before, busy = self._look()
        measured = measure_again(self._kind, self._settings)
        if measured.errors:
            failed = ", ".join(f"{count} {name}" for name, count in measured.errors.items())
            raise ConfigError(f"requests failed ({failed}): a load with errors cannot be judged by its times")
        after, also_busy = self._look()
        self.subject = measured.subject
        weather = None if before is None or after is None else Look.mean((before, after))
        return split_by_phase(number, measured.figures, weather, max(busy, also_busy))

    def usual_share(self, figure: str) -> tuple[float, float]:
        return USUAL_SHARES["mixed"]

    def _look(self) -> tuple[Look | None, float]:
        """The weather, and what others use while the server has nothing to do."""
        if self._glass is None:
            return None, 0.0
        watch = OthersWatch()
        look = Look.mean(self._glass.look() for _ in range(3))
        return look, watch.share()


def runs_here(url: str) -> bool:
    """Whether the server at `url` is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        addresses = {ipaddress.ip_address(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except (OSError, ValueError):
        return False
    return bool(addresses) and all(address.is_loopback for address in addresses)


def changed_settings(measured: Measurement, changed: Iterable[str]) -> dict[str, Any]:
    """The settings of a measurement with other engine options, each as `option=value`.

    Raises ConfigError for what is no such option, and for a server, whose options are its own.
    """
    settings = dict(measured.settings)
    for text in changed:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text!r} is no option; write OPTION=VALUE, such as threads=1")
        if measured.kind != "latency":
            raise ConfigError("--set changes options of an engine, and this workload asks a server, which has its own")
        option, given = engine_setting(name, value)
        settings["engine"] = {**settings["engine"], option: given}
        if option == "model":
            settings["engine"].pop("served_model_name", None)  # it is the name of another model
    return settings


def open_sessions(kind: str, settings: Mapping[str, Any]) -> Workload:
    """The workload of a measurement. Raises ConfigError for a kind that no gate runs, and for settings of another."""
    try:
        if kind == "latency":
            return EngineSessions(EngineWorkload.from_settings(settings))
        if kind in ("serve", "decode"):
            return ServerSessions(kind, settings)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"these are not the settings of a {kind} measurement: {error}") from error
    raise ConfigError(f"a run of the kind {kind!r} is no workload for a gate; latency, serve and decode are")
