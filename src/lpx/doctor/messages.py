"""Messages that drivers, Docker and CUDA programs print, and what each of them means.

The patterns are the parts that stay the same between versions; where two fit, the more specific one stands first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lpx.doctor.cuda_drivers import driver_for


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a message says is wrong, and the way out."""

    key: str
    cause: str
    do: str
    page: str


@dataclass(frozen=True, slots=True)
class _Known:
    key: str
    pattern: re.Pattern[str]
    cause: str  # named groups of the pattern may stand in braces
    do: str
    page: str


def _known(key: str, pattern: str, cause: str, do: str, page: str) -> _Known:
    return _Known(key, re.compile(pattern, re.IGNORECASE), cause, do, page)


_RECREATE = "recreate the container (docker rm and docker run, or docker compose up --force-recreate)"
_CONFIGURE = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
_TABLE = (
    # --- the driver ---
    _known(
        "library-mismatch",
        r"driver/library version mismatch(?:.{0,80}?NVML library version: (?P<library>[\d.]+))?",
        "the driver was upgraded, and the kernel still runs the old module{library_note}",
        "restart the machine; or, with no program on the GPU, unload and load the modules: "
        "sudo rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia && sudo modprobe nvidia",
        "LPX-E063",
    ),
    _known(
        "no-communication",
        r"communicate with the NVIDIA driver",
        "the NVIDIA driver's kernel module does not run",
        "sudo modprobe nvidia says why: not built for this kernel, refused by Secure Boot, or nouveau has the card",
        "LPX-E062",
    ),
    _known(
        "key-rejected",
        r"nvidia.{0,60}(?:key was rejected|required key not available)|key was rejected by service|"
        r"unsigned module loading is restricted|module verification failed: signature and/or required key missing - "
        r"tainting kernel.{0,40}nvidia",
        "Secure Boot refuses the driver's module, because its key is not enrolled",
        "enrol the key that the module is signed with (sudo mokutil --import, then restart), or turn Secure Boot off",
        "LPX-E065",
    ),
    _known(
        "nouveau",
        r"nouveau, rivafb, nvidiafb or rivatv|probe routine was not called for \d+ device|"
        r"No NVIDIA (?:graphics adapter|devices) probed",
        "another driver, most often nouveau, has the card",
        "blacklist nouveau, rebuild the initial file system and restart",
        "LPX-E064",
    ),
    _known(
        "module-mismatch",
        r"API mismatch: the client has the version (?P<client>[\d.]+),?.{0,60}?kernel module has the version "
        r"(?P<module>[\d.]+)",
        "the driver's libraries are of {client} and its kernel module is of {module}",
        "restart the machine, so that the kernel loads the new module",
        "LPX-E063",
    ),
    _known(
        "container-lost-gpu",
        r"Failed to initialize NVML: Unknown Error",
        "this container had the GPU and lost it: a systemctl daemon-reload on the host took the devices away",
        f'{_RECREATE}; to keep it from happening, set "exec-opts": ["native.cgroupdriver=cgroupfs"] in '
        "/etc/docker/daemon.json, or pass the devices by --device",
        "LPX-E069",
    ),
    _known(
        "nvml-no-driver",
        r"(?:Failed to initialize NVML: |NVML Error:? ?|nvml error: )(?:driver not loaded|libnvidia-ml\.so|"
        r"NVML Shared Library Not Found|could not load NVML)",
        "the NVIDIA driver is not loaded on the host",
        "install or load the driver on the host (sudo modprobe nvidia), and try nvidia-smi there first",
        "LPX-E062",
    ),
    _known(
        "gpu-lost",
        r"GPU is lost|has fallen off the bus|Xid.{0,40}: 79\b",
        "a card is lost: power, heat, the PCIe link or the hardware itself",
        "restart the machine; if it comes again, look at power, heat and seat of the card (dmesg | grep Xid)",
        "LPX-E062",
    ),
    _known(
        "device-handle",
        r"Unable to determine the device handle for GPU ?0?:? ?(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d): "
        r"(?P<reason>[^\n.]+)",
        "the card at {bus} does not answer ({reason})",
        "restart the machine; if it comes again, look at dmesg | grep -i NVRM, and at power and seat of the card",
        "LPX-E062",
    ),
    _known(
        "no-devices",
        r"No devices were found",
        "the driver runs and finds no card that it can use",
        "dmesg | grep -i NVRM says why: an unsupported or lost card, or one that a virtual machine has taken",
        "LPX-E062",
    ),
    # --- containers ---
    _known(
        "cuda-requirement",
        r"requirement error: unsatisfied condition: (?P<what>cuda ?>= ?(?P<cuda>[\d.]+)|[^,\n]+)",
        "the image needs {what}, and the host's driver is older",
        "upgrade the host's driver{driver_note}, or take an image of an earlier CUDA",
        "LPX-E061",
    ),
    _known(
        "unknown-runtime",
        r"unknown or invalid runtime name: \"?nvidia|Unknown runtime specified nvidia",
        "Docker has no runtime called nvidia: the toolkit is not configured, or Docker was not restarted since",
        _CONFIGURE,
        "LPX-E066",
    ),
    _known(
        "compose-no-gpu",
        r"could not select device driver \"nvidia\" with capabilities: \[\[gpu",
        "Docker cannot give the GPU that the compose file asks for: the container toolkit is missing or not configured",
        f"install nvidia-container-toolkit, then {_CONFIGURE}",
        "LPX-E066",
    ),
    _known(
        "no-gpu-driver",
        r"could not select device driver \"\" with capabilities: \[\[gpu",
        "Docker knows no GPU driver: the toolkit is missing, or Docker was not restarted after it was installed",
        f"install nvidia-container-toolkit, then {_CONFIGURE}; instead of Docker from snap or Docker Desktop, use "
        "Docker Engine",
        "LPX-E066",
    ),
    _known(
        "cdi-unresolvable",
        r"unresolvable CDI devices? (?P<device>\S+)",
        "Docker looks for the GPU in CDI files, and there is none for {device}",
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        "LPX-E066",
    ),
    _known(
        "container-cli",
        r"nvidia-container-cli: (?P<said>[^\n]+)",
        "the container toolkit could not add the GPU: {said}",
        "try nvidia-smi on the host first; then nvidia-container-cli -k -d /dev/stderr info",
        "LPX-E060",
    ),
    _known(
        "docker-permission",
        r"permission denied while trying to connect to the Docker (?:daemon|API)",
        "this user may not talk to Docker",
        "sudo usermod -aG docker $USER and log in again, or use sudo",
        "LPX-E066",
    ),
    # --- CUDA programs ---
    _known(
        "driver-too-old",
        r"NVIDIA driver on your system is too old \(found version (?P<found>\d+)\)|"
        r"CUDA driver version is insufficient for CUDA runtime version",
        "the driver is older than the CUDA runtime of this program{found_note}",
        "upgrade the driver, or install a build for an older CUDA",
        "LPX-E061",
    ),
    _known(
        "forward-compat",
        r"forward compatibility was attempted on non supported HW",
        "a cuda-compat package is in use, and this card is none of those that it works for",
        "remove cuda-compat from the image or from LD_LIBRARY_PATH, and upgrade the driver instead",
        "LPX-E068",
    ),
    _known(
        "no-kernel-image",
        r"no kernel image is available for execution on the device|device kernel image is invalid|"
        r"is not compatible with the current PyTorch installation",
        "this program was not built for the card's compute capability",
        "install a build that holds it (newer CUDA for newer cards, older CUDA for older ones)",
        "LPX-E067",
    ),
    _known(
        "gpu-memory",
        r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError: CUDA",
        "the card's memory is used up",
        "nvidia-smi shows by whom; take a smaller model, a shorter context or fewer sequences",
        "LPX-E031",
    ),
    # --- services ---
    _known(
        "cannot-assign",
        r"cannot assign requested address",
        "this machine has no such address",
        "listen on 127.0.0.1, or on an address that ip addr shows",
        "LPX-E041",
    ),
    _known(
        "port-in-use",
        r"address already in use|couldn't bind HTTP server socket|port is already allocated",
        "another process holds the port",
        "lpx doctor ports names it; end it, or choose another port",
        "LPX-E040",
    ),
)


def recognise(text: str) -> list[Meaning]:
    """What the messages in `text` mean, most specific first; empty when none is known."""
    plain = _plain(text)
    found: list[Meaning] = []
    for known in _TABLE:
        match = known.pattern.search(plain)
        if match is None:
            continue
        # The wrapper of a container's start is said only where nothing more exact was.
        if known.key == "container-cli" and found:
            continue
        groups = {name: value or "" for name, value in match.groupdict().items()}
        groups.update(_notes(groups))
        found.append(Meaning(known.key, _fill(known.cause, groups), _fill(known.do, groups), known.page))
    return found


def _plain(text: str) -> str:
    """One line, with typewriter quotes: terminals wrap, pages and printers curl."""
    for curly, straight in (("‘", "'"), ("’", "'"), ("“", '"'), ("”", '"')):
        text = text.replace(curly, straight)
    return re.sub(r"\s+", " ", text[:20_000])


def _notes(groups: dict[str, str]) -> dict[str, str]:
    notes = {"library_note": "", "driver_note": "", "found_note": ""}
    if groups.get("library"):
        notes["library_note"] = f" (the libraries are of {groups['library']})"
    if driver := driver_for(groups.get("cuda") or ""):
        notes["driver_note"] = f" to {driver} or later"
    found = groups.get("found", "")
    if found.isdigit() and len(found) in (4, 5):  # 12040 is CUDA 12.4
        notes["found_note"] = f": it runs CUDA {int(found) // 1000}.{int(found) % 1000 // 10} at most"
    return notes


def _fill(text: str, groups: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: groups.get(match[1], match[0]), text)
