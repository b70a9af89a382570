"""What is known about NVIDIA cards here: from NVML, else nvidia-smi, else the PCI devices. Read once for all checks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

from lpx.doctor.machine import Machine, Output
from lpx.doctor.nvidia_smi import (
    OLD_FIELDS,
    Card,
    Listed,
    QueryRows,
    parse_list,
    parse_query,
    parse_table_head,
    query_command,
)

# With persistence off, the first question initializes every card.
_DRIVER_LIMIT_S = 15.0
_VENDOR, _DISPLAY_CLASSES = "0x10de", ("0x0300", "0x0302")


@dataclass(frozen=True, slots=True)
class PciCard:
    """An NVIDIA card on the PCI bus, whether or not a driver runs it."""

    bus_id: str
    name: str | None = None
    driver: str | None = None  # "nvidia", "nouveau", "vfio-pci", …


@dataclass(frozen=True, slots=True)
class Nvidia:
    """`cards` is empty when no driver answers; `said` is then what it said instead."""

    pci: tuple[PciCard, ...] = ()
    cards: tuple[Card, ...] = ()
    source: str = ""  # where `cards` come from
    driver: str | None = None
    module: str | None = None  # version of the kernel module that is loaded
    cuda: str | None = None  # newest CUDA of the driver, as it says itself
    lost: tuple[str, ...] = ()
    slices: tuple[Listed, ...] = ()
    said: str = ""
    has_tool: bool = False  # nvidia-smi is there
    timed_out: bool = False
    is_wsl: bool = False
    jetson: str | None = None  # model of the board
    devices: tuple[str, ...] = ()  # /dev/nvidia*

    @property
    def expected(self) -> bool:
        """Whether there is, or should be, an NVIDIA card."""
        return bool(self.pci or self.cards or self.module or self.has_tool or self.jetson or self.devices)

    @property
    def works(self) -> bool:
        return bool(self.cards)


def read_nvidia(machine: Machine) -> Nvidia:
    return machine.once("nvidia", lambda: _read(machine))


def _read(machine: Machine) -> Nvidia:
    kernel = machine.read("/proc/version") or ""
    model = machine.read("/proc/device-tree/model") or ""
    seen = Nvidia(
        pci=_pci_cards(machine),
        module=parse_module_version(machine.read("/proc/driver/nvidia/version") or ""),
        is_wsl="microsoft" in kernel.lower() and machine.exists("/dev/dxg"),
        jetson=model if re.search(r"jetson|tegra|nvidia", model, re.IGNORECASE) else None,
        devices=tuple(f"/dev/{name}" for name in machine.names("/dev") if re.fullmatch(r"nvidia(\d+|ctl)", name)),
        has_tool=machine.which("nvidia-smi") is not None,
    )
    if not seen.expected:
        return seen
    probe = machine.run(machine.interpreter.executable, "-m", "lpx.doctor.nvml_probe", limit_s=_DRIVER_LIMIT_S)
    if probe.problem == "timeout":
        return replace(seen, said="the driver does not answer", timed_out=True)
    found = parse_probe(probe.stdout)
    if found is not None and found.cards:
        return _from_nvml(machine, seen, found)
    if seen.has_tool:
        return _ask_smi(machine, seen)
    return replace(seen, said=nvml_error(probe.stdout))


def _from_nvml(machine: Machine, seen: Nvidia, found: Probed) -> Nvidia:
    slices: tuple[Listed, ...] = ()
    if any(card.mig for card in found.cards):
        slices = tuple(parse_list(machine.run("nvidia-smi", "-L", limit_s=_DRIVER_LIMIT_S).stdout))
    return replace(
        seen, cards=found.cards, source="NVML", driver=found.driver, cuda=found.cuda, lost=found.lost, slices=slices
    )


@dataclass(frozen=True, slots=True)
class Probed:
    cards: tuple[Card, ...]
    driver: str | None
    cuda: str | None
    lost: tuple[str, ...]


def parse_probe(text: str) -> Probed | None:
    """What `lpx.doctor.nvml_probe` printed; None when NVML could not be used."""
    try:
        found = json.loads(text)
        if "error" in found:
            return None
        cards = tuple(Card(**card) for card in found["cards"])
        return Probed(cards, found["driver"], found["cuda"], tuple(found["lost"]))
    except (ValueError, TypeError, KeyError):
        return None


def nvml_error(text: str) -> str:
    """Why NVML could not be used, as the probe printed it; empty when only nvidia-ml-py is missing."""
    try:
        error = json.loads(text)["error"]
    except (ValueError, TypeError, KeyError):
        return ""
    return error if isinstance(error, str) and error.startswith("Failed") else ""


def _ask_smi(machine: Machine, seen: Nvidia) -> Nvidia:
    output, rows = _query(machine)
    if output.problem == "timeout":
        return replace(seen, said="nvidia-smi does not answer", timed_out=True)
    table = machine.run("nvidia-smi", limit_s=_DRIVER_LIMIT_S)
    driver, cuda = parse_table_head(table.text)
    cards = rows.cards
    listed = tuple(parse_list(machine.run("nvidia-smi", "-L", limit_s=_DRIVER_LIMIT_S).text))
    if not cards:
        cards = tuple(Card(name=each.name or None, index=each.index) for each in listed)
    return replace(
        seen,
        cards=cards,
        source="nvidia-smi" if cards else "",
        driver=rows.driver or driver,
        cuda=cuda,
        lost=rows.lost,
        slices=tuple(each for each in listed if each.slices),
        said="" if cards else "\n".join(text for text in (output.text, table.text) if text),
    )


def _query(machine: Machine) -> tuple[Output, QueryRows]:
    output = machine.run(*query_command(), limit_s=_DRIVER_LIMIT_S)
    rows = parse_query(output.text)
    if not rows.cards and "not a valid field" in output.text:
        output = machine.run(*query_command(OLD_FIELDS), limit_s=_DRIVER_LIMIT_S)
        rows = parse_query(output.text, OLD_FIELDS)
    return output, rows


def parse_module_version(text: str) -> str | None:
    """The version in /proc/driver/nvidia/version, of the proprietary and of the open module."""
    match = re.search(r"NVRM version:.*?Kernel Module(?:\s+for\s+\S+)?\s+(\d+(?:\.\d+)+)", text)
    return match[1] if match else None


def _pci_cards(machine: Machine) -> tuple[PciCard, ...]:
    folder = "/sys/bus/pci/devices"
    buses = machine.names(folder)
    found = []
    for bus_id in buses:
        if machine.read(f"{folder}/{bus_id}/vendor") != _VENDOR:
            continue
        if (machine.read(f"{folder}/{bus_id}/class") or "")[:6] not in _DISPLAY_CLASSES:
            continue
        uevent = re.search(r"^DRIVER=(\S+)", machine.read(f"{folder}/{bus_id}/uevent") or "", re.MULTILINE)
        found.append(PciCard(bus_id, None, uevent[1] if uevent else None))
    if buses and not found:
        return ()
    listed = {_short(card.bus_id): card for card in parse_lspci(machine.run("lspci", "-nnk").stdout)}
    if not found:
        return tuple(listed.values())
    return tuple(
        PciCard(card.bus_id, listed[_short(card.bus_id)].name if _short(card.bus_id) in listed else None, card.driver)
        for card in found
    )


def _short(bus_id: str) -> str:
    """Without the domain, which lspci leaves out."""
    return bus_id[-7:].lower()


def parse_lspci(text: str) -> list[PciCard]:
    """NVIDIA display devices in the text of `lspci -nnk`."""
    found: list[PciCard] = []
    inside = False
    for line in text.splitlines():
        head = re.match(
            r"((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.\d) (?:VGA compatible controller|3D controller|"
            r"Display controller)(?: \[[0-9a-f]{4}\])?: NVIDIA Corporation (.*)",
            line,
            re.IGNORECASE,
        )
        if head:
            name = re.sub(r"\s*(\[[0-9a-f]{4}:[0-9a-f]{4}\])?\s*(\(rev [0-9a-f]+\))?\s*$", "", head[2])
            found.append(PciCard(head[1], name or None))
            inside = True
        elif line and not line[0].isspace():
            inside = False
        elif inside and (driver := re.match(r"\s+Kernel driver in use: (\S+)", line)):
            found[-1] = PciCard(found[-1].bus_id, found[-1].name, driver[1])
    return found
