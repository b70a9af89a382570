"""What earlier runs left: servers that serve nothing, unfinished pulls, second installations."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from lpx.doctor.configuration import configured_models_dir
from lpx.doctor.finding import Finding, Fix, Status
from lpx.doctor.machine import Machine
from lpx.doctor.sockets import command_line, is_lpx_server, read_listeners

_PAGE = "LPX-E047"


@dataclass(frozen=True, slots=True)
class ServerProcess:
    pid: int
    state: str  # letter of /proc/PID/stat
    memory_bytes: int
    ports: tuple[int, ...]


def check(machine: Machine) -> Iterator[Finding]:
    yield processes(lpx_servers(machine))
    yield pulls(unfinished_pulls(configured_models_dir(machine)))
    yield installations(installed_versions(), machine)


def lpx_servers(machine: Machine) -> list[ServerProcess]:
    """The processes of `lpx serve` that this user may see."""
    listeners = read_listeners(machine) or ()
    found = []
    for name in machine.names("/proc"):
        if not name.isdigit() or not is_lpx_server(command_line(machine, int(name))):
            continue
        status = machine.read(f"/proc/{name}/status") or ""
        state = re.search(r"^State:\s+(\w)", status, re.MULTILINE)
        memory = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        found.append(
            ServerProcess(
                pid=int(name),
                state=state[1] if state else "?",
                memory_bytes=int(memory[1]) * 1024 if memory else 0,
                ports=tuple(each.port for each in listeners if each.holder and each.holder.pid == int(name)),
            )
        )
    return found


def processes(servers: list[ServerProcess]) -> Finding:
    def finding(status: Status, found: str, do: str = "", fixes: tuple[Fix, ...] = ()) -> Finding:
        return Finding(
            check="leftovers",
            title="LPX processes",
            status=status,
            found=found,
            wanted="only servers that serve",
            why="a server that is left over keeps its memory, and perhaps its port",
            do=do,
            page=_PAGE if do else "",
            fixes=fixes,
        )

    dead = [server for server in servers if server.state in "TtZ"]
    if dead:
        said = ", ".join(f"pid {server.pid} ({_state(server.state)}, {_gb(server.memory_bytes)})" for server in dead)
        pids = " ".join(str(server.pid) for server in dead)
        ends = tuple(
            Fix(
                title=f"End the stopped LPX server {server.pid}",
                needed=f"grep -aq lpx /proc/{server.pid}/cmdline 2>/dev/null",
                commands=(f"kill -CONT {server.pid}", f"kill {server.pid}"),
                risky=True,
            )
            for server in dead
        )
        return finding(Status.WARNING, said, f"kill -CONT {pids}; kill {pids}", ends)
    if servers:
        said = ", ".join(
            f"pid {server.pid}" + (f" on port {', '.join(map(str, server.ports))}" if server.ports else "")
            for server in servers
        )
        return finding(Status.NOTE, f"running: {said}")
    return finding(Status.OK, "none")


def _state(letter: str) -> str:
    return "ended, but its parent does not take notice" if letter == "Z" else "stopped"


def unfinished_pulls(folder: Path) -> list[tuple[Path, int]]:
    """Folders of the store that no finished model lies in, with their bytes."""
    try:
        hidden = [each for each in folder.iterdir() if each.name.startswith(".") and each.is_dir()]
        sizes = [(each, sum(file.stat().st_size for file in each.rglob("*") if file.is_file())) for each in hidden]
    except OSError:
        return []
    return [(each, size) for each, size in sizes if size]


def pulls(unfinished: list[tuple[Path, int]]) -> Finding:
    total = sum(size for _, size in unfinished)
    return Finding(
        check="leftovers",
        title="unfinished pulls",
        status=Status.NOTE if unfinished else Status.OK,
        found=f"{len(unfinished)}, {_gb(total)}: {unfinished[0][0].name} …" if unfinished else "none",
        wanted="none",
        why="they take room; the next pull of the same model goes on with them or removes them",
        do="pull the model again" if unfinished else "",
    )


def installed_versions() -> list[str]:
    found = {os.path.realpath(str(each.locate_file(""))): each.version for each in metadata.distributions(name="lpx")}
    return sorted(f"{version} in {folder}" for folder, version in found.items())


def installations(versions: list[str], machine: Machine) -> Finding:
    site = machine.site_packages
    broken = [name for name in machine.names_at(site) if re.match(r"~.?px", name)]
    many = len(versions) > 1
    bad = many or bool(broken)
    found = "; ".join(versions) if many else ", ".join(f"{site}/{name}" for name in broken)
    return Finding(
        check="leftovers",
        title="LPX installations",
        status=Status.WARNING if bad else Status.OK,
        found=found if bad else (versions[0] if versions else "runs from its source folder"),
        wanted="one",
        why="parts of an old version may be imported together with the new one",
        do="pip uninstall lpx until it says that there is none, remove folders that begin with ~, install again"
        if bad
        else "",
        page=_PAGE if bad else "",
    )


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
