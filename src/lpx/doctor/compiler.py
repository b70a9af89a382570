"""What building LPX from source needs: a C++20 compiler and the headers of this Python."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator

from lpx.doctor.finding import Finding, Fix, Status
from lpx.doctor.machine import Machine, Output

_LEAST = {"g++": 11, "clang++": 14}
_PAGE = "LPX-E080"


def check(machine: Machine) -> Iterator[Finding]:
    chosen = machine.environment.get("CXX", "").split(" ")[0]
    names = [chosen] if chosen else ["g++", "clang++"]
    yield compiler({name: machine.run(name, "--version") for name in names})
    yield headers(machine)


def compiler(outputs: dict[str, Output]) -> Finding:
    """`outputs` is what each compiler says to --version."""

    def finding(status: Status, found: str, do: str = "", fixes: tuple[Fix, ...] = ()) -> Finding:
        return Finding(
            check="compiler",
            title="C++ compiler",
            status=status,
            found=found,
            wanted="g++ 11 or later, or clang 14 or later",
            why="installing or upgrading LPX compiles its kernels; running it does not need a compiler",
            do=do,
            page=_PAGE if do else "",
            fixes=fixes,
        )

    install = Fix(
        title="Install a C++ compiler",
        needed="! command -v g++ >/dev/null",
        commands=("install_packages 'apt-get:g++' 'dnf:gcc-c++' 'zypper:gcc-c++' 'pacman:gcc'",),
    )
    advice = "sudo apt install g++ (Fedora: dnf install gcc-c++)"
    there = {name: output for name, output in outputs.items() if not output.missing}
    if not there:
        return finding(Status.WARNING, f"none ({', '.join(outputs)})", advice, (install,))
    versions = {name: compiler_version(output.stdout) for name, output in there.items()}
    for name, number in versions.items():
        least = _LEAST["clang++" if "clang" in there[name].stdout else "g++"]
        if number is not None and number >= least:
            return finding(Status.OK, there[name].stdout.strip().splitlines()[0])
    known = {name: number for name, number in versions.items() if number is not None}
    if not known:
        return finding(Status.UNKNOWN, f"{', '.join(there)} does not say its version", advice)
    old = ", ".join(f"{name} {number}" for name, number in known.items())
    return finding(Status.WARNING, f"{old} is too old", "install a newer one and name it: CXX=g++-12 pip install .")


def compiler_version(text: str) -> int | None:
    """Major version in what `g++ --version` or `clang++ --version` prints."""
    first = text.strip().splitlines()[0] if text.strip() else ""
    match = re.search(r"clang version (\d+)", first) or re.search(r"\)\s+(\d+)\.\d", first)
    match = match or re.search(r"\b(\d+)\.\d+\.\d+\b", first)
    return int(match[1]) if match else None


def headers(machine: Machine) -> Finding:
    header = f"{sysconfig.get_path('include')}/Python.h"
    there = machine.exists(header)
    version = "{}.{}".format(*machine.interpreter.version[:2])
    fix = Fix(
        title="Install the headers of Python",
        needed=f"[ ! -e {header} ]",
        commands=("install_packages 'apt-get:python3-dev' 'dnf:python3-devel' 'zypper:python3-devel' 'pacman:python'",),
    )
    return Finding(
        check="compiler",
        title="Python headers",
        status=Status.OK if there else Status.WARNING,
        found=header if there else f"{header} is missing",
        wanted=f"Python.h of Python {version}",
        why="installing or upgrading LPX compiles against them",
        do="" if there else "sudo apt install python3-dev (Fedora: dnf install python3-devel)",
        page="" if there else _PAGE,
        fixes=() if there else (fix,),
    )
