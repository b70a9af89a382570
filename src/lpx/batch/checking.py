"""What can be said about an input without sending anything."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from time import sleep
from typing import Any

from lpx.batch.input_file import InputFile
from lpx.batch.line_request import LineError, request_of

_SHOWN = 20  # faults that are listed


@dataclass(frozen=True, slots=True)
class Fault:
    line: int  # number in the file, from 1
    code: str
    message: str


@dataclass(slots=True)
class CheckReport:
    records: int = 0
    blank: int = 0
    endpoints: Counter[str] = field(default_factory=Counter)
    faulty: int = 0  # lines that are no request
    duplicates: int = 0  # lines whose custom_id an earlier line has
    without_custom_id: int = 0
    faults: list[Fault] = field(default_factory=list)  # the first ones, duplicates included

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("records", "blank", "faulty", "duplicates", "without_custom_id")},
            "endpoints": dict(self.endpoints),
            "faults": [asdict(fault) for fault in self.faults],
        }


def check_input(source: InputFile, endpoint: str | None = None) -> CheckReport:
    """Look at every line. Memory: sixteen bytes (and what a set takes) for each custom_id."""
    counted = source.count()
    report = CheckReport(counted.records, counted.blank)
    seen: set[bytes] = set()
    for line in source.lines():
        if not line.index % 32:
            sleep(0)  # beside an engine in this process: it gets the interpreter's lock now
        try:
            request = request_of(line, endpoint)
        except LineError as exc:
            report.faulty += 1
            custom_id = exc.custom_id
            _add(report, Fault(line.number, exc.code, str(exc)))
        else:
            report.endpoints[request.url] += 1
            custom_id = request.custom_id
            report.without_custom_id += custom_id is None
        if custom_id is not None:
            digest = blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if digest in seen:
                report.duplicates += 1
                _add(report, Fault(line.number, "duplicate_custom_id", "An earlier line has the same custom_id."))
            seen.add(digest)
    return report


def _add(report: CheckReport, fault: Fault) -> None:
    if len(report.faults) < _SHOWN:
        report.faults.append(fault)
