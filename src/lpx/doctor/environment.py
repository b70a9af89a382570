"""What a measurement depends on besides model and settings: machine, system, drivers, versions.

Reading it is cheap and never fails: what cannot be found out is None. It names no host, no user and no path, so that it
can be kept with every measurement and be shown to others. What changes by itself between two runs (load, free memory,
clock rates) is not part of it: equal environments compare equal.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_Gpus = tuple[str | None, str | None, tuple[str, ...]]  # driver, newest CUDA that it runs, names of cards
_NO_GPU: _Gpus = (None, None, ())

# Flags of /proc/cpuinfo (x86 and Arm) that kernels of this kind make use of.
_USED_FLAGS = (
    *("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx_vnni_int8", "avx512f", "avx512bw", "avx512vl"),
    *("avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)

# Distributions whose version can explain that a figure or a text changed; absent ones are left out.
_PACKAGES = (
    *("numpy", "tokenizers", "safetensors", "llguidance", "fastapi", "uvicorn", "uvloop", "httptools", "httpx"),
    *("pydantic", "torch", "triton", "transformers", "accelerate"),
    *("llama-cpp-python", "vllm", "tensorrt-llm", "openvino-genai", "onnxruntime", "xllamacpp"),
)

_CONTAINERS = ("kubepods", "docker", "containerd", "libpod", "lxc", "garden")  # as they show in names of cgroups


def _texts(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


# Whether a JSON value fits a field of such a type.
_FITS: dict[str, Callable[[Any], bool]] = {
    "str | None": lambda value: value is None or isinstance(value, str),
    "bool | None": lambda value: value is None or isinstance(value, bool),
    "int | None": lambda value: value is None or isinstance(value, int),
    "float | None": lambda value: value is None or isinstance(value, (int, float)),
    "tuple[str, ...]": lambda value: isinstance(value, (list, tuple)) and _texts(value),
    "Mapping[str, str]": lambda value: isinstance(value, dict) and _texts(value.values()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """JSON values only; None where nothing could be found out."""

    os: str | None  # "Debian GNU/Linux 12 (bookworm)"
    kernel: str | None  # "Linux 6.1.0-18-amd64"
    architecture: str | None  # "x86_64"
    container: str | None  # "docker", "podman", "kubernetes", …; None: none is seen
    virtual_machine: bool | None  # whether the processor tells of a hypervisor
    cpu_model: str | None
    instruction_sets: tuple[str, ...]  # flags of the processor that kernels make use of
    physical_cores: int | None  # of the machine
    logical_cpus: int | None  # of the machine
    usable_cpus: int | None  # that this process may run on
    cpu_quota: float | None  # processors' worth of time by control group; None without a quota
    memory_bytes: int | None  # of the machine
    memory_limit_bytes: int | None  # of the control group; None without a limit
    gpus: tuple[str, ...]  # their names
    nvidia_driver: str | None
    cuda: str | None  # newest version that the driver runs
    python: str | None  # "CPython 3.11.2"
    lpx: str | None
    native_isa: str | None  # kernel set that LPX takes unless told otherwise
    packages: Mapping[str, str]  # version by name of distribution

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `json.dumps`."""
        plain = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Environment:
        """The reverse; names that this version does not know are dropped, and absent ones are None or empty.

        Raises TypeError that names a value of another type.
        """
        empty: dict[str, Any] = {"instruction_sets": (), "gpus": (), "packages": {}}
        found: dict[str, Any] = {}
        for field in fields(cls):
            value = values.get(field.name, empty.get(field.name))
            if not _FITS[str(field.type)](value):
                raise TypeError(f"{field.name} is {str(value)[:60]!r}, not {field.type}")
            found[field.name] = tuple(value) if isinstance(value, list) else value
        return cls(**found)

    @property
    def sha256(self) -> str:
        """Of its JSON: equal for equal environments."""
        text = json.dumps(self.to_json(), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def read_environment(root: Path = Path("/")) -> Environment:
    """The environment of this process, read once; `root` is where `/proc`, `/sys` and `/etc` lie."""
    from lpx.runtime.cpu import cgroup

    cpu: dict[str, str] = _tried(lambda: _cpuinfo(root), {})
    flags = frozenset((cpu.get("flags") or cpu.get("Features") or "").split())
    driver, cuda, gpus = _tried(lambda: _nvidia(root), _NO_GPU)
    return Environment(
        os=_tried(lambda: _os_name(root), None),
        kernel=_tried(lambda: f"{platform.system()} {platform.release()}", None),
        architecture=_tried(platform.machine, None) or None,
        container=_tried(lambda: _container(root), None),
        virtual_machine="hypervisor" in flags if flags else None,
        cpu_model=cpu.get("model name") or cpu.get("Model") or None,
        instruction_sets=tuple(flag for flag in _USED_FLAGS if flag in flags),
        physical_cores=_tried(lambda: _physical_cores(root), None),
        logical_cpus=os.cpu_count(),
        usable_cpus=_tried(lambda: len(os.sched_getaffinity(0)), None),
        cpu_quota=_tried(lambda: cgroup.cpu_quota(root), None),
        memory_bytes=_tried(lambda: _memory_bytes(root), None),
        memory_limit_bytes=_tried(lambda: cgroup.memory_limit(root), None),
        gpus=gpus,
        nvidia_driver=driver,
        cuda=cuda,
        python=_tried(lambda: f"{platform.python_implementation()} {platform.python_version()}", None),
        lpx=_tried(_lpx_version, None),
        native_isa=_tried(_native_isa, None),
        packages=_tried(_package_versions, {}),
    )


def _tried(read: Callable[[], T], otherwise: T) -> T:
    """Whatever goes wrong in a reading is nobody's error: the figure is unknown."""
    try:
        return read()
    except Exception:
        return otherwise


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _os_name(root: Path) -> str | None:
    for name in ("etc/os-release", "usr/lib/os-release"):
        if (root / name).is_file():
            found = re.search(r'^PRETTY_NAME=(["\']?)(.*)\1$', _text(root / name), re.MULTILINE)
            return found[2] if found else None
    return None


def _cpuinfo(root: Path) -> dict[str, str]:
    """The entries of the first processor."""
    entries: dict[str, str] = {}
    with (root / "proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip() and entries:
                break
            name, _, value = line.partition(":")
            entries[name.strip()] = value.strip()
    return entries


def _physical_cores(root: Path) -> int | None:
    """Hardware threads of one core name the same list of siblings."""
    cores = set()
    for folder in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology"):
        for name in ("core_cpus_list", "thread_siblings_list"):  # the second is the older kernels' name
            if (folder / name).is_file():
                cores.add(_text(folder / name).strip())
                break
    return len(cores) or None


def _memory_bytes(root: Path) -> int | None:
    found = re.search(r"^MemTotal:\s*(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _container(root: Path) -> str | None:
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if named := os.environ.get("container"):  # noqa: SIM112  # the name that systemd and podman give it
        return named if re.fullmatch(r"[a-z0-9-]{1,32}", named) else "other"
    groups = _text(root / "proc/self/cgroup")
    for name in _CONTAINERS:
        if name in groups:
            return {"kubepods": "kubernetes", "libpod": "podman"}.get(name, name)
    return None


def _nvidia(root: Path) -> _Gpus:
    """Driver, CUDA and cards. NVML is asked only where there is a driver: elsewhere it would search for its library."""
    version = root / "proc/driver/nvidia/version"
    driver, _, gpus = _NO_GPU
    if version.is_file():
        found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", _text(version))
        driver = found[1] if found else None
        cards = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
        models = (re.search(r"^Model:\s*(.+?)\s*$", _text(card), re.MULTILINE) for card in cards)
        gpus = tuple(model[1] for model in models if model)
    elif not (root / "dev/dxg").exists():  # where Windows shares its card with Linux
        return _NO_GPU
    told = _tried(_nvml, _NO_GPU)
    return told[0] or driver, told[1], told[2] or gpus


def _nvml() -> _Gpus:
    import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]  # nvidia-ml-py

    def plain(value: Any) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)  # bytes up to version 11.5

    pynvml.nvmlInit()
    try:
        driver = _tried(lambda: plain(pynvml.nvmlSystemGetDriverVersion()), None)
        number = _tried(lambda: int(pynvml.nvmlSystemGetCudaDriverVersion()), 0)  # 12040 is 12.4
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        cuda = f"{number // 1000}.{number % 1000 // 10}" if number else None
        return driver, cuda, tuple(plain(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
    finally:
        pynvml.nvmlShutdown()


def _lpx_version() -> str:
    import lpx

    return lpx.__version__


def _native_isa() -> str | None:
    from lpx import _native

    isas = _native.available_isas()
    return isas[0] if isas else None  # the best comes first


def _package_versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
