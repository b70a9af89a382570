"""Texts of nvidia-smi: rows of a query, the list of cards with their slices, the head of the table."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Asked for in this order. Old drivers do not know the last ones, and refuse the whole query for one unknown field.
FIELDS = (
    "index",
    "name",
    "pci.bus_id",
    "driver_version",
    "memory.total",
    "memory.used",
    "temperature.gpu",
    "persistence_mode",
    "mig.mode.current",
    "compute_cap",
)
OLD_FIELDS = FIELDS[:8]
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU; None is what the driver does not tell."""

    name: str | None
    index: int | None = None
    bus_id: str | None = None
    memory_bytes: int | None = None
    used_bytes: int | None = None
    compute_capability: str | None = None
    mig: bool | None = None
    persistence: bool | None = None
    temperature_c: int | None = None


@dataclass(frozen=True, slots=True)
class QueryRows:
    cards: tuple[Card, ...]
    driver: str | None
    lost: tuple[str, ...]  # lines about cards that do not answer


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of `nvidia-smi -L` with the slices below it."""

    index: int
    name: str
    slices: tuple[str, ...]  # profiles such as "3g.20gb"


def query_command(fields: tuple[str, ...] = FIELDS) -> tuple[str, ...]:
    return ("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")


def parse_query(text: str, fields: tuple[str, ...] = FIELDS) -> QueryRows:
    """Line by line: good rows are kept beside lines that report a lost card."""
    cards, lost, driver = [], [], None
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(fields):
            values = dict(zip(fields, parts, strict=True))
            if values.get("index", "").isdigit():
                driver = driver or _known(values.get("driver_version"))
                cards.append(_card(values))
                continue
        if re.search(r"unable to determine the device handle|gpu is lost", line, re.IGNORECASE):
            lost.append(line.strip())
    return QueryRows(tuple(cards), driver, tuple(lost))


def _card(values: dict[str, str]) -> Card:
    total, used = _number(values.get("memory.total")), _number(values.get("memory.used"))
    return Card(
        name=_known(values.get("name")),
        index=_number(values.get("index")),
        bus_id=_known(values.get("pci.bus_id")),
        memory_bytes=total * _MIB if total is not None else None,
        used_bytes=used * _MIB if used is not None else None,
        compute_capability=_capability(values.get("compute_cap")),
        mig=_switch(values.get("mig.mode.current")),
        persistence=_switch(values.get("persistence_mode")),
        temperature_c=_number(values.get("temperature.gpu")),
    )


def _known(text: str | None) -> str | None:
    """The value, unless it is one of the ways in which the tool says that there is none."""
    if text is None or not text or text.startswith("[") or text.upper() in ("N/A", "UNKNOWN ERROR", "ERR!"):
        return None
    return text


def _number(text: str | None) -> int | None:
    match = re.match(r"(\d{1,12})(?:\.\d+)?(?:\s*MiB)?$", _known(text) or "", re.ASCII)
    return int(match[1]) if match else None


def _capability(text: str | None) -> str | None:
    return text if text is not None and re.fullmatch(r"\d{1,2}\.\d", text, re.ASCII) else None


def _switch(text: str | None) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(text or "")


def parse_list(text: str) -> list[Listed]:
    """`nvidia-smi -L`: cards begin a line with "GPU N:", their slices are indented below."""
    found: list[tuple[int, str, list[str]]] = []
    for line in text.splitlines():
        card = re.match(r"GPU (\d+):\s*(.*?)\s*(?:\(UUID: [^)]*\))?\s*$", line)
        part = re.match(r"\s+MIG\s+(\S+)\s+Device\s+\d+:", line)
        if card:
            found.append((int(card[1]), card[2], []))
        elif part and found:
            found[-1][2].append(part[1])
    return [Listed(index, name, tuple(slices)) for index, name, slices in found]


def parse_table_head(text: str) -> tuple[str | None, str | None]:
    """(driver, CUDA) as the head of the plain table has them, in its older and newer spellings."""
    driver = re.search(r"(?:Driver|KMD) Version:\s*(\d+(?:\.\d+)+)", text)
    cuda = re.search(r"CUDA (?:UMD )?Version:\s*(\d+\.\d+)", text)
    return (driver[1] if driver else None, cuda[1] if cuda else None)
