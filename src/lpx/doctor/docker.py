"""Docker, and the NVIDIA container toolkit: installed, configured as a runtime, Docker restarted since."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lpx.doctor.container import container_kind
from lpx.doctor.finding import Finding, Fix, Status
from lpx.doctor.machine import Machine, Output
from lpx.doctor.nvidia import read_nvidia

_PAGE = "LPX-E066"
_CONFIG = "/etc/docker/daemon.json"
_CONFIGURE = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"


@dataclass(frozen=True, slots=True)
class Engine:
    """What `docker info` tells of the daemon; `problem` where it could not be asked."""

    version: str = ""
    runtimes: tuple[str, ...] = ()
    operating_system: str = ""
    cgroup_driver: str = ""
    rootless: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The container toolkit as it lies on the disk."""

    version: str | None  # None when it is not installed
    configured: bool | None  # None when daemon.json cannot be read as JSON
    has_cdi: bool


def check(machine: Machine) -> Iterator[Finding]:
    if machine.which("docker") is None:
        if container_kind(machine) is None:
            yield _engine_finding(Status.OK, "not installed, and not needed")
        return
    engine = parse_info(machine.run("docker", "info", "--format", "{{json .}}"))
    yield engine_finding(engine)
    toolkit = read_toolkit(machine)
    if read_nvidia(machine).expected or toolkit.version is not None:
        yield toolkit_finding(engine, toolkit, is_snap=(machine.which("docker") or "").startswith("/snap/"))
        yield from reload_finding(engine)


def parse_info(output: Output) -> Engine:
    """`docker info --format '{{json .}}'`: without a daemon it prints empty fields and says why on the other stream."""
    if output.problem:
        said = {"timeout": "Docker does not answer", "missing": "docker is not installed"}
        return Engine(problem=said.get(output.problem, output.problem))
    try:
        info: dict[str, Any] = json.loads(output.stdout.strip().splitlines()[-1])
        runtimes = info.get("Runtimes") or {}
        engine = Engine(
            version=str(info.get("ServerVersion") or ""),
            runtimes=tuple(runtimes),
            operating_system=str(info.get("OperatingSystem") or ""),
            cgroup_driver=str(info.get("CgroupDriver") or ""),
            rootless=any("rootless" in str(each) for each in info.get("SecurityOptions") or ()),
            problem="; ".join(str(each) for each in info.get("ServerErrors") or ()),
        )
    except (ValueError, AttributeError, TypeError, IndexError):
        return Engine(problem=output.text.strip()[:200] or "Docker says nothing")
    if engine.version or engine.problem:
        return engine
    return Engine(problem=output.stderr.strip()[:200] or "the daemon does not answer")


def _engine_finding(status: Status, found: str, do: str = "") -> Finding:
    return Finding(
        check="docker",
        title="Docker",
        status=status,
        found=found,
        wanted="none is needed; for containers, a daemon that answers this user",
        why="LPX runs with and without containers",
        do=do,
        page=_PAGE if do else "",
    )


def engine_finding(engine: Engine) -> Finding:
    problem = engine.problem.lower()
    if not problem:
        return _engine_finding(Status.OK, engine.version + (", rootless" if engine.rootless else ""))
    if "permission denied" in problem:
        return _engine_finding(
            Status.NOTE, "this user may not talk to it", "sudo usermod -aG docker $USER and log in again, or use sudo"
        )
    if "cannot connect" in problem or "failed to connect" in problem or "is the docker daemon running" in problem:
        return _engine_finding(
            Status.NOTE, "installed, and its daemon does not run", "sudo systemctl start docker, if you want it"
        )
    return _engine_finding(Status.UNKNOWN, engine.problem.splitlines()[0], "docker info")


def read_toolkit(machine: Machine) -> Toolkit:
    version = None
    for command in ("nvidia-ctk", "nvidia-container-cli"):
        if machine.which(command) is not None:
            said = machine.run(command, "--version").text.strip()
            version = said.splitlines()[0] if said else f"{command} does not tell its version"
            break
    cdi = any("nvidia" in name for folder in ("/etc/cdi", "/var/run/cdi", "/run/cdi") for name in machine.names(folder))
    return Toolkit(version, is_configured(machine.read(_CONFIG)), cdi)


def is_configured(daemon_json: str | None) -> bool | None:
    """Whether daemon.json has an nvidia runtime; None when it is no JSON object."""
    if not daemon_json:
        return False
    try:
        runtimes = json.loads(daemon_json).get("runtimes") or {}
        return any("nvidia" in name or "nvidia" in str(each.get("path", "")) for name, each in runtimes.items())
    except (ValueError, AttributeError):
        return None


def toolkit_finding(engine: Engine, toolkit: Toolkit, *, is_snap: bool = False) -> Finding:
    """One finding: what is missing between the card and a container, with the next step."""
    configure = Fix(
        title="Make the NVIDIA runtime known to Docker",
        needed="command -v nvidia-ctk >/dev/null && ! docker info 2>/dev/null | grep -qi '^ *runtimes:.*nvidia'",
        commands=("as_root nvidia-ctk runtime configure --runtime=docker", "as_root systemctl restart docker"),
    )

    def finding(status: Status, found: str, do: str = "", fixes: tuple[Fix, ...] = ()) -> Finding:
        return Finding(
            check="docker",
            title="container toolkit",
            status=status,
            found=found,
            wanted="installed, configured as a runtime, Docker restarted since",
            why="without it docker run --gpus fails",
            do=do,
            page=_PAGE if do else "",
            fixes=fixes,
        )

    if toolkit.version is None:
        return finding(
            Status.WARNING,
            "not installed",
            f"install nvidia-container-toolkit from NVIDIA's repository, then {_CONFIGURE}",
        )
    if toolkit.configured is None:
        return finding(
            Status.ERROR,
            f"{_CONFIG} is not valid JSON",
            f"python3 -m json.tool {_CONFIG} shows where; Docker does not start with it",
        )
    if is_snap:
        return finding(
            Status.WARNING,
            "Docker comes from a snap, which does not read the toolkit's configuration",
            "sudo snap remove docker, install Docker Engine from Docker's repository",
        )
    if "docker desktop" in engine.operating_system.lower():
        return finding(
            Status.WARNING,
            "this context is Docker Desktop's virtual machine, which has no GPU on Linux",
            "docker context use default, with Docker Engine installed",
        )
    if any("nvidia" in name for name in engine.runtimes):
        return finding(Status.OK, f"{toolkit.version}, configured as a runtime")
    if toolkit.configured and engine.version:
        return finding(
            Status.WARNING,
            f"{_CONFIG} names the nvidia runtime, and the running Docker does not know it",
            "sudo systemctl restart docker",
            (configure,),
        )
    if toolkit.configured:
        return finding(Status.NOTE, f"{toolkit.version}, configured; whether Docker was restarted since is not visible")
    if toolkit.has_cdi:
        return finding(Status.NOTE, f"{toolkit.version}, through CDI: docker run --device nvidia.com/gpu=all")
    return finding(Status.WARNING, f"{toolkit.version} is installed and not configured", _CONFIGURE, (configure,))


def reload_finding(engine: Engine) -> Iterator[Finding]:
    if engine.cgroup_driver != "systemd" or not any("nvidia" in name for name in engine.runtimes):
        return
    yield Finding(
        check="docker",
        title="daemon-reload",
        status=Status.NOTE,
        found="Docker uses systemd's control groups",
        wanted="running containers that keep their GPU",
        why="systemctl daemon-reload takes the GPU from running containers (Failed to initialize NVML: Unknown Error)",
        do="pass the devices too (--device /dev/nvidia0 --device /dev/nvidiactl --device /dev/nvidia-uvm), or use CDI",
        page="LPX-E069",
    )
