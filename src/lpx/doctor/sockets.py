"""Who listens on which port: /proc/net/tcp with the owners of its sockets, or else what `ss` says."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from lpx.doctor.machine import Machine

_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Holder:
    pid: int
    name: str
    command: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    @property
    def is_lpx_server(self) -> bool:
        return is_lpx_server(self.command)


@dataclass(frozen=True, slots=True)
class Listener:
    address: str
    port: int
    holder: Holder | None  # None where the system does not tell this user


def is_lpx_server(command: tuple[str, ...]) -> bool:
    """Whether a command line is `lpx serve` or `python -m lpx serve`."""
    for at, word in enumerate(command):
        starts = os.path.basename(word) == "lpx" or (word == "lpx" and at and command[at - 1] == "-m")
        if starts:
            return "serve" in command[at + 1 :]
    return False


def read_listeners(machine: Machine) -> tuple[Listener, ...] | None:
    """All TCP listeners, or None when the system does not say."""
    return machine.once("listeners", lambda: _read_listeners(machine))


def _read_listeners(machine: Machine) -> tuple[Listener, ...] | None:
    tables = [machine.read("/proc/net/tcp"), machine.read("/proc/net/tcp6")]
    rows = [row for table in tables if table is not None for row in parse_proc_net_tcp(table)]
    if any(table is not None and "local_address" in table for table in tables):
        owners = socket_owners(machine, {inode for _, _, inode in rows})
        return tuple(Listener(address, port, owners.get(inode)) for address, port, inode in rows)
    listed = machine.run("ss", "-ltnp")
    return parse_ss(listed.stdout) if listed.ok else None


def parse_proc_net_tcp(text: str) -> list[tuple[str, int, int]]:
    """(address, port, inode) of the listeners in the text of /proc/net/tcp or tcp6; other lines are left out."""
    found = []
    for line in text.splitlines():
        parts = line.split()
        if len(parts) < 10 or parts[3] != _LISTEN or not parts[9].isdigit():
            continue
        match = re.fullmatch(r"([0-9A-Fa-f]{8}|[0-9A-Fa-f]{32}):([0-9A-Fa-f]{4})", parts[1])
        if match:
            found.append((_address(match[1]), int(match[2], 16), int(parts[9])))
    return found


def _address(digits: str) -> str:
    """The kernel prints each 32-bit word in the order of a little-endian machine."""
    data = bytes.fromhex(digits)
    words = b"".join(data[at : at + 4][::-1] for at in range(0, len(data), 4))
    return str(ipaddress.ip_address(words))


def parse_ss(text: str) -> tuple[Listener, ...] | None:
    """The listeners that `ss -ltnp` shows; None when the text is not of that form."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("State"):
        return None
    found = []
    for line in lines[1:]:
        parts = line.split()
        if len(parts) < 5 or parts[0] != "LISTEN":
            continue
        address, _, port = parts[3].rpartition(":")
        if not port.isdigit():
            continue
        user = re.search(r'users:\(\("([^"]*)",pid=(\d+)', line)
        holder = Holder(int(user[2]), user[1]) if user else None
        found.append(Listener(address.strip("[]").replace("*", "0.0.0.0"), int(port), holder))
    return tuple(found)


def socket_owners(machine: Machine, inodes: set[int]) -> dict[int, Holder]:
    """The process of each socket, as far as this user may see it."""
    owners: dict[int, Holder] = {}
    for pid, inode in _open_sockets(machine):
        if len(owners) == len(inodes):
            break
        if inode in inodes and inode not in owners:
            owners[inode] = Holder(pid, machine.read(f"/proc/{pid}/comm") or "?", command_line(machine, pid))
    return owners


def command_line(machine: Machine, pid: int) -> tuple[str, ...]:
    return tuple((machine.read(f"/proc/{pid}/cmdline") or "").split("\0"))


def _open_sockets(machine: Machine) -> Iterator[tuple[int, int]]:
    for name in machine.names("/proc"):
        if not name.isdigit():
            continue
        folder = machine.path(f"/proc/{name}/fd")
        for descriptor in machine.names(f"/proc/{name}/fd"):
            try:
                target = os.readlink(folder / descriptor)
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1].isdigit():
                yield int(name), int(target[8:-1])
