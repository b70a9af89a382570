"""The caches of the processors that this process may use, as the kernel describes them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class CacheLevel:
    """The caches of one level that hold data."""

    bytes: int  # of the smallest
    count: int

    @property
    def total_bytes(self) -> int:
        return self.bytes * self.count


def cache_levels(root: Path = Path("/"), affinity: frozenset[int] | None = None) -> dict[int, CacheLevel]:
    """Data caches by level for the processors in `affinity` (default: this process's); a level the kernel does not
    describe is left out. `root` is where `/sys` lies.
    """
    usable = frozenset(os.sched_getaffinity(0)) if affinity is None else affinity
    found: dict[int, dict[str, int]] = {}  # level: {processors that share the cache: bytes}
    for processor in usable:
        for folder in (root / f"sys/devices/system/cpu/cpu{processor}/cache").glob("index[0-9]*"):
            try:
                level, kind, size, shared = (
                    (folder / name).read_text(encoding="ascii").strip()
                    for name in ("level", "type", "size", "shared_cpu_list")
                )
                match = re.fullmatch(r"(\d+)([KMG]?)", size)
                if match is not None and kind != "Instruction" and int(match[1]) > 0:
                    found.setdefault(int(level), {})[shared] = int(match[1]) * _UNITS[match[2]]
            except (OSError, ValueError):
                continue
    return {level: CacheLevel(min(sizes.values()), len(sizes)) for level, sizes in sorted(found.items())}
