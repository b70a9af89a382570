"""The Python that runs LPX: its version, its environment, and whether the packages in it go together."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from lpx.doctor.finding import Finding, Status
from lpx.doctor.machine import Interpreter, Machine
from lpx.doctor.requirements import Requirement, installed_requirements

OLDEST, NEWEST_TESTED = (3, 10), (3, 13)


def check(machine: Machine) -> Iterator[Finding]:
    yield version(machine.interpreter)
    yield environment(machine)
    yield packages(installed_requirements())


def version(python: Interpreter) -> Finding:
    text = ".".join(str(part) for part in python.version)

    def finding(status: Status, found: str, do: str = "") -> Finding:
        return Finding(
            check="python",
            title="version",
            status=status,
            found=found,
            wanted="Python {}.{} to {}.{}, 64-bit".format(*OLDEST, *NEWEST_TESTED),
            why="LPX is tested with these",
            do=do,
        )

    if python.version[:2] < OLDEST or not python.is_64_bit:
        return finding(
            Status.ERROR,
            text + ("" if python.is_64_bit else ", 32-bit"),
            "make a virtual environment with a newer, 64-bit Python and install LPX there",
        )
    if python.version[:2] > NEWEST_TESTED:
        return finding(Status.NOTE, f"{text}, newer than what LPX is tested with")
    return finding(Status.OK, text)


def environment(machine: Machine) -> Finding:
    python = machine.interpreter

    def finding(status: Status, found: str, do: str = "") -> Finding:
        return Finding(
            check="python",
            title="environment",
            status=status,
            found=found,
            wanted="a virtual environment or a container of its own",
            why="packages that others install or upgrade can break LPX, and the other way round",
            do=do,
        )

    if python.prefix != python.base_prefix:
        return finding(Status.OK, f"virtual environment {python.prefix}")
    if machine.environment.get("CONDA_PREFIX") == python.prefix:
        return finding(Status.OK, f"conda environment {python.prefix}")
    if machine.exists("/.dockerenv") or machine.exists("/run/.containerenv"):
        return finding(Status.OK, f"the Python of this container, {python.executable}")
    return finding(
        Status.NOTE,
        f"the system's Python, {python.executable}",
        "python3 -m venv .venv && .venv/bin/pip install lpx",
    )


def packages(requirements: Sequence[Requirement] | None) -> Finding:
    def finding(status: Status, found: str, do: str = "") -> Finding:
        return Finding(
            check="python",
            title="packages",
            status=status,
            found=found,
            wanted="what LPX requires, in versions that fit",
            why="another package may have brought a version that LPX does not work with",
            do=do,
        )

    if not requirements:
        return finding(Status.NOTE, "LPX runs from its source folder; its requirements are not recorded here")
    bad = [each for each in requirements if not each.fits]
    if not bad:
        return finding(Status.OK, f"all {len(requirements)} requirements fit")
    said = "; ".join(f"{each.name} {each.wanted} wanted, {each.installed or 'nothing'} installed" for each in bad)
    names = " ".join(f"'{each.name}{each.wanted}'" for each in bad)
    return finding(Status.ERROR, said, f"{sys.executable} -m pip install {names}")
