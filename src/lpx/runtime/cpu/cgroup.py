"""CPU and memory limits that control groups put on this process (cgroup v2 and v1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# A v1 group without a limit reports the largest page-aligned int64; anything that size is none.
_NO_LIMIT = 1 << 60


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Processors' worth of time that the group and its parents allow; None without a quota."""
    quotas = []
    for folder in _folders(root, "cpu"):
        if text := _read(folder / "cpu.max"):
            quota, _, period = text.partition(" ")
            if quota != "max" and _positive(quota) and _positive(period):
                quotas.append(int(quota) / int(period))
        elif text := _read(folder / "cpu.cfs_quota_us"):
            period = _read(folder / "cpu.cfs_period_us")
            if _positive(text) and _positive(period):
                quotas.append(int(text) / int(period))
    return min(quotas, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the group and its parents allow; None without a limit."""
    limits = []
    for folder in _folders(root, "memory"):
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        if _positive(limit) and int(limit) < _NO_LIMIT:
            limits.append(int(limit))
    return min(limits, default=None)


def memory_available(root: Path = Path("/")) -> int | None:
    """Bytes this process may still take before its group or a parent is at its limit; None without a limit.

    File pages that the kernel would drop first do not count as taken.
    """
    left = []
    for folder in _folders(root, "memory"):
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
        if _positive(limit) and int(limit) < _NO_LIMIT and used.isdigit():
            left.append(max(0, int(limit) - int(used) + _inactive_file_bytes(folder)))
    return min(left, default=None)


def _inactive_file_bytes(folder: Path) -> int:
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdigit():
            return int(value)
    return 0


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's group and of its parents, up to the top of the hierarchy."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controller
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return ""


def _positive(text: str) -> bool:
    return text.isdigit() and int(text) > 0
