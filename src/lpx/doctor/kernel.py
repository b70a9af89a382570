"""What keeps the NVIDIA module from loading: nouveau, and Secure Boot."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lpx.doctor.container import container_kind
from lpx.doctor.finding import Finding, Fix, Status
from lpx.doctor.machine import Machine
from lpx.doctor.nvidia import Nvidia, read_nvidia

_MODPROBE_FOLDERS = ("/etc/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d", "/run/modprobe.d")
_BLACKLIST_FILE = "/etc/modprobe.d/blacklist-nouveau.conf"
_EFI_VARIABLE = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def check(machine: Machine) -> Iterator[Finding]:
    nvidia = read_nvidia(machine)
    # Without a card on the bus there is nothing to hold; a container and WSL have the kernel of somebody else.
    if not nvidia.pci or nvidia.is_wsl or container_kind(machine) is not None:
        return
    yield nouveau(nvidia, is_nouveau_loaded(machine), is_nouveau_blacklisted(machine))
    yield secure_boot(nvidia, machine)


def is_nouveau_loaded(machine: Machine) -> bool:
    return any(line.split(" ")[0] == "nouveau" for line in (machine.read("/proc/modules") or "").splitlines())


def is_nouveau_blacklisted(machine: Machine) -> bool:
    """By modprobe.d, or by the command line of the kernel."""
    if re.search(r"blacklist=(?:\S+,)?nouveau\b", machine.read("/proc/cmdline") or ""):
        return True
    for folder in _MODPROBE_FOLDERS:
        for name in machine.names(folder):
            text = machine.read(f"{folder}/{name}") or "" if name.endswith(".conf") else ""
            if re.search(r"^\s*(?:blacklist\s+nouveau|install\s+nouveau\s+/(?:usr/)?bin/(?:false|true))\b", text, re.M):
                return True
    return False


def nouveau(nvidia: Nvidia, loaded: bool, blacklisted: bool) -> Finding:
    blacklist = Fix(
        title="Keep nouveau from taking the card (takes effect with the next restart)",
        needed=f"! grep -qs '^blacklist nouveau' {_BLACKLIST_FILE}",
        commands=(
            f"printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | as_root tee {_BLACKLIST_FILE} >/dev/null",
            "if command -v update-initramfs >/dev/null; then as_root update-initramfs -u",
            "elif command -v dracut >/dev/null; then as_root dracut --force",
            "elif command -v mkinitcpio >/dev/null; then as_root mkinitcpio -P; fi",
        ),
    )

    def finding(status: Status, found: str, do: str = "", fixes: tuple[Fix, ...] = ()) -> Finding:
        return Finding(
            check="kernel",
            title="nouveau",
            status=status,
            found=found,
            wanted="not loaded and blacklisted, so that the NVIDIA driver gets the card",
            why="only one driver can have a card, and nouveau runs no CUDA",
            do=do,
            page="LPX-E064" if do else "",
            fixes=fixes,
        )

    advice = (
        f"printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee {_BLACKLIST_FILE}; "
        "sudo update-initramfs -u (Fedora: sudo dracut --force); restart"
    )
    if loaded:
        state = "loaded, though blacklisted: the initial file system is older" if blacklisted else "loaded"
        status = Status.ERROR if nvidia.has_tool else Status.WARNING
        return finding(status, state, advice, (blacklist,))
    if not blacklisted and (nvidia.has_tool or nvidia.module):
        return finding(
            Status.WARNING,
            "not loaded, but not blacklisted: it may take the card after an update",
            advice,
            (blacklist,),
        )
    return finding(Status.OK, "not loaded" + (", blacklisted" if blacklisted else ""))


def secure_boot_state(machine: Machine) -> bool | None:
    """Whether Secure Boot is on; None when it cannot be found out."""
    said = parse_mokutil(machine.run("mokutil", "--sb-state").text)
    if said is not None:
        return said
    variable = machine.read_bytes(_EFI_VARIABLE)
    if variable is not None and len(variable) == 5:  # four bytes of attributes, then the value
        return variable[4] == 1
    return None if machine.exists("/sys/firmware/efi") else False


def parse_mokutil(text: str) -> bool | None:
    """`mokutil --sb-state`; None for what is not understood."""
    if re.search(r"^SecureBoot enabled", text, re.MULTILINE):
        return True
    if re.search(
        r"^SecureBoot disabled|doesn't support Secure Boot|EFI variables are not supported", text, re.MULTILINE
    ):
        return False
    return None


def secure_boot(nvidia: Nvidia, machine: Machine) -> Finding:
    state = secure_boot_state(machine)

    def finding(status: Status, found: str, do: str = "") -> Finding:
        return Finding(
            check="kernel",
            title="Secure Boot",
            status=status,
            found=found,
            wanted="off, or the key of the driver's module enrolled",
            why="with it on, the kernel loads only modules that are signed with a key it knows",
            do=do,
            page="LPX-E065" if do else "",
        )

    if state is None:
        return finding(Status.UNKNOWN, "cannot be found out", "mokutil --sb-state")
    if not state:
        return finding(Status.OK, "off")
    if nvidia.works or nvidia.module:
        return finding(Status.OK, "on, and the driver's module was accepted")
    return finding(
        Status.WARNING,
        "on, and no NVIDIA module is loaded",
        "enrol the key (Ubuntu: sudo update-secureboot-policy --enroll-key; others: sudo mokutil --import KEY.der), "
        "restart and confirm; or turn Secure Boot off in the firmware",
    )
