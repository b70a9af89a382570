"""All checks by name, and running them at once."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from lpx.addresses import without_secrets
from lpx.doctor.finding import Finding, Status
from lpx.doctor.machine import Machine
from lpx.errors import ConfigError

# Name of a check: the module with its `check(machine)`, and what it looks at. The order is that of the report.
CHECKS = {
    "cpu": ("lpx.doctor.cpu", "instruction sets, cores, limits, huge pages, frequency, NUMA"),
    "memory": ("lpx.doctor.memory", "memory that models can take"),
    "disk": ("lpx.doctor.disk", "room where models lie"),
    "ports": ("lpx.doctor.ports", "ports 8000, 8080, 7860 and the configured one, and who holds them"),
    "python": ("lpx.doctor.python", "version, virtual environment, packages"),
    "lpx": ("lpx.doctor.installation", "native module, kernel set, extras"),
    "compiler": ("lpx.doctor.compiler", "what building LPX needs"),
    "leftovers": ("lpx.doctor.leftovers", "old processes, unfinished pulls, old installations"),
    "container": ("lpx.doctor.container", "whether this is a container, and whether it sees the GPU"),
    "gpu": ("lpx.doctor.gpu", "cards, their memory and the number formats that they compute in"),
    "driver": ("lpx.doctor.driver", "whether the driver runs, and which CUDA it can run"),
    "kernel": ("lpx.doctor.kernel", "nouveau and Secure Boot"),
    "docker": ("lpx.doctor.docker", "Docker and the NVIDIA container toolkit"),
    "torch": ("lpx.doctor.torch", "CUDA of PyTorch, with one tiny kernel"),
}


@dataclass(frozen=True, slots=True)
class Report:
    findings: tuple[Finding, ...]  # in the order of the checks
    seconds: float


def run_checks(machine: Machine, names: Sequence[str] = ()) -> Report:
    """Run the named checks, or all, at once. A check that fails is an "unknown" finding. Raises ConfigError for a name
    that is none."""
    for name in names:
        if name not in CHECKS:
            raise ConfigError(f"there is no check {name!r}; the checks are {', '.join(CHECKS)}")
    chosen = [name for name in CHECKS if not names or name in names]
    started = time.monotonic()
    with ThreadPoolExecutor(max_workers=len(chosen)) as pool:
        found = list(pool.map(lambda name: _run_check(name, machine), chosen))
    return Report(tuple(finding for each in found for finding in each), time.monotonic() - started)


def _run_check(name: str, machine: Machine) -> list[Finding]:
    try:
        return [_showable(finding) for finding in importlib.import_module(CHECKS[name][0]).check(machine)]
    except Exception as error:  # whatever a machine says, the other checks are worth having
        return [
            Finding(
                check=name,
                title=CHECKS[name][1],
                status=Status.UNKNOWN,
                found=without_secrets(f"the check failed: {type(error).__name__}: {error}"),
                wanted="an answer",
                why="what cannot be found out may be wrong",
                do="report this with the output of lpx doctor --json",
            )
        ]


def _showable(finding: Finding) -> Finding:
    """Reports are shown to others, and what daemons and files say may hold addresses with passwords."""
    return replace(finding, found=without_secrets(finding.found), do=without_secrets(finding.do))
