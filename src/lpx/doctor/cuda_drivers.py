"""Which driver runs which CUDA: the table `cuda_drivers.json`, and what follows from it.

A driver runs everything that was built for its own CUDA version or an older one. From CUDA 11 on it also runs newer
toolkits of the same major version ("minor version compatibility"), but for features that need the newer driver and for
PTX, which only a driver at least as new as the toolkit compiles. Across major versions there is only the package
cuda-compat ("forward compatibility"), for cards of data centres and a few workstations, never for GeForce.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).with_name("cuda_drivers.json")

Version = tuple[int, ...]


class Fit(Enum):
    FULL = "full"  # the driver is at least as new as the toolkit's own
    MINOR = "minor"  # it runs by minor version compatibility
    TOO_OLD = "too old"
    UNKNOWN = "unknown"  # a version that the table does not reach


@dataclass(frozen=True, slots=True)
class Judgement:
    fit: Fit
    needed: str = ""  # the oldest driver that runs this CUDA at all
    wanted: str = ""  # the driver of the toolkit itself


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return table


def parse_version(text: str) -> Version | None:
    """`550.54.14` as numbers; None when it is no version."""
    match = re.fullmatch(r"\s*v?(\d{1,5}(?:\.\d{1,5}){0,3})\s*", text, re.ASCII)
    return tuple(int(part) for part in match[1].split(".")) if match else None


def judge(cuda: str, driver: str) -> Judgement:
    """Whether `driver` ("550.54.14") runs what was built with `cuda` ("12.4")."""
    wanted_cuda, have = parse_version(cuda), parse_version(driver)
    if wanted_cuda is None or have is None:
        return Judgement(Fit.UNKNOWN)
    needed = _table()["minor_version"].get(str(wanted_cuda[0]), "")
    own = _table()["toolkits"].get(".".join(str(part) for part in wanted_cuda[:2]), "")
    if not needed:
        oldest = min(int(major) for major in _table()["minor_version"])
        return Judgement(Fit.FULL if wanted_cuda[0] < oldest else Fit.UNKNOWN)
    if have < (parse_version(needed) or ()):
        return Judgement(Fit.TOO_OLD, needed, own)
    if not own:
        return Judgement(Fit.MINOR, needed)
    return Judgement(Fit.FULL if have >= (parse_version(own) or ()) else Fit.MINOR, needed, own)


def newest_cuda(driver: str) -> str | None:
    """The newest CUDA version of the table that `driver` runs in full; None when it is older than all."""
    have = parse_version(driver)
    if have is None:
        return None
    found = [cuda for cuda, own in _table()["toolkits"].items() if (parse_version(own) or ()) <= have]
    return max(found, key=lambda cuda: parse_version(cuda) or (), default=None)


def driver_for(cuda: str) -> str:
    """The driver that came with a toolkit, or the oldest of its major version; empty when neither is known."""
    version = parse_version(cuda)
    if version is None:
        return ""
    own: str = _table()["toolkits"].get(".".join(str(part) for part in version[:2]), "")
    least: str = _table()["minor_version"].get(str(version[0]), "")
    return own or least


def least_compute_capability(cuda: str) -> str | None:
    """The oldest cards that a toolkit builds for."""
    version = parse_version(cuda)
    return _table()["least_compute_capability"].get(str(version[0])) if version else None
