"""Reads the cards through NVML, in a process of its own: a driver that hangs or crashes takes only that one along.

Run as `python -m lpx.doctor.nvml_probe`. Prints one JSON object: `driver`, `cuda` and `cards`, or `error`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any


def read_nvml() -> dict[str, Any]:
    try:
        import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return {"error": "nvidia-ml-py is not installed"}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"error": f"Failed to initialize NVML: {error}"}
    cuda = _ask(pynvml.nvmlSystemGetCudaDriverVersion)
    found: dict[str, Any] = {
        "driver": _ask(pynvml.nvmlSystemGetDriverVersion),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if isinstance(cuda, int) else None,
        "cards": [],
        "lost": [],
    }
    for index in range(_ask(pynvml.nvmlDeviceGetCount) or 0):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            found["lost"].append(f"card {index}: {error}")
            continue
        found["cards"].append(_card(pynvml, handle, index))
    return found


def _card(nvml: Any, handle: Any, index: int) -> dict[str, Any]:
    memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    capability = _ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    mig = _ask(nvml.nvmlDeviceGetMigMode, handle)
    persistence = _ask(nvml.nvmlDeviceGetPersistenceMode, handle)
    pci = _ask(nvml.nvmlDeviceGetPciInfo, handle)
    return {
        "index": index,
        "name": _text(_ask(nvml.nvmlDeviceGetName, handle)),
        "bus_id": _text(pci.busId) if pci is not None else None,
        "memory_bytes": int(memory.total) if memory is not None else None,
        "used_bytes": int(memory.used) if memory is not None else None,
        "compute_capability": "{}.{}".format(*capability) if capability else None,
        "mig": bool(mig[0]) if mig else None,
        "persistence": bool(persistence) if persistence is not None else None,
        "temperature_c": _ask(nvml.nvmlDeviceGetTemperature, handle, 0),
    }


def _ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None: cards, drivers and containers each leave out some."""
    with contextlib.suppress(Exception):
        return function(*arguments)
    return None


def _text(value: Any) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    print(json.dumps(read_nvml()))
