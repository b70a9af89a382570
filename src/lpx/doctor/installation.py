"""LPX itself: the native module and the kernel set that it takes, the command on the path, the extras."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from lpx.doctor import requirements
from lpx.doctor.configuration import ReadProfile, read_profile
from lpx.doctor.finding import Finding, Status
from lpx.doctor.machine import Machine


def check(machine: Machine) -> Iterator[Finding]:
    yield native(machine.environment.get("LPX_ISA") or None, *native_isas())
    yield from profile(read_profile(machine))
    yield command(machine.which("lpx"), machine.interpreter.executable)
    yield from extras({name: _is_there(name) for name in requirements.extras()})


def native_isas() -> tuple[list[str], str]:
    """Kernel sets that the native module offers here, best first, and why there are none."""
    try:
        from lpx import _native

        return _native.available_isas(), ""
    except ImportError as error:
        return [], str(error)


def native(asked: str | None, isas: Sequence[str], problem: str) -> Finding:
    def finding(status: Status, found: str, do: str = "", page: str = "") -> Finding:
        return Finding(
            check="lpx",
            title="native module",
            status=status,
            found=found,
            wanted="the best kernel set of this processor in use",
            why="all the arithmetic runs in it",
            do=do,
            page=page,
        )

    if not isas:
        return finding(
            Status.ERROR,
            f"it cannot be loaded: {problem}",
            "install LPX again with this Python: pip install --force-reinstall --no-deps .",
            "LPX-E081",
        )
    best = isas[0]
    if asked is not None and asked not in isas:
        return finding(
            Status.ERROR,
            f"LPX_ISA={asked}, which is none of {', '.join(isas)}",
            "unset LPX_ISA",
            "LPX-E002",
        )
    if asked not in (None, best):
        return finding(
            Status.WARNING, f"{asked}, because LPX_ISA says so; {best} is there", "unset LPX_ISA", "LPX-E050"
        )
    if best == "portable":
        return finding(
            Status.WARNING,
            "portable kernels only",
            "see the instruction sets above: this processor, or its virtual machine, has no AVX2",
            "LPX-E050",
        )
    return finding(Status.OK, f"LPX {installed_version()}, kernel set {best}")


def installed_version() -> str:
    from importlib import metadata

    try:
        return metadata.version("lpx")
    except metadata.PackageNotFoundError:
        return "from its source folder"


def profile(read: ReadProfile | None) -> Iterator[Finding]:
    """Nothing where no profile is used."""
    if read is None:
        return
    yield Finding(
        check="lpx",
        title="profile",
        status=Status.ERROR if read.problem else Status.OK,
        found=read.problem or f"{read.path}: {len(read.values)} settings",
        wanted="a profile that commands take",
        why="a command with a profile that is wrong does not start",
        do="correct it; lpx tune writes one" if read.problem else "",
        page="LPX-E093" if read.problem else "",
    )


def command(on_path: str | None, python: str) -> Finding:
    """Whether `lpx` in a shell is the one that is looked at."""

    def finding(status: Status, found: str, do: str = "") -> Finding:
        return Finding(
            check="lpx",
            title="lpx command",
            status=status,
            found=found,
            wanted="the lpx of this Python first on PATH",
            why="another installation may be older, or use another model folder",
            do=do,
            page="LPX-E047" if do else "",
        )

    folder = os.path.dirname(python)
    if on_path is None:
        return finding(Status.NOTE, f"not on PATH; {python} -m lpx works")
    # As it is called, and as a link in another folder leads to it.
    homes = (os.path.realpath(os.path.dirname(on_path)), os.path.dirname(os.path.realpath(on_path)))
    if os.path.realpath(folder) in homes:
        return finding(Status.OK, on_path)
    return finding(
        Status.WARNING,
        f"{on_path} comes first on PATH, and this is {folder}",
        f"call {folder}/lpx, activate its environment, or uninstall the other one",
    )


def _is_there(extra: str) -> bool:
    return all(each.fits for each in requirements.installed_requirements(extra) or ())


def extras(there: Mapping[str, bool]) -> Iterator[Finding]:
    """`there` says of each extra whether all of its packages are installed."""
    if not there:
        return
    present = [name for name, installed in there.items() if installed]
    absent = [name for name, installed in there.items() if not installed]
    yield Finding(
        check="lpx",
        title="extras",
        status=Status.OK,
        found=(", ".join(present) or "none") + (f"; not installed: {', '.join(absent)}" if absent else ""),
        wanted="those that you use",
        why="some commands need more packages: pip install 'lpx[NAME]'",
    )
