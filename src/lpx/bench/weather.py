"""What the machine gives in this moment: bytes read and multiply-adds a second, and how much of it others use.

The memory of a shared machine may be twice as fast in one minute as in the next. A short look before and after each
piece of a workload tells whether a slow piece was slow, or the machine. A look uses threads, kernels and a pattern of
its own, which do not change with the configuration that is measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median
from time import perf_counter

MUCH_OTHERS = 0.1  # of the processors in the hands of other programs: beyond it, what is measured says little
_READ_SECONDS = 0.03
_MULTIPLY_SECONDS = 0.01
_KIND = "int8"  # that most of decoding is made of; the next where the kernel set has no unit for it
_OTHER_KIND = "f32"


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the machine, or the mean of several."""

    read_bytes_per_second: float
    multiply_adds_per_second: float

    @classmethod
    def mean(cls, looks: Iterable[Look]) -> Look:
        """Harmonic: equal times of work see the mean of the times that a byte takes."""
        seen = tuple(looks)
        return cls(
            1 / fmean(1 / look.read_bytes_per_second for look in seen),
            1 / fmean(1 / look.multiply_adds_per_second for look in seen),
        )


class WeatherGlass:
    """Looks at the machine with as many threads as it has cores, whatever the measured engine uses.

    Keeps memory well beyond the caches for it. Raises MemoryLimitError when that cannot be had.
    """

    def __init__(self) -> None:
        from lpx.bench.roofline import READ_PATTERNS, MemoryReader

        self._reader = MemoryReader()
        self._pattern = next(pattern for pattern in READ_PATTERNS if pattern.streams == 2)
        self._kind = _KIND if self._reader.multiply(_KIND, 0) else _OTHER_KIND
        self.look()  # the first touch of the memory

    def look(self) -> Look:
        """Takes about a twentieth of a second."""
        return Look(
            self._reader.read(self._pattern, _READ_SECONDS).repetitions.median,
            median(self._reader.multiply(self._kind, _MULTIPLY_SECONDS)),
        )


class OthersWatch:
    """How much of all processors other programs use, and a hypervisor takes away, from now on."""

    def __init__(self, *own: int) -> None:
        """`own` are processes that belong to the measurement, beside this one."""
        import psutil  # type: ignore[import-untyped]

        self._own = [psutil.Process(), *(psutil.Process(pid) for pid in own)]
        self._processors = psutil.cpu_count() or 1
        self._started = (perf_counter(), *self._used())

    def share(self) -> float:
        """From 0 to 1, since this watch was made; about 0.1 and more make timings doubtful."""
        started, busy_before, own_before = self._started
        busy, own = self._used()
        seconds = perf_counter() - started
        if seconds <= 0:
            return 0.0
        return min(max((busy - busy_before - (own - own_before)) / (seconds * self._processors), 0.0), 1.0)

    def _used(self) -> tuple[float, float]:
        """Seconds of all processors that were busy, and of this measurement's processes."""
        import psutil

        times = psutil.cpu_times()
        busy = sum(times) - times.idle - getattr(times, "iowait", 0.0)
        # Guests are counted in user and nice, too.
        busy -= getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        own = 0.0
        for process in self._own:
            try:
                used = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            own += used.user + used.system
        return busy, own
