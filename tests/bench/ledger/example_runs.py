"""Measurements and environments for tests, with whatever a test wants to be different."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta, timezone
from typing import Any

from lpx.bench.measurement import Measurement, Subject
from lpx.doctor.environment import Environment

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=timezone.utc)

ENVIRONMENT = Environment(
    os="Debian GNU/Linux 12 (bookworm)",
    kernel="Linux 6.1.0",
    architecture="x86_64",
    container=None,
    virtual_machine=False,
    cpu_model="Example CPU",
    instruction_sets=("avx2", "fma"),
    physical_cores=4,
    logical_cpus=8,
    usable_cpus=8,
    cpu_quota=None,
    memory_bytes=16 << 30,
    memory_limit_bytes=None,
    gpus=("NVIDIA Example",),
    nvidia_driver="550.54.14",
    cuda="12.4",
    python="CPython 3.11.2",
    lpx="0.1.0",
    native_isa="avx2",
    packages={"numpy": "2.1.0"},
)
NEWER_DRIVER = dataclasses.replace(ENVIRONMENT, nvidia_driver="570.86.10", cuda="12.8")


def a_measurement(
    model: str = "千问-0.5b", *, minutes: float = 0, subject: dict[str, Any] | None = None, **changes: Any
) -> Measurement:
    """One begun `minutes` after noon."""
    about = {
        "engine": "lpx",
        "engine_version": "0.1.0",
        "quantization": "Q4_K 90%, Q6_K 10%",
        "kv_cache_dtype": "f16",
        "device": "cpu",
        "isa": "avx2",
        "threads": 4,
    }
    values: dict[str, Any] = {
        "kind": "latency",
        "subject": Subject(model=model, **{**about, **(subject or {})}),
        "settings": {"prompts": ["你好", "hello"], "limits": {"seconds": 1.5, "none": None}},
        "figures": {"decode_tokens_per_second": 100.0, "ttft_ms_median": 12.5, "ttft_ms_p99": 20.25},
        "samples": {"ttft_ms": (12.5, 20.25, 0.1)},
        "errors": {"timeout": 2},
        "batch_size": 4,
        "input_len": 512,
        "output_len": 128,
        "started": NOON + timedelta(minutes=minutes),
        "seconds": 3.5,
    }
    return Measurement(**{**values, **changes})
