"""Machines made of captured texts: files below a folder, and what commands said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lpx.doctor.machine import DiskSpace, Interpreter, Machine, Output

# --- texts of tools as they were seen in public ---

MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.124\n"
MISMATCH_OLD = "Failed to initialize NVML: Driver/library version mismatch\n"
NO_COMMUNICATION = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n"
)
NO_COMMUNICATION_WRAPPED = (
    "NVIDIA-SMI has failed because it couldn’t communicate with the NVIDIA\ndriver. Make sure\n"
    "that the latest NVIDIA driver is installed and running."
)
NOUVEAU_LOG = (
    "[   12.3] NVRM: The NVIDIA probe routine was not called for 3 device(s).\n"
    "[   12.3] NVRM: This can occur when a driver such as: \n"
    "[   12.3] NVRM: nouveau, rivafb, nvidiafb or rivatv \n"
    "[   12.3] NVRM: was loaded and obtained ownership of the NVIDIA device(s).\n"
    "[   12.3] NVRM: No NVIDIA graphics adapter probed!\n"
)
KEY_REJECTED_LOG = (
    "[    8.1] Loading of module with unavailable key is rejected\n[ 8.2] nvidia: Key was rejected by service\n"
)
LOST_UNKNOWN = "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error\n"
LOST_NOT_FOUND = "Unable to determine the device handle for gpu 0000:01:00.0: Not Found\n"
LOST_REBOOT = (
    "Unable to determine the device handle for GPU0: 0000:24:00.0: "
    "GPU is lost.  Reboot the system to recover this GPU\n"
)
NO_DEVICES = "No devices were found\n"
CONTAINER_LOST = "Failed to initialize NVML: Unknown Error\n"
NO_GPU_DRIVER = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'
COMPOSE_NO_GPU = 'Error response from daemon: could not select device driver "nvidia" with capabilities: [[gpu]]'
UNKNOWN_RUNTIME = "docker: Error response from daemon: unknown or invalid runtime name: nvidia"
_HOOK = (
    "docker: Error response from daemon: failed to create task for container: failed to create shim task: OCI runtime "
    "create failed: runc create failed: unable to start container process: error during container init: error running "
    "prestart hook #0: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\n"
)
REQUIREMENT = (
    _HOOK
    + "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a "
    "newer version, or use an earlier cuda container: unknown"
)
REQUIREMENT_OLD = _HOOK + "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=11.6: unknown"
NOT_LOADED = _HOOK + "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown"
TOO_OLD = (
    "RuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver by "
    "downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"
BAD_KERNEL = "CUDA error: device kernel image is invalid"
FORWARD = "Error 804: forward compatibility was attempted on non supported HW"
FORWARD_LLAMA = "ggml_cuda_init: failed to initialize CUDA: forward compatibility was attempted on non supported HW"
PORT_TEXTS = (
    "[Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
    "OSError: [Errno 98] Address already in use",
    "couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080",
)
CANNOT_ASSIGN = (
    "[Errno 99] error while attempting to bind on address ('::1', 8000, 0, 0): cannot assign requested address"
)

# Tables of nvidia-smi: an old driver, a newer one, and the newest form of the head.
TABLE_470 = """\
Tue Mar  1 10:00:00 2022
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 470.103.01   Driver Version: 470.103.01   CUDA Version: 11.4     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA GeForce ...  Off  | 00000000:01:00.0 Off |                  N/A |
"""
TABLE_550 = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.14              Driver Version: 550.54.14      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
"""
TABLE_590 = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 590.44.01              KMD Version: 590.44.01     CUDA UMD Version: 13.1     |
+-----------------------------------------+------------------------+----------------------+
"""

LIST_MIG = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-11111111-2222-3333-4444-555555555555)
  MIG 7g.80gb     Device  0: (UUID: MIG-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-21111111-2222-3333-4444-555555555555)
  MIG 4g.20gb Device 0: (UUID: MIG-GPU-11111111-2222-3333-4444-555555555555/2/0)
  MIG 1c.3g.40gb Device 0: (UUID: MIG-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeef)
"""

LSPCI = """\
00:02.0 VGA compatible controller [0300]: Intel Corporation UHD Graphics 770 [8086:4680] (rev 0c)
\tKernel driver in use: i915
01:00.0 VGA compatible controller [0300]: NVIDIA Corporation AD102 [GeForce RTX 4090] [10de:2684] (rev a1)
\tSubsystem: Gigabyte Technology Co., Ltd AD102 [GeForce RTX 4090] [1458:40bf]
\tKernel driver in use: nouveau
\tKernel modules: nvidiafb, nouveau, nvidia_drm, nvidia
01:00.1 Audio device [0403]: NVIDIA Corporation AD102 High Definition Audio Controller [10de:22ba] (rev a1)
\tKernel driver in use: snd_hda_intel
0000:41:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 PCIe 80GB] [10de:20b5] (rev a1)
"""

MODULE_PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n"
    "GCC version:  gcc version 12.3.0\n"
)
MODULE_OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)\n"
    "GCC version:  gcc version 13.3.0\n"
)

ROW_4090 = "0, NVIDIA GeForce RTX 4090, 00000000:01:00.0, 550.54.14, 24564, 300, 44, Disabled, [N/A], 8.9"
ROW_A100 = "1, NVIDIA A100-SXM4-80GB, 00000000:41:00.0, 550.54.14, 81920, 5, 35, Enabled, Disabled, 8.0"

CPUINFO = """\
processor\t: 0
model name\t: AMD EPYC 9R14
flags\t\t: fpu sse sse2 avx avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16 hypervisor

processor\t: 1
model name\t: AMD EPYC 9R14
flags\t\t: fpu sse sse2 avx avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16 hypervisor
"""
MEMINFO = "MemTotal:       16384000 kB\nMemFree:         1000000 kB\nMemAvailable:   12288000 kB\n"


def failed(text: str, code: int = 9) -> Output:
    """A command that printed `text` on standard output and failed, as nvidia-smi does."""
    return Output(code, text)


class Captured(Machine):
    """A machine of files under `root` and of commands with captured outputs."""

    def __init__(
        self,
        root: Path,
        files: Mapping[str, str | bytes] | None = None,
        commands: Mapping[str, Output | str] | None = None,
        environment: Mapping[str, str] | None = None,
        **more: object,
    ) -> None:
        commands = commands or {}

        def run(command: tuple[str, ...], limit_s: float) -> Output:
            words = (command[0].rsplit("/", 1)[-1], *command[1:])
            if "lpx.doctor.nvml_probe" in command:
                words = ("nvml",)
            for key in (" ".join(words), words[0]):
                if key in commands:
                    found = commands[key]
                    return Output(0, found) if isinstance(found, str) else found
            return Output(None, problem="missing")

        def which(name: str) -> str | None:
            return f"/usr/bin/{name}" if any(key.split(" ")[0] == name for key in commands) else None

        settings: dict[str, object] = {
            "run": run,
            "which": which,
            "disk": lambda folder: DiskSpace(500 * 10**9, 100 * 10**9, 10**7),
            "interpreter": Interpreter((3, 12, 1), "/venv/bin/python", "/venv", "/usr", True),
            "affinity": frozenset({0, 1}),
            "site_packages": root / "site-packages",
            **more,
        }
        super().__init__(root, environment or {}, **settings)  # type: ignore[arg-type]
        self.add({"/proc/cpuinfo": CPUINFO, "/proc/meminfo": MEMINFO, **(files or {})})

    def add(self, files: Mapping[str, str | bytes]) -> None:
        for name, text in files.items():
            path = self.path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())


def card_files(driver: str | None = None, bus_id: str = "0000:01:00.0") -> dict[str, str]:
    """An NVIDIA display device on the PCI bus."""
    folder = f"/sys/bus/pci/devices/{bus_id}"
    uevent = f"DRIVER={driver}\n" if driver else ""
    return {
        f"{folder}/vendor": "0x10de\n",
        f"{folder}/class": "0x030000\n",
        f"{folder}/uevent": f"{uevent}PCI_CLASS=30000\nPCI_ID=10DE:2684\n",
    }


def smi(query: Output | str, table: Output | str = "", listing: Output | str = "") -> dict[str, Output | str]:
    """Commands of a machine with nvidia-smi and without nvidia-ml-py."""
    from lpx.doctor.nvidia_smi import query_command

    return {
        "nvml": '{"error": "nvidia-ml-py is not installed"}',
        " ".join(query_command()): query,
        "nvidia-smi": table or query,
        "nvidia-smi -L": listing or query,
    }
