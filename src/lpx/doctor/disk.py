"""Room where models lie."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from lpx.doctor.configuration import configured_models_dir
from lpx.doctor.finding import Finding, Status
from lpx.doctor.machine import DiskSpace, Machine

# A few small models need 20 GB; models of several versions and their conversions, 50 GB.
_COMFORTABLE_BYTES, _LEAST_BYTES, _FULL_BYTES = 50 * 10**9, 20 * 10**9, 10**9
_LEAST_INODES = 1000
_NETWORK_KINDS = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "ceph", "glusterfs", "9p", "drvfs")


def check(machine: Machine) -> Iterator[Finding]:
    folder = configured_models_dir(machine)
    existing = folder
    # os.path: a folder that this user may not look into counts as absent, where Path raises.
    while not os.path.exists(existing) and existing != existing.parent:
        existing = existing.parent
    yield room(folder, machine.disk(existing))
    yield place(folder, existing, machine.read("/proc/mounts") or "")


def room(folder: Path, space: DiskSpace | None) -> Finding:
    def finding(status: Status, found: str, do: str = "") -> Finding:
        return Finding(
            check="disk",
            title="room for models",
            status=status,
            found=found,
            wanted=f"{_gb(_COMFORTABLE_BYTES)} free for several models; {_gb(_LEAST_BYTES)} is tight",
            why="a pull takes twice the size of the model while it runs, and is refused when that does not fit",
            do=do,
            page="LPX-E012" if do else "",
        )

    if space is None:
        return finding(Status.UNKNOWN, f"the system does not say how much room {folder} has", f"df -h {folder}")
    found = f"{_gb(space.free_bytes)} free of {_gb(space.total_bytes)} in {folder}"
    advice = (
        f"lpx models list shows what can go; du -sh {shlex.quote(str(folder))}/* what is large; "
        "or choose another folder with LPX_MODELS_DIR"
    )
    if space.free_inodes is not None and space.free_inodes < _LEAST_INODES:
        return finding(Status.ERROR, f"{found}, and only {space.free_inodes} free inodes", "delete files: " + advice)
    if space.free_bytes < _FULL_BYTES:
        return finding(Status.ERROR, f"full: {found}", advice)
    if space.free_bytes < _LEAST_BYTES:
        return finding(Status.WARNING, found, advice)
    if space.free_bytes < _COMFORTABLE_BYTES:
        return finding(Status.NOTE, found)
    return finding(Status.OK, found)


def place(folder: Path, existing: Path, mounts: str) -> Finding:
    """Whether the folder can be written, and whether it is on this machine; `mounts` is the text of /proc/mounts."""

    def finding(status: Status, found: str, do: str = "", page: str = "") -> Finding:
        return Finding(
            check="disk",
            title="model folder",
            status=status,
            found=found,
            wanted="a folder of a local disk that this user may write",
            why="models are read whole at every start, at the speed of the disk or network",
            do=do,
            page=page,
        )

    if not os.access(existing, os.W_OK | os.X_OK):
        return finding(
            Status.WARNING,
            f"{existing} may not be written by this user",
            "models that are there can be used; to pull more, change its owner or set LPX_MODELS_DIR",
            "LPX-E011",
        )
    kind = file_system_kind(existing, mounts)
    if kind in _NETWORK_KINDS:
        return finding(Status.NOTE, f"{folder} is on a {kind} file system", "keep models on a local disk", "LPX-E024")
    return finding(Status.OK, f"{folder}" + ("" if folder == existing else " (made by the first pull)"))


def file_system_kind(folder: Path, mounts: str) -> str:
    """The type of the file system that holds `folder`; empty when `mounts` does not tell."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        parts = line.split()
        if len(parts) < 3:
            continue
        point = parts[1].replace("\\040", " ")
        if (str(folder) + "/").startswith(point.rstrip("/") + "/") and len(point) >= best:
            best, kind = len(point), parts[2]
    return kind


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count < 10**10 else f"{count / 1e9:.0f} GB"
