"""Whole machines with something wrong: the doctor names the cause and the way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lpx.doctor.checks import run_checks
from lpx.doctor.finding import Finding, Status, exit_code
from lpx.doctor.machine import Output
from tests.doctor import captured
from tests.doctor.captured import Captured, card_files, failed, smi

GPU_CHECKS = ("container", "gpu", "driver", "kernel", "docker", "torch")


def diagnose(machine: Captured, *names: str) -> dict[str, Finding]:
    """Findings by check and title."""
    return {f"{each.check}: {each.title}": each for each in run_checks(machine, names or GPU_CHECKS).findings}


def test_machine_without_gpu_has_nothing_to_say(tmp_path: Path) -> None:
    found = diagnose(Captured(tmp_path))
    assert exit_code(found.values()) == 0
    assert {name: finding.status for name, finding in found.items()} == {
        "container: container": Status.OK,
        "gpu: GPUs": Status.OK,
        "docker: Docker": Status.OK,
    }


def test_working_card_tells_memory_and_formats(tmp_path: Path) -> None:
    machine = Captured(
        tmp_path,
        {**card_files("nvidia"), "/proc/driver/nvidia/version": captured.MODULE_PROPRIETARY},
        smi(captured.ROW_4090, captured.TABLE_550),
    )
    found = diagnose(machine)
    card = found["gpu: GPU 0"]
    assert card.status is Status.OK
    assert "NVIDIA GeForce RTX 4090, 24 GiB, compute capability 8.9: FP8 INT8 INT4 BF16" in card.found
    assert found["driver: NVIDIA driver"].found == "550.54.14, runs CUDA up to 12.4"
    assert found["gpu: persistence"].status is Status.NOTE
    assert found["kernel: nouveau"].status is Status.WARNING  # not blacklisted
    assert found["kernel: Secure Boot"].status is Status.OK


def test_nvml_comes_before_nvidia_smi(tmp_path: Path) -> None:
    probe = {
        "driver": "580.159.03",
        "cuda": "13.0",
        "lost": [],
        "cards": [
            {
                "index": 0,
                "name": "NVIDIA H200",
                "bus_id": "00000000:01:00.0",
                "memory_bytes": 143771 << 20,
                "used_bytes": 0,
                "compute_capability": "9.0",
                "mig": False,
                "persistence": True,
                "temperature_c": 30,
            }
        ],
    }
    found = diagnose(Captured(tmp_path, card_files("nvidia"), {"nvml": json.dumps(probe)}))
    assert "NVIDIA H200, 140 GiB, compute capability 9.0: FP8 INT8 BF16; no INT4" in found["gpu: GPU 0"].found
    assert found["driver: NVIDIA driver"].found == "580.159.03, runs CUDA up to 13.0"


@pytest.mark.parametrize("text", [captured.MISMATCH, captured.MISMATCH_OLD])
def test_library_mismatch_says_restart_and_not_that_there_is_no_gpu(tmp_path: Path, text: str) -> None:
    files = {**card_files("nvidia"), "/proc/driver/nvidia/version": captured.MODULE_PROPRIETARY}
    finding = diagnose(Captured(tmp_path, files, smi(failed(text, 18))))["driver: NVIDIA driver"]
    assert finding.status is Status.ERROR
    assert finding.page == "LPX-E063"
    assert "the loaded module is 550.54.14" in finding.found
    assert "restart the machine" in finding.do
    assert finding.fixes[0].risky


@pytest.mark.parametrize("text", [captured.NO_COMMUNICATION, captured.NO_COMMUNICATION_WRAPPED])
def test_driver_that_does_not_run_is_told_apart(tmp_path: Path, text: str) -> None:
    def driver(name: str, files: dict[str, str | bytes], commands: dict[str, Output | str]) -> Finding:
        machine = Captured(tmp_path / name, {**card_files(), **files}, {**smi(failed(text)), **commands})
        return diagnose(machine)["driver: NVIDIA driver"]

    nouveau = driver("a", {"/proc/modules": "nouveau 2400256 4 - Live 0x0\nmxm_wmi 16384 1 nouveau, Live 0x0\n"}, {})
    assert (nouveau.page, "nouveau has the card" in nouveau.found) == ("LPX-E064", True)

    logged = driver("b", {}, {"dmesg": captured.NOUVEAU_LOG})
    assert logged.page == "LPX-E064"

    rejected = driver("c", {}, {"dmesg": captured.KEY_REJECTED_LOG})
    assert (rejected.page, "Secure Boot" in rejected.found) == ("LPX-E065", True)

    not_built = driver(
        "d",
        {"/proc/sys/kernel/osrelease": "6.8.0-40-generic\n"},
        {"modinfo": Output(1, "", "modinfo: ERROR: Module nvidia not found.\n")},
    )
    assert "not built for the kernel 6.8.0-40-generic" in not_built.found
    assert "linux-headers-6.8.0-40-generic" in not_built.do

    signed = driver("e", {}, {"modinfo": "550.54.14\n", "mokutil": "SecureBoot enabled\n"})
    assert signed.page == "LPX-E065"

    unclear = driver("f", {}, {"modinfo": "550.54.14\n", "mokutil": "SecureBoot disabled\n"})
    assert (unclear.status, unclear.page) == (Status.ERROR, "LPX-E062")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (captured.LOST_UNKNOWN, "0000:0B:00.0"),
        (captured.LOST_NOT_FOUND, "0000:01:00.0"),
        (captured.LOST_REBOOT, "0000:24:00.0"),
    ],
)
def test_lost_card_is_reported_beside_those_that_answer(tmp_path: Path, text: str, said: str) -> None:
    output = Output(15, f"{captured.ROW_A100}\n{text}")
    found = diagnose(Captured(tmp_path, card_files("nvidia"), smi(output, captured.TABLE_550)))
    assert "A100" in found["gpu: GPU 1"].found
    lost = found["driver: lost cards"]
    assert lost.status is Status.ERROR
    assert said in lost.found
    assert "1 answer" in lost.found


@pytest.mark.parametrize("text", [captured.LOST_REBOOT, captured.LOST_UNKNOWN, captured.NO_DEVICES])
def test_no_card_left_is_an_error_with_a_page(tmp_path: Path, text: str) -> None:
    finding = diagnose(Captured(tmp_path, card_files("nvidia"), smi(failed(text, 15))))["driver: NVIDIA driver"]
    assert (finding.status, finding.page) == (Status.ERROR, "LPX-E062")


def test_driver_that_does_not_answer_is_no_crash(tmp_path: Path) -> None:
    machine = Captured(tmp_path, card_files("nvidia"), {"nvml": Output(None, problem="timeout"), "nvidia-smi": ""})
    finding = diagnose(machine)["driver: NVIDIA driver"]
    assert finding.status is Status.ERROR
    assert "does not answer" in finding.found


def test_card_without_driver(tmp_path: Path) -> None:
    machine = Captured(
        tmp_path, {**card_files("nouveau"), "/proc/modules": "nouveau 1 0 - Live 0x0\n"}, {"lspci": captured.LSPCI}
    )
    found = diagnose(machine)
    assert "not installed; nouveau has the card" in found["driver: NVIDIA driver"].found
    assert "AD102 [GeForce RTX 4090]" in found["gpu: GPUs"].found
    nouveau = found["kernel: nouveau"]
    assert nouveau.status is Status.WARNING
    assert "update-initramfs" in nouveau.do
    assert nouveau.fixes


def test_tools_without_a_card_are_no_error(tmp_path: Path) -> None:
    found = diagnose(Captured(tmp_path, {}, smi(failed(captured.NO_COMMUNICATION))))
    assert exit_code(found.values()) == 1


def test_card_given_to_a_virtual_machine_is_no_fault(tmp_path: Path) -> None:
    finding = diagnose(Captured(tmp_path, card_files("vfio-pci")))["driver: NVIDIA driver"]
    assert finding.status is Status.NOTE


def test_unknown_words_of_the_driver_are_unknown(tmp_path: Path) -> None:
    machine = Captured(tmp_path, card_files("nvidia"), smi(failed("Eine ganz neue Meldung 中文\x00")))
    finding = diagnose(machine)["driver: NVIDIA driver"]
    assert finding.status is Status.UNKNOWN
    assert "中文" in finding.found


def test_secure_boot_by_the_variable_of_the_firmware(tmp_path: Path) -> None:
    name = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    on = diagnose(Captured(tmp_path / "on", {**card_files(), name: b"\x06\0\0\0\x01"}))["kernel: Secure Boot"]
    assert on.status is Status.WARNING
    off = diagnose(Captured(tmp_path / "off", {**card_files(), name: b"\x06\0\0\0\x00"}))["kernel: Secure Boot"]
    assert off.status is Status.OK
    strange = diagnose(Captured(tmp_path / "strange", {**card_files(), name: b"\x06"}))["kernel: Secure Boot"]
    assert strange.status is Status.UNKNOWN


@pytest.mark.parametrize(
    "files",
    [
        {"/etc/modprobe.d/nvidia.conf": "# x\nblacklist nouveau\n"},
        {"/usr/lib/modprobe.d/n.conf": "install nouveau /bin/false\n"},
        {"/proc/cmdline": "quiet rd.driver.blacklist=nouveau modprobe.blacklist=foo,nouveau"},
    ],
)
def test_nouveau_that_is_blacklisted(tmp_path: Path, files: dict[str, str]) -> None:
    machine = Captured(tmp_path, {**card_files("nvidia"), **files}, smi(captured.ROW_4090, captured.TABLE_550))
    assert diagnose(machine)["kernel: nouveau"].status is Status.OK


def test_wsl_and_jetson_get_no_advice_for_a_linux_driver(tmp_path: Path) -> None:
    wsl = Captured(
        tmp_path / "wsl",
        {"/proc/version": "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@x)", "/dev/dxg": ""},
        {"nvidia-smi": failed(""), "nvml": "{}"},
    )
    finding = diagnose(wsl)["driver: NVIDIA driver"]
    assert "in Windows" in finding.do
    assert "apt" not in finding.do
    jetson = Captured(tmp_path / "jetson", {"/proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0"})
    found = diagnose(jetson)
    assert found["driver: NVIDIA driver"].status is Status.NOTE
    assert "Jetson Orin Nano" in found["gpu: GPUs"].found


def test_slices_are_no_cards(tmp_path: Path) -> None:
    rows = (
        "0, NVIDIA A100-SXM4-80GB, 00000000:01:00.0, 550.54.14, [Insufficient Permissions], "
        "[Insufficient Permissions], 30, Enabled, Enabled, 8.0\n"
    )
    found = diagnose(Captured(tmp_path, card_files("nvidia"), smi(rows, captured.TABLE_550, captured.LIST_MIG)))
    assert [name for name in found if name.startswith("gpu: GPU ")] == ["gpu: GPU 0"]
    assert "memory unknown" in found["gpu: GPU 0"].found
    assert "7g.80gb" in found["gpu: MIG"].found


class TestContainers:
    def test_container_that_was_given_no_gpu(self, tmp_path: Path) -> None:
        files = {"/.dockerenv": "", "/proc/driver/nvidia/version": captured.MODULE_OPEN}
        finding = diagnose(Captured(tmp_path, files))["container: GPU access"]
        assert (finding.status, finding.page) == (Status.WARNING, "LPX-E060")
        assert "driver 570.86.15" in finding.found
        assert "--gpus all" in finding.do

    def test_container_that_lost_its_gpu_must_be_recreated(self, tmp_path: Path) -> None:
        files = {"/run/.containerenv": "", "/dev/nvidia0": "", "/dev/nvidiactl": ""}
        finding = diagnose(Captured(tmp_path, files, smi(failed(captured.CONTAINER_LOST, 255))))[
            "container: GPU access"
        ]
        assert (finding.status, finding.page) == (Status.ERROR, "LPX-E069")
        assert "recreate the container" in finding.do

    def test_devices_without_libraries(self, tmp_path: Path) -> None:
        finding = diagnose(Captured(tmp_path, {"/.dockerenv": "", "/dev/nvidia0": ""}))["container: GPU access"]
        assert "NVIDIA_DRIVER_CAPABILITIES" in finding.do

    def test_host_that_has_a_card_is_not_told_to_install_a_driver(self, tmp_path: Path) -> None:
        found = diagnose(Captured(tmp_path, {"/.dockerenv": "", **card_files()}))
        assert "driver: NVIDIA driver" not in found
        assert exit_code(found.values()) == 0

    def test_container_without_any_gpu_says_nothing(self, tmp_path: Path) -> None:
        found = diagnose(Captured(tmp_path, {"/.dockerenv": ""}))
        assert "container: GPU access" not in found
        assert exit_code(found.values()) == 0

    @pytest.mark.parametrize(
        ("files", "environment", "kind"),
        [
            ({"/proc/1/cgroup": "12:cpu:/docker/3f2a\n"}, {}, "Docker"),
            ({"/proc/1/cgroup": "0::/kubepods.slice/kubepods-pod1.slice\n"}, {}, "Kubernetes"),
            ({}, {"container": "lxc"}, "lxc"),
            ({"/proc/1/cgroup": "0::/init.scope\n"}, {}, None),
        ],
    )
    def test_kinds(self, tmp_path: Path, files: dict[str, str], environment: dict[str, str], kind: str | None) -> None:
        finding = diagnose(Captured(tmp_path, files, environment=environment))["container: container"]
        assert (f"inside {kind}" if kind else "none") in finding.found


class TestDocker:
    INFO = json.dumps({"ServerVersion": "27.1", "Runtimes": {"runc": {}, "io.containerd.runc.v2": {}}})
    WITH_NVIDIA = json.dumps(
        {"ServerVersion": "27.1", "Runtimes": {"runc": {}, "nvidia": {}}, "CgroupDriver": "systemd"}
    )
    DAEMON = json.dumps({"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}})
    TOOLKIT = "NVIDIA Container Toolkit CLI version 1.17.4\ncommit: 9b69590\n"

    def toolkit(self, root: Path, info: Output | str, *, toolkit: bool = True, daemon: str | None = None) -> Finding:
        commands: dict[str, Output | str] = {**smi(captured.ROW_4090, captured.TABLE_550), "docker": info}
        if toolkit:
            commands["nvidia-ctk"] = self.TOOLKIT
        files: dict[str, str] = {**card_files("nvidia")}
        if daemon is not None:
            files["/etc/docker/daemon.json"] = daemon
        return diagnose(Captured(root, files, commands))["docker: container toolkit"]

    def test_not_installed(self, tmp_path: Path) -> None:
        finding = self.toolkit(tmp_path, self.INFO, toolkit=False)
        assert (finding.status, finding.page, finding.found) == (Status.WARNING, "LPX-E066", "not installed")

    def test_installed_and_not_configured(self, tmp_path: Path) -> None:
        finding = self.toolkit(tmp_path, self.INFO)
        assert "installed and not configured" in finding.found
        assert "nvidia-ctk runtime configure" in finding.do
        assert finding.fixes

    def test_configured_and_not_restarted(self, tmp_path: Path) -> None:
        finding = self.toolkit(tmp_path, self.INFO, daemon=self.DAEMON)
        assert "the running Docker does not know it" in finding.found
        assert finding.do == "sudo systemctl restart docker"

    def test_all_well(self, tmp_path: Path) -> None:
        finding = self.toolkit(tmp_path, self.WITH_NVIDIA, daemon=self.DAEMON)
        assert finding.status is Status.OK
        assert "1.17.4" in finding.found

    def test_broken_configuration(self, tmp_path: Path) -> None:
        finding = self.toolkit(tmp_path, self.INFO, daemon='{"runtimes": {')
        assert finding.status is Status.ERROR
        assert "not valid JSON" in finding.found

    def test_desktop_has_no_gpu(self, tmp_path: Path) -> None:
        info = json.dumps({"ServerVersion": "27.1", "OperatingSystem": "Docker Desktop", "Runtimes": {}})
        assert "Docker Desktop" in self.toolkit(tmp_path, info).found

    def test_daemon_that_cannot_be_asked(self, tmp_path: Path) -> None:
        denied = Output(
            1,
            json.dumps({"ServerVersion": "", "Runtimes": None}),
            "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
        )
        finding = self.toolkit(tmp_path / "a", denied, daemon=self.DAEMON)
        assert finding.status is Status.NOTE
        down = Output(
            1, "", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
        )
        found = diagnose(Captured(tmp_path / "b", commands={"docker": down}))
        assert found["docker: Docker"].status is Status.NOTE
        assert "docker: container toolkit" not in found

    @pytest.mark.parametrize("said", ["", "[]", "null", "{", '{"Runtimes": 7}', "日本語", '{"ServerErrors": "x"}'])
    def test_answers_that_make_no_sense(self, tmp_path: Path, said: str) -> None:
        found = diagnose(Captured(tmp_path, commands={"docker": said}))
        assert found["docker: Docker"].status in (Status.UNKNOWN, Status.NOTE)


class TestTorch:
    VERSION = "from typing import Optional\n\n__all__ = ['__version__']\n__version__ = '{}'\ndebug = False\n" + (
        "cuda: Optional[str] = {}\nhip: Optional[str] = None\n"
    )

    def torch(
        self, root: Path, version: str, cuda: str, kernel: Output | str = "", table: str = ""
    ) -> dict[str, Finding]:
        row = captured.ROW_4090 if not table else captured.ROW_4090.replace("550.54.14", table)
        machine = Captured(
            root,
            {**card_files("nvidia"), "/site-packages/torch/version.py": self.VERSION.format(version, cuda)},
            {**smi(row, captured.TABLE_550), "python": kernel},
        )
        return diagnose(machine, "torch")

    def test_build_for_the_processor_only_is_noticed(self, tmp_path: Path) -> None:
        finding = self.torch(tmp_path, "2.6.0+cpu", "None")["torch: PyTorch"]
        assert (finding.status, finding.page) == (Status.WARNING, "LPX-E050")

    def test_driver_too_old_for_the_build(self, tmp_path: Path) -> None:
        finding = self.torch(tmp_path, "2.9.0+cu130", "'13.0'")["torch: PyTorch"]
        assert (finding.status, finding.page) == (Status.ERROR, "LPX-E061")
        assert "580.65.06" in finding.do
        assert "CUDA 12.4 or older" in finding.do

    def test_minor_version_compatibility_is_no_fault(self, tmp_path: Path) -> None:
        finding = self.torch(tmp_path, "2.8.0+cu128", "'12.8'")["torch: PyTorch"]
        assert finding.status is Status.NOTE
        assert "570.26" in finding.found

    def test_kernel_that_ran(self, tmp_path: Path) -> None:
        result = json.dumps({"available": True, "archs": ["sm_80"], "sum": 16.0})
        found = self.torch(tmp_path, "2.6.0+cu124", "'12.4'", f"some warning\n{result}\n")
        assert found["torch: PyTorch on the GPU"].status is Status.OK

    @pytest.mark.parametrize(
        ("error", "page"),
        [
            (captured.TOO_OLD, "LPX-E061"),
            (f"RuntimeError: {captured.NO_KERNEL}", "LPX-E067"),
            (f"RuntimeError: {captured.BAD_KERNEL}", "LPX-E067"),
            (f"RuntimeError: Unexpected error from cudaGetDeviceCount(). {captured.FORWARD}", "LPX-E068"),
            ("RuntimeError: something new", "LPX-E060"),
        ],
    )
    def test_kernel_that_failed(self, tmp_path: Path, error: str, page: str) -> None:
        result = json.dumps({"available": True, "archs": ["sm_90"], "error": error})
        finding = self.torch(tmp_path, "2.6.0+cu124", "'12.4'", result)["torch: PyTorch on the GPU"]
        assert (finding.status, finding.page) == (Status.ERROR, page)

    def test_kernel_that_crashed_or_hung(self, tmp_path: Path) -> None:
        crashed = self.torch(tmp_path / "a", "2.6.0+cu124", "'12.4'", Output(-11, "", "Segmentation fault"))
        assert crashed["torch: PyTorch on the GPU"].status is Status.ERROR
        hung = self.torch(tmp_path / "b", "2.6.0+cu124", "'12.4'", Output(None, problem="timeout"))
        assert hung["torch: PyTorch on the GPU"].status is Status.ERROR

    def test_card_older_than_the_build(self, tmp_path: Path) -> None:
        row = "0, NVIDIA GeForce GTX 1080 Ti, 00000000:01:00.0, 580.95.05, 11264, 1, 40, Enabled, [N/A], 6.1"
        machine = Captured(
            tmp_path,
            {**card_files("nvidia"), "/site-packages/torch/version.py": self.VERSION.format("2.9.0+cu130", "'13.0'")},
            smi(row),
        )
        finding = diagnose(machine, "torch")["torch: PyTorch"]
        assert (finding.status, finding.page) == (Status.ERROR, "LPX-E067")
