"""Memory that models can take: the machine's, and what the control group leaves."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lpx.doctor.finding import Finding, Status
from lpx.doctor.machine import Machine

_COMFORTABLE_BYTES = 2 << 30  # a 1B model in 4 bits with its cache
_LEAST_BYTES = 512 << 20  # the default model with a short context


def check(machine: Machine) -> Iterator[Finding]:
    yield available(machine)


def parse_meminfo(text: str) -> dict[str, int]:
    """Bytes by name; lines that are none are left out."""
    return {name: int(value) * 1024 for name, value in re.findall(r"^([\w()]+):\s+(\d+) kB", text, re.MULTILINE)}


def available(machine: Machine) -> Finding:
    from lpx.runtime.cpu.cgroup import memory_available

    text = machine.read("/proc/meminfo")
    values = parse_meminfo(text or "")
    group = memory_available(machine.root)

    def finding(status: Status, found: str, do: str = "") -> Finding:
        return Finding(
            check="memory",
            title="memory",
            status=status,
            found=found,
            wanted=f"{_gib(_COMFORTABLE_BYTES)} free or more; weights, KV cache and work buffers must fit",
            why="LPX refuses a model that does not fit, and a machine that swaps decodes at the speed of the disk",
            do=do,
            page="LPX-E030" if do else "",
        )

    if "MemAvailable" not in values or "MemTotal" not in values:
        return finding(Status.UNKNOWN, "the kernel does not say how much memory there is", "free -h may tell more")
    free = values["MemAvailable"]
    found = f"{_gib(free)} free of {_gib(values['MemTotal'])}"
    if group is not None and group < free:
        free = group
        found += f"; the control group leaves {_gib(group)}"
    advice = "end other programs, raise the container's limit (docker run --memory), or take a smaller model"
    if free < _LEAST_BYTES:
        return finding(Status.ERROR, found, advice)
    if free < _COMFORTABLE_BYTES:
        return finding(Status.WARNING, found, advice)
    return finding(Status.OK, found)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
