"""What a check says: found, wanted, why it matters, what to do; and how a set of findings comes to an exit code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """How a finding is meant. `NOTE` is worth knowing and no fault; `UNKNOWN` could not be found out."""

    OK = "ok"
    NOTE = "note"
    UNKNOWN = "unknown"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One step of a fix script, in POSIX shell: `commands` run where `needed`, a shell condition, is true.

    A `risky` step ends processes, restarts the machine or changes how it starts: the script shows it, commented out.
    """

    title: str
    needed: str
    commands: tuple[str, ...]
    risky: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    check: str  # name of the check, as the command line takes it
    title: str
    status: Status
    found: str
    wanted: str
    why: str
    do: str = ""  # empty where there is nothing to do
    page: str = ""  # code of the page that says more, such as "LPX-E040"
    fixes: tuple[Fix, ...] = ()


def exit_code(findings: Iterable[Finding]) -> int:
    """2 with an error, 1 with a warning or something that could not be found out, else 0."""
    statuses = {finding.status for finding in findings}
    if Status.ERROR in statuses:
        return 2
    return 1 if statuses & {Status.WARNING, Status.UNKNOWN} else 0
