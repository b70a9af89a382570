"""The environment record: what captured files say, nothing that names a person, and no failure whatever is missing."""

from __future__ import annotations

import dataclasses
import getpass
import json
import platform
import socket
import sys
import types

import pytest

from lpx.doctor import environment
from lpx.doctor.environment import Environment, read_environment

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz
flags\t\t: fpu sse4_2 avx f16c fma avx2 avx512f avx512bw avx512vl avx512_vnni avx512_bf16 amx_tile amx_int8 hypervisor

processor\t: 1
model name\t: another
flags\t\t: fpu
"""
DRIVER = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
)
OPEN_DRIVER = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build  (dvs-builder@U16-I3-A05-1-2)\n"
)


@pytest.fixture(autouse=True)
def no_nvml(monkeypatch):
    """None of this machine's, whatever it has."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for name in ("container", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path):
    """A machine's files, as far as they are written."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return read_environment.__wrapped__(tmp_path)

    return write


def test_a_machine_with_a_card(root):
    found = root(
        {
            "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n',
            "proc/cpuinfo": CPUINFO,
            "proc/meminfo": "MemTotal:       16384000 kB\nMemFree: 1 kB\n",
            "proc/self/cgroup": "0::/user.slice\n",
            "sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/user.slice/memory.max": "8589934592\n",
            "sys/devices/system/cpu/cpu0/topology/core_cpus_list": "0-1\n",
            "sys/devices/system/cpu/cpu1/topology/core_cpus_list": "0-1\n",
            "sys/devices/system/cpu/cpu2/topology/thread_siblings_list": "2\n",
            "proc/driver/nvidia/version": DRIVER,
            "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA GeForce RTX 4090\nIRQ:   120\n",
        }
    )
    assert (found.os, found.cpu_model) == ("Ubuntu 24.04.1 LTS", "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz")
    assert found.instruction_sets[-3:] == ("avx512_bf16", "amx_tile", "amx_int8")
    assert "fpu" not in found.instruction_sets
    assert (found.virtual_machine, found.container) == (True, None)
    assert (found.physical_cores, found.cpu_quota) == (2, 1.5)
    assert (found.memory_bytes, found.memory_limit_bytes) == (16384000 * 1024, 8 << 30)
    assert (found.nvidia_driver, found.cuda, found.gpus) == ("550.54.14", None, ("NVIDIA GeForce RTX 4090",))


@pytest.mark.parametrize(("text", "version"), [(OPEN_DRIVER, "570.86.10"), ("", None), ("NVRM\0\0 ?", None)])
def test_driver_versions(root, text, version):
    assert root({"proc/driver/nvidia/version": text}).nvidia_driver == version


def test_nvml_tells_cuda_and_cards(root, monkeypatch):
    ended = []
    nvml = types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: ended.append(1),
        nvmlSystemGetDriverVersion=lambda: b"550.54.14",
        nvmlSystemGetCudaDriverVersion=lambda: 12040,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: f"NVIDIA H{handle}",
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = root({"proc/driver/nvidia/version": DRIVER})
    assert (found.nvidia_driver, found.cuda, found.gpus) == ("550.54.14", "12.4", ("NVIDIA H0", "NVIDIA H1"))
    assert ended == [1]

    def broken():
        raise RuntimeError("Driver/library version mismatch")

    nvml.nvmlDeviceGetCount = broken
    assert root({"proc/driver/nvidia/version": DRIVER}).nvidia_driver == "550.54.14"
    assert ended == [1, 1]


@pytest.mark.parametrize(
    ("files", "variables", "container"),
    [
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"proc/self/cgroup": "5:cpu:/kubepods/besteffort/pod1\n"}, {}, "kubernetes"),
        ({"proc/self/cgroup": "0::/system.slice/containerd.service\n"}, {}, "containerd"),
        ({"proc/self/cgroup": "0::/init.scope\n"}, {}, None),
        ({}, {"container": "lxc"}, "lxc"),
        ({}, {"container": "/home/me"}, "other"),
        ({}, {}, None),
    ],
)
def test_containers(root, monkeypatch, files, variables, container):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert root(files).container == container


def test_nothing_to_read_is_no_failure(root, monkeypatch):
    def broken(*arguments):
        raise OSError("gone")

    for name in ("_lpx_version", "_native_isa", "_package_versions"):
        monkeypatch.setattr(environment, name, broken)
    monkeypatch.setattr(platform, "release", broken)
    found = root({})
    assert (found.os, found.cpu_model, found.memory_bytes, found.kernel, found.lpx) == (None,) * 5
    assert (found.instruction_sets, found.gpus, found.packages) == ((), (), {})


def test_files_of_bytes_are_no_failure(root, tmp_path):
    for name in ("etc/os-release", "proc/cpuinfo", "proc/meminfo", "proc/self/cgroup", "proc/driver/nvidia/version"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(range(256)))
    assert root({}).nvidia_driver is None


def test_json_and_back():
    found = read_environment()
    assert Environment.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert Environment.from_json({"cpu_model": "x", "unheard_of": 1}).packages == {}
    assert dataclasses.replace(found, cuda="99").sha256 != found.sha256


def test_this_machine_is_known_and_nobody_is_named():
    found = read_environment()
    assert found.lpx
    assert found.native_isa
    assert found.packages["numpy"]
    assert read_environment() is found
    text = json.dumps(found.to_json())
    for private in (socket.gethostname(), getpass.getuser(), "/home/", "/root"):
        assert private not in text
