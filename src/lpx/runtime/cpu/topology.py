"""How many threads pay: the physical cores that this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

from lpx.runtime.cpu.cgroup import cpu_quota


def default_threads(root: Path = Path("/"), affinity: frozenset[int] | None = None) -> int:
    """Physical cores among the processors in `affinity` (default: this process's), within the cgroup quota.

    Two hardware threads of one core share its arithmetic units and its path to memory, so they count once. `root` is
    where `/sys` and `/proc` lie. At least 1.
    """
    usable = frozenset(os.sched_getaffinity(0)) if affinity is None else affinity
    cores = {_siblings(root, processor) & usable for processor in usable}
    quota = cpu_quota(root)
    return max(1, len(cores) if quota is None else min(len(cores), int(quota)))


def describe_crowding(threads: int, root: Path = Path("/"), affinity: frozenset[int] | None = None) -> str | None:
    """What so many threads cost where they are more than the processors they run on; None where they are not."""
    usable = frozenset(os.sched_getaffinity(0)) if affinity is None else affinity
    quota = cpu_quota(root)
    processors = len(usable) if quota is None else min(len(usable), max(1, math.ceil(quota)))
    if threads <= processors:
        return None
    share = "one processor" if processors == 1 else f"{processors} processors"
    return (
        f"{threads} threads share {share} and wait for each other in every step: decoding is faster with "
        f"{default_threads(root, usable)}, the default"
    )


def _siblings(root: Path, processor: int) -> frozenset[int]:
    folder = root / f"sys/devices/system/cpu/cpu{processor}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second is the older kernels' name
        try:
            text = (folder / name).read_text(encoding="ascii")
            return _parse_list(text) | {processor}
        except (OSError, ValueError):
            continue
    return frozenset({processor})


def _parse_list(text: str) -> frozenset[int]:
    """The kernel's list format, such as "0-3,8"."""
    processors: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        processors.update(range(int(first), int(last or first) + 1))
    return frozenset(processors)
