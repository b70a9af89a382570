"""PyTorch, where it is installed: whether its CUDA, the driver and the card go together, tried with one tiny kernel."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from lpx.doctor.cuda_drivers import least_compute_capability, parse_version
from lpx.doctor.driver import judged
from lpx.doctor.finding import Finding, Status
from lpx.doctor.machine import Machine, Output
from lpx.doctor.messages import recognise
from lpx.doctor.nvidia import Nvidia, read_nvidia

_KERNEL_LIMIT_S = 60.0  # the first import of PyTorch reads gigabytes
_KERNEL = """
import json, torch
found = {"available": torch.cuda.is_available(), "archs": torch.cuda.get_arch_list()}
try:
    found["sum"] = float((torch.ones(8, device="cuda") * 2).sum().item())
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class TorchBuild:
    version: str
    cuda: str | None  # None for a build that runs on the processor only
    hip: str | None = None


def check(machine: Machine) -> Iterator[Finding]:
    nvidia = read_nvidia(machine)
    if not nvidia.expected:
        return
    try:
        text = (machine.site_packages / "torch" / "version.py").read_text(encoding="utf-8")
    except OSError:
        return
    build = parse_version_file(text)
    if build is None:
        yield _finding(
            Status.UNKNOWN, "its version is not understood", "python -c 'import torch; print(torch.version.cuda)'"
        )
        return
    yield build_finding(build, nvidia)
    if build.cuda and nvidia.works:
        yield kernel_finding(machine.run(machine.interpreter.executable, "-c", _KERNEL, limit_s=_KERNEL_LIMIT_S))


def parse_version_file(text: str) -> TorchBuild | None:
    """torch/version.py, which says what the build is without an import of a second and more."""
    values = dict(re.findall(r"^(__version__|cuda|hip)\s*(?::[^=\n]+)?=\s*'([^']*)'", text, re.MULTILINE))
    version = values.get("__version__")
    return TorchBuild(version, values.get("cuda"), values.get("hip")) if version else None


def _finding(status: Status, found: str, do: str = "", page: str = "", title: str = "PyTorch") -> Finding:
    return Finding(
        check="torch",
        title=title,
        status=status,
        found=found,
        wanted="a build for a CUDA that the driver runs, with code for this card",
        why="a build without it runs on the processor, many times slower, and often does not say so",
        do=do,
        page=page,
    )


def build_finding(build: TorchBuild, nvidia: Nvidia) -> Finding:
    what = f"PyTorch {build.version}"
    if build.cuda is None:
        if build.hip:
            return _finding(Status.WARNING, f"{what} is built for AMD's ROCm {build.hip}", "install a CUDA build")
        return _finding(
            Status.WARNING,
            f"{what} is built for the processor only, and there is an NVIDIA card",
            "install a CUDA build: the selector on pytorch.org names the index for your driver",
            "LPX-E050",
        )
    least = parse_version(least_compute_capability(build.cuda) or "")
    for card in nvidia.cards:
        have = parse_version(card.compute_capability or "")
        if least and have and have < least:
            return _finding(
                Status.ERROR,
                f"{what} for CUDA {build.cuda} has no code for {card.name} (compute capability "
                f"{card.compute_capability})",
                "install a build for an older CUDA (12 for cards from 5.0 to 7.2)",
                "LPX-E067",
            )
    driver = nvidia.driver or nvidia.module
    if driver is None:
        return _finding(Status.NOTE, f"{what} for CUDA {build.cuda}")
    return judged(build.cuda, driver, check="torch", title="PyTorch", what=f"{what} for CUDA {build.cuda}")


def kernel_finding(output: Output) -> Finding:
    """What came of one addition on the card: device counts are right even where nothing can run."""

    def finding(status: Status, found: str, do: str = "", page: str = "") -> Finding:
        return _finding(status, found, do, page, title="PyTorch on the GPU")

    if output.problem == "timeout":
        return finding(
            Status.ERROR, f"no answer within {_KERNEL_LIMIT_S:.0f} s", "dmesg | grep -i -e NVRM -e Xid", "LPX-E062"
        )
    try:
        result = json.loads(output.stdout.strip().splitlines()[-1])
        error, total = result.get("error"), result.get("sum")
        archs = " ".join(result.get("archs") or ())
    except (ValueError, IndexError, AttributeError, TypeError):
        error, total, archs = output.text.strip() or output.problem or "no output", None, ""
    if error is None and total == 16.0:
        return finding(Status.OK, "a small kernel ran")
    if error is None:
        return finding(Status.ERROR, f"a small kernel gave {total} instead of 16", "the card or its driver is faulty")
    said = str(error).strip().splitlines()[-1][:200]
    meanings = recognise(str(error))
    if meanings:
        built = f" (built for {archs})" if meanings[0].key == "no-kernel-image" and archs else ""
        return finding(Status.ERROR, f"{said}: {meanings[0].cause}{built}", meanings[0].do, meanings[0].page)
    return finding(Status.ERROR, said, "run the program that prints it with CUDA_LAUNCH_BLOCKING=1", "LPX-E060")
