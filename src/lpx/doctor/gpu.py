"""The cards: model, memory, compute capability and the number formats that follow from it, MIG, persistence."""

from __future__ import annotations

from collections.abc import Iterator

from lpx.doctor.finding import Finding, Fix, Status
from lpx.doctor.gpu_table import capabilities, find
from lpx.doctor.machine import Machine
from lpx.doctor.nvidia import Nvidia, read_nvidia
from lpx.doctor.nvidia_smi import Card

_HOT_C = 90


def check(machine: Machine) -> Iterator[Finding]:
    nvidia = read_nvidia(machine)
    if nvidia.works:
        for card in nvidia.cards:
            yield card_finding(card, nvidia)
        yield from mig(nvidia)
        yield from persistence(nvidia)
    else:
        yield no_card(nvidia)


def no_card(nvidia: Nvidia) -> Finding:
    def finding(status: Status, found: str, do: str = "") -> Finding:
        return Finding(
            check="gpu",
            title="GPUs",
            status=status,
            found=found,
            wanted="none is needed: LPX runs on the processor",
            why="a card that is there can be used by CUDA servers beside LPX",
            do=do,
        )

    if nvidia.pci:
        names = ", ".join(card.name or f"an NVIDIA card at {card.bus_id}" for card in nvidia.pci)
        return finding(Status.NOTE, f"{names}; its driver does not answer", "see the driver below")
    if nvidia.jetson:
        return finding(Status.NOTE, f"the GPU of {nvidia.jetson}, which shares the memory of the system")
    if nvidia.expected:
        return finding(Status.NOTE, "no card answers", "see the driver and the container")
    return finding(Status.OK, "no NVIDIA GPU")


def card_finding(card: Card, nvidia: Nvidia) -> Finding:
    """One card; what the driver does not tell is "unknown", never 0."""
    name = card.name or "a card without a name"
    parts = [name, f"{card.memory_bytes / 2**30:.0f} GiB" if card.memory_bytes else "memory unknown"]
    capability = card.compute_capability or _capability_of(card)
    if capability is None:
        parts.append("compute capability unknown")
    else:
        parts.append(f"compute capability {capability}: {formats(capability)}")
    hot = card.temperature_c is not None and card.temperature_c >= _HOT_C
    if hot:
        parts.append(f"{card.temperature_c} °C")
    index = "" if card.index is None else f" {card.index}"
    return Finding(
        check="gpu",
        title=f"GPU{index}",
        status=Status.WARNING if hot else Status.OK,
        found=", ".join(parts),
        wanted="a format that the card computes in: FP8 from 8.9, BF16 from 8.0, INT8 from 6.1",
        why="weights in other formats save memory and are unpacked before they are multiplied",
        do="clean the fans, and look at the airflow: a hot card lowers its clock" if hot else "",
    )


def _capability_of(card: Card) -> str | None:
    """From the table, where an old driver does not tell."""
    listed = find(card.name, card.memory_bytes) if card.name else None
    return listed.compute_capability if listed else None


def formats(capability: str) -> str:
    """Which of FP8, INT8, INT4 and BF16 the hardware multiplies."""
    try:
        has = capabilities(capability)
    except ValueError:
        return "formats unknown"
    known = {"FP8": has.fp8, "INT8": has.int8, "INT4": has.int4, "BF16": has.bf16}
    if has.fp4:
        known = {"FP4": True, **known}
    present = [name for name, there in known.items() if there]
    absent = [name for name, there in known.items() if not there]
    return " ".join(present or ["none of them"]) + (f"; no {' '.join(absent)}" if absent else "")


def mig(nvidia: Nvidia) -> Iterator[Finding]:
    parts = [f"GPU {each.index}: {', '.join(each.slices)}" for each in nvidia.slices if each.slices]
    enabled = [card for card in nvidia.cards if card.mig]
    if not parts and not enabled:
        return
    empty = enabled and not parts
    yield Finding(
        check="gpu",
        title="MIG",
        status=Status.WARNING if empty else Status.NOTE,
        found="; ".join(parts) if parts else "on, without a slice",
        wanted="off, or with slices",
        why="a program sees one slice and its memory, not the card's; without slices nothing can run",
        do="sudo nvidia-smi mig -cgi 9 -C makes slices; sudo nvidia-smi -mig 0 turns it off" if empty else "",
    )


def persistence(nvidia: Nvidia) -> Iterator[Finding]:
    off = [card for card in nvidia.cards if card.persistence is False]
    if not off or nvidia.is_wsl:
        return
    yield Finding(
        check="gpu",
        title="persistence",
        status=Status.NOTE,
        found=f"off on {len(off)} of {len(nvidia.cards)}",
        wanted="on, where programs come and go",
        why="without it the driver sets the card up again for each first program, which takes a second or more",
        do="sudo nvidia-smi -pm 1",
        fixes=(
            Fix(
                title="Keep the driver set up between programs (until the next restart)",
                needed="nvidia-smi --query-gpu=persistence_mode --format=csv,noheader | grep -q Disabled",
                commands=("as_root nvidia-smi -pm 1",),
            ),
        ),
    )
