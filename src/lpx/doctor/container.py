"""Whether this is a container, and whether it sees the GPU of its host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lpx.doctor.finding import Finding, Status
from lpx.doctor.machine import Machine
from lpx.doctor.messages import recognise
from lpx.doctor.nvidia import Nvidia, read_nvidia

_WITH_GPU = "docker run --gpus all …; in compose: deploy.resources.reservations.devices with capabilities: [gpu]"


def check(machine: Machine) -> Iterator[Finding]:
    kind = container_kind(machine)
    yield Finding(
        check="container",
        title="container",
        status=Status.OK,
        found=f"inside {kind}" if kind else "none: this is the machine itself",
        wanted="either",
        why="a container sees the limits and devices that it was given",
    )
    if kind is not None:
        yield from gpu_access(read_nvidia(machine), machine.environment)


def container_kind(machine: Machine) -> str | None:
    """What kind of container this process is in; None on the machine itself."""
    if machine.environment.get("KUBERNETES_SERVICE_HOST"):
        return "Kubernetes"
    if machine.exists("/run/.containerenv"):
        return "Podman"
    if machine.exists("/.dockerenv"):
        return "Docker"
    named = machine.environment.get("container", "")
    if named in ("lxc", "systemd-nspawn", "podman", "docker", "oci"):
        return named
    groups = machine.read("/proc/1/cgroup") or ""
    if match := re.search(r"[/:](docker|kubepods|libpod|containerd|lxc)[-/.:]", groups):
        return {"docker": "Docker", "kubepods": "Kubernetes", "libpod": "Podman"}.get(match[1], match[1])
    return None


def gpu_access(nvidia: Nvidia, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Nothing where neither the host nor the image knows of a GPU."""
    visible = environment.get("NVIDIA_VISIBLE_DEVICES")
    asked = visible not in (None, "", "void", "none")

    def finding(status: Status, found: str, do: str = "", page: str = "") -> Finding:
        return Finding(
            check="container",
            title="GPU access",
            status=status,
            found=found,
            wanted="the host's GPU, when the container is to use it",
            why="a program that sees no GPU runs on the processor, and often does not say so",
            do=do,
            page=page,
        )

    if nvidia.works:
        yield finding(Status.OK, f"{len(nvidia.cards)} of the host's GPUs can be used")
        return
    lost = next((each for each in recognise(nvidia.said) if each.key == "container-lost-gpu"), None)
    if lost is not None:
        yield finding(Status.ERROR, lost.cause, lost.do, lost.page)
    elif nvidia.devices and not nvidia.said:
        yield finding(
            Status.ERROR,
            f"{', '.join(nvidia.devices)} are here, and the driver's libraries are not",
            "start it with --gpus all, or set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            "LPX-E060",
        )
    elif nvidia.module and not nvidia.devices:
        hidden = f" (NVIDIA_VISIBLE_DEVICES={visible})" if visible in ("", "void", "none") else ""
        yield finding(
            Status.WARNING,
            f"the host runs driver {nvidia.module}, and this container was given no GPU{hidden}",
            _WITH_GPU,
            "LPX-E060",
        )
    elif asked and not nvidia.said:
        yield finding(
            Status.WARNING,
            f"the image asks for GPUs (NVIDIA_VISIBLE_DEVICES={visible}), and there is none",
            f"try nvidia-smi on the host; then {_WITH_GPU}",
            "LPX-E060",
        )
