"""What the machine gives at most: bytes read a second from memory and caches, multiply-adds a second.

Every figure is that of the threads and the instruction set that the kernels would use, and the best of several
repetitions, because other programs can only take away. GB are 1e9 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from time import perf_counter
from typing import TYPE_CHECKING, Any

from lpx import _native
from lpx.bench.measurement import Measurement, Subject
from lpx.bench.series import Series
from lpx.errors import ConfigError, MemoryLimitError
from lpx.plain_text import utf8_text

if TYPE_CHECKING:
    from lpx.runtime.cpu.caches import CacheLevel

# What is read must not stay in the last cache from one pass to the next.
_LEAST_MEMORY_BYTES = 256 << 20
_MEMORY_PER_CACHE = 4
# A hypervisor may report a cache that the machine does not have: more than this tells nothing more.
_MOST_MEMORY_BYTES = 2 << 30
_LEAST_SET_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ReadPattern:
    """How a thread walks through its part of the memory."""

    name: str
    streams: int  # groups of 16 rows read side by side
    fetched: bool  # ahead, as the matrix kernels do; else the machine's own prefetching alone

    @property
    def slug(self) -> str:
        """For names of figures: `read_4_prefetched`."""
        return f"read_{self.streams}_{'prefetched' if self.fetched else 'plain'}"


READ_PATTERNS = (
    ReadPattern("plain", 1, False),
    ReadPattern("1 stream, prefetched", 1, True),
    ReadPattern("2 streams, prefetched", 2, True),  # as the matrix kernels read with one row
    ReadPattern("4 streams, prefetched", 4, True),
    ReadPattern("8 streams, prefetched", 8, True),
)
PEAK_KINDS = ("int8_4bit", "int8", "bf16", "f32")


@dataclass(frozen=True, slots=True)
class ReadFigure:
    """Reading a working set over and over."""

    pattern: ReadPattern
    bytes_per_thread: int
    bytes_per_second: float  # of all threads, the best repetition
    repetitions: Series


@dataclass(frozen=True, slots=True)
class PeakFigure:
    """Multiply-adds on registers."""

    multiply_adds_per_second: float  # of all threads, the best repetition
    repetitions: Series


@dataclass(frozen=True, slots=True)
class ReadBandwidth:
    """Reading memory that no cache holds."""

    isa: str
    threads: int
    bytes_per_second: float  # the best repetition of all patterns
    best_pattern: ReadPattern
    working_set_bytes: int  # of all threads
    patterns: tuple[ReadFigure, ...]


@dataclass(frozen=True, slots=True)
class Roofline:
    """The machine's limits for some threads and one instruction set."""

    memory: ReadBandwidth
    l2: ReadFigure | None  # each thread in half of its core's cache; None: not described, or not apart from the L3
    l3: ReadFigure | None  # all threads in half of what they share
    peaks: dict[str, PeakFigure | None]  # by PEAK_KINDS; None: the instruction set has no unit

    def measurement(self, started: datetime, seconds: float) -> Measurement:
        """For the ledger. It is of the machine, so it names no model."""
        from lpx import __version__

        reads = {"read": self.memory, "l3_read": self.l3, "l2_read": self.l2}
        figures = {f"{name}_bytes_per_second": read.bytes_per_second for name, read in reads.items() if read}
        samples = {f"{one.pattern.slug}_bytes_per_second": one.repetitions.values for one in self.memory.patterns}
        for kind, peak in self.peaks.items():
            if peak is not None:
                figures[f"{kind}_multiply_adds_per_second"] = peak.multiply_adds_per_second
                samples[f"{kind}_multiply_adds_per_second"] = peak.repetitions.values
        return Measurement(
            kind="roofline",
            subject=Subject(
                model="",
                engine="lpx",
                engine_version=__version__,
                device="cpu",
                isa=self.memory.isa,
                threads=self.memory.threads,
            ),
            settings={"threads": self.memory.threads, "isa": self.memory.isa},
            figures=figures,
            samples=samples,
            started=started,
            seconds=seconds,
        )


def measure_roofline_again(settings: Mapping[str, Any]) -> Measurement:
    """Measure what the `settings` of a measurement of this kind say. Raises as `measure_roofline` does."""
    started, begun = datetime.now(timezone.utc), perf_counter()
    return measure_roofline(settings.get("threads"), settings.get("isa")).measurement(started, perf_counter() - begun)


def measure_roofline(
    threads: int | None = None,
    isa: str | None = None,
    *,
    seconds: float = 0.5,
    working_set_bytes: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Roofline:
    """Measure everything, `seconds` for each figure; `progress` is told what is being measured.

    Raises ConfigError for threads or an instruction set that cannot be had, and MemoryLimitError when the working set
    (default: four times the last cache) does not fit.
    """
    from lpx.runtime.cpu.caches import cache_levels

    tell = progress or (lambda what: None)
    caches = cache_levels()
    machine, own = _open(threads, isa, working_set_bytes, caches)
    memory = _read_memory(machine, own, seconds, tell)
    l2 = l3 = None
    l2_bytes = caches[2].bytes // 2 if 2 in caches else 0
    l3_bytes = min(caches[3].bytes, caches[3].total_bytes // machine.threads) // 2 if 3 in caches else 0
    if _LEAST_SET_BYTES <= l2_bytes <= own:
        tell("reading the L2 cache")
        l2 = _read(machine, READ_PATTERNS[0], l2_bytes, seconds)
    if max(_LEAST_SET_BYTES, 4 * l2_bytes) <= l3_bytes <= own:
        tell("reading the L3 cache")
        l3 = max(
            (_read(machine, pattern, l3_bytes, seconds / 2) for pattern in READ_PATTERNS[:2]),
            key=lambda figure: figure.bytes_per_second,
        )
    peaks: dict[str, PeakFigure | None] = {}
    for kind in PEAK_KINDS:
        tell(f"multiplying {kind}")
        rates = machine.multiply_add(kind, seconds)
        peaks[kind] = PeakFigure(max(rates), Series.of(rates)) if rates else None
    return Roofline(memory=memory, l2=l2, l3=l3, peaks=peaks)


class MemoryReader:
    """Memory of its own, well beyond the caches, that it reads again and again.

    Raises as `measure_roofline` does.
    """

    def __init__(self, threads: int | None = None, isa: str | None = None, working_set_bytes: int | None = None):
        from lpx.runtime.cpu.caches import cache_levels

        self._machine, self._own = _open(threads, isa, working_set_bytes, cache_levels())

    def bandwidth(self, seconds: float, progress: Callable[[str], None] | None = None) -> ReadBandwidth:
        """All patterns, `seconds` for each."""
        return _read_memory(self._machine, self._own, seconds, progress or (lambda what: None))

    def read(self, pattern: ReadPattern, seconds: float) -> ReadFigure:
        return _read(self._machine, pattern, self._own, seconds)

    def multiply(self, kind: str, seconds: float) -> list[float]:
        """Multiply-adds a second by repetition; none when the kernel set has no unit for one of `PEAK_KINDS`."""
        return self._machine.multiply_add(kind, seconds)


def _open(
    threads: int | None, isa: str | None, working_set_bytes: int | None, caches: dict[int, CacheLevel]
) -> tuple[_native.Roofline, int]:
    """The machine and the bytes of each thread."""
    from lpx.runtime.cpu.topology import default_threads
    from lpx.runtime.memory import available_bytes

    if threads is not None and threads < 1:
        raise ConfigError(f"threads must be a whole number of at least 1, not {threads}")
    threads = threads or default_threads()
    own = _bytes_per_thread(working_set_bytes, threads, caches)
    available = available_bytes()
    if own * threads > available:
        raise MemoryLimitError(
            f"measuring reads {own * threads / 2**20:,.0f} MiB, well beyond the caches, over and over; only "
            f"{available / 2**20:,.0f} MiB can be had. End other programs or raise the memory limit"
        )
    try:
        return _native.Roofline(threads=threads, isa=utf8_text(isa or ""), bytes=own), own
    except ValueError as error:
        raise ConfigError(str(error)) from error
    except MemoryError:
        raise MemoryLimitError(f"{own * threads / 2**20:,.0f} MiB to read could not be had") from None


def _bytes_per_thread(working_set_bytes: int | None, threads: int, caches: dict[int, CacheLevel]) -> int:
    if working_set_bytes is None:
        last = caches[max(caches)].total_bytes if caches else 0
        working_set_bytes = min(max(_LEAST_MEMORY_BYTES, _MEMORY_PER_CACHE * last), _MOST_MEMORY_BYTES)
    return -(-working_set_bytes // threads)


def _read_memory(
    machine: _native.Roofline, bytes_per_thread: int, seconds: float, tell: Callable[[str], None]
) -> ReadBandwidth:
    figures = []
    for pattern in READ_PATTERNS:
        tell(f"reading memory, {pattern.name}")
        figures.append(_read(machine, pattern, bytes_per_thread, seconds))
    best = max(figures, key=lambda figure: figure.bytes_per_second)
    return ReadBandwidth(
        isa=machine.isa,
        threads=machine.threads,
        bytes_per_second=best.bytes_per_second,
        best_pattern=best.pattern,
        working_set_bytes=bytes_per_thread * machine.threads,
        patterns=tuple(figures),
    )


def _read(machine: _native.Roofline, pattern: ReadPattern, bytes_per_thread: int, seconds: float) -> ReadFigure:
    rates = machine.read(bytes_per_thread, pattern.streams, pattern.fetched, seconds)
    return ReadFigure(pattern, bytes_per_thread, max(rates), Series.of(rates))
