"""The NVIDIA driver: whether it runs, why not, and which CUDA it can run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lpx.doctor.container import container_kind
from lpx.doctor.cuda_drivers import Fit, judge, newest_cuda
from lpx.doctor.finding import Finding, Fix, Status
from lpx.doctor.kernel import is_nouveau_loaded, secure_boot_state
from lpx.doctor.machine import Machine
from lpx.doctor.messages import Meaning, recognise
from lpx.doctor.nvidia import Nvidia, read_nvidia

_INSTALL = (
    "Ubuntu: sudo ubuntu-drivers install; Debian: sudo apt install nvidia-driver; Fedora: akmod-nvidia of RPM Fusion; "
    "then restart"
)


def check(machine: Machine) -> Iterator[Finding]:
    nvidia = read_nvidia(machine)
    if not nvidia.expected:
        return
    # A container that was given no GPU has no driver to mend: what there is to say, the check of the container says.
    if nvidia.works or nvidia.said or nvidia.timed_out or container_kind(machine) is None:
        yield state(machine, nvidia)
    yield from lost_cards(nvidia)
    yield from toolkit(machine, nvidia)


def _finding(status: Status, found: str, do: str = "", page: str = "", fixes: tuple[Fix, ...] = ()) -> Finding:
    return Finding(
        check="driver",
        title="NVIDIA driver",
        status=status,
        found=found,
        wanted="a driver whose library and kernel module go together and answer",
        why="without it every CUDA program fails, or goes to the processor without saying so",
        do=do,
        page=page,
        fixes=fixes,
    )


def state(machine: Machine, nvidia: Nvidia) -> Finding:
    """Whether the driver answers, and else the cause."""
    if nvidia.works:
        return _answers(nvidia)
    if nvidia.timed_out:
        return _finding(
            Status.ERROR,
            f"{nvidia.said} within 15 s",
            "a card hangs: dmesg | grep -i -e NVRM -e Xid, then restart the machine",
            "LPX-E062",
        )
    meanings = recognise(nvidia.said)
    if meanings:
        return _explained(machine, nvidia, meanings[0])
    if nvidia.is_wsl:
        return _finding(
            Status.WARNING,
            "WSL 2 does not show the GPU",
            "install the driver in Windows, never a Linux driver in WSL; then wsl --update and wsl --shutdown",
            "LPX-E062",
        )
    if nvidia.jetson:
        return _finding(Status.NOTE, f"{nvidia.jetson}: its driver is part of JetPack; older ones have no nvidia-smi")
    if nvidia.said.strip():
        return _finding(Status.UNKNOWN, f"not understood: {_first_line(nvidia.said)}", "nvidia-smi", "LPX-E062")
    if nvidia.module:
        return _finding(
            Status.WARNING,
            f"the kernel runs driver {nvidia.module}, and nvidia-smi is not here",
            "in a container: start it with --gpus all; else install the driver's tools (nvidia-utils)",
            "LPX-E060",
        )
    held = sorted({card.driver for card in nvidia.pci if card.driver})
    if held == ["vfio-pci"]:
        return _finding(Status.NOTE, "the card is given to a virtual machine (vfio-pci)")
    return _finding(
        Status.WARNING,
        "not installed" + (f"; {', '.join(held)} has the card" if held else "; nvidia-smi is not here"),
        _INSTALL,
        "LPX-E064" if "nouveau" in held else "LPX-E062",
    )


def _answers(nvidia: Nvidia) -> Finding:
    version = nvidia.driver or nvidia.module
    if version is None:
        return _finding(Status.UNKNOWN, f"cards answer through {nvidia.source}, and no version is told", "nvidia-smi")
    if nvidia.driver and nvidia.module and nvidia.driver != nvidia.module:
        return _finding(
            Status.WARNING,
            f"libraries of {nvidia.driver}, kernel module of {nvidia.module}",
            "restart the machine, so that the kernel loads the new module",
            "LPX-E063",
        )
    cuda = nvidia.cuda or newest_cuda(version)
    return _finding(Status.OK, f"{version}" + (f", runs CUDA up to {cuda}" if cuda else ""))


def _explained(machine: Machine, nvidia: Nvidia, meaning: Meaning) -> Finding:
    if meaning.key == "no-communication":
        meaning = _why_no_module(machine, nvidia) or meaning
    found = f"{_first_line(nvidia.said)}: {meaning.cause}"
    if meaning.key == "library-mismatch" and nvidia.module:
        found += f"; the loaded module is {nvidia.module}"
    restart = Fix(
        title="Restart the machine", needed="! nvidia-smi >/dev/null", commands=("as_root reboot",), risky=True
    )
    fixes = (restart,) if meaning.key in ("library-mismatch", "module-mismatch", "gpu-lost", "device-handle") else ()
    # Tools of a driver without any trace of a card are no fault of this machine.
    has_card = nvidia.pci or nvidia.module or nvidia.devices
    return _finding(Status.ERROR if has_card else Status.WARNING, found, meaning.do, meaning.page, fixes)


def _why_no_module(machine: Machine, nvidia: Nvidia) -> Meaning | None:
    """The cause behind "couldn't communicate with the NVIDIA driver", from the kernel's own state and log."""
    log = recognise(machine.run("dmesg").stdout)
    if is_nouveau_loaded(machine) or any(each.key == "nouveau" for each in log):
        return Meaning(
            "nouveau",
            "nouveau has the card, so that the NVIDIA module cannot take it",
            "blacklist nouveau (see below), rebuild the initial file system, restart",
            "LPX-E064",
        )
    rejected = next((each for each in log if each.key == "key-rejected"), None)
    if rejected is not None:
        return rejected
    release = machine.read("/proc/sys/kernel/osrelease") or "this kernel"
    built = machine.run("modinfo", "-F", "version", "nvidia")
    if built.code not in (0, None) and "not found" in built.text:
        return Meaning(
            "not-built",
            f"the module is not built for the kernel {release}",
            f"sudo apt install linux-headers-{release} && sudo dkms autoinstall && sudo modprobe nvidia",
            "LPX-E062",
        )
    if secure_boot_state(machine) is True:
        return Meaning(
            "secure-boot",
            "the module is not loaded, and Secure Boot is on: its key is probably not enrolled",
            "sudo modprobe nvidia; when it says that the key was rejected, enrol the key with mokutil --import",
            "LPX-E065",
        )
    return None


def lost_cards(nvidia: Nvidia) -> Iterator[Finding]:
    if not nvidia.lost:
        return
    yield Finding(
        check="driver",
        title="lost cards",
        status=Status.ERROR,
        found=f"{len(nvidia.cards)} answer; {'; '.join(nvidia.lost)}",
        wanted="every card answers",
        why="programs that take all cards fail, though the others work",
        do="restart the machine; if it comes again, look at power, heat and seat (dmesg | grep -i -e NVRM -e Xid)",
        page="LPX-E062",
    )


def toolkit(machine: Machine, nvidia: Nvidia) -> Iterator[Finding]:
    """The CUDA toolkit that is installed, against the driver."""
    driver = nvidia.driver or nvidia.module
    cuda = toolkit_version(machine)
    if cuda is None or driver is None:
        return
    yield judged(cuda, driver, check="driver", title="CUDA toolkit", what=f"CUDA toolkit {cuda}")


def toolkit_version(machine: Machine) -> str | None:
    text = machine.read("/usr/local/cuda/version.json") or ""
    match = re.search(r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"(\d+\.\d+)', text)
    if match is None:
        match = re.search(r"release (\d+\.\d+)", machine.run("nvcc", "--version").stdout)
    return match[1] if match else None


def judged(cuda: str, driver: str, *, check: str, title: str, what: str) -> Finding:
    """Whether `driver` runs what was built with `cuda`, by the table."""

    def finding(status: Status, found: str, do: str = "") -> Finding:
        return Finding(
            check=check,
            title=title,
            status=status,
            found=found,
            wanted="a driver at least as new as the CUDA of the programs",
            why="a driver that is too old refuses them, or they go to the processor without saying so",
            do=do,
            page="LPX-E061" if do else "",
        )

    result = judge(cuda, driver)
    if result.fit is Fit.TOO_OLD:
        newest = newest_cuda(driver)
        least = f" (at least {result.needed})" if result.wanted not in ("", result.needed) else ""
        older = f", or take a build for CUDA {newest} or older" if newest else ""
        return finding(
            Status.ERROR,
            f"{what}, which driver {driver} is too old for",
            f"upgrade the driver to {result.wanted or result.needed} or later{least}{older}; "
            "cuda-compat helps on cards of data centres only",
        )
    if result.fit is Fit.MINOR:
        own = f" (its own is {result.wanted})" if result.wanted else ""
        return finding(
            Status.NOTE, f"{what} runs on driver {driver} by minor version compatibility{own}: no PTX, no new features"
        )
    if result.fit is Fit.UNKNOWN:
        return finding(Status.UNKNOWN, f"{what} and driver {driver} are not in the table", "nvidia-smi, CUDA's notes")
    return finding(Status.OK, f"{what} on driver {driver}")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:160]
