"""Common NVIDIA GPUs: memory, bandwidth, and which kinds of numbers their tensor cores multiply.

`gpus.json` holds what the makers publish; `uncertain` says where a figure is not the same for all cards of a name, or
comes from others than the maker. Cards that are not listed can still be judged by `capabilities`.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("gpus.json")

# Words that drivers put around the name and people leave out.
_NOISE = frozenset({"nvidia", "geforce", "gpu", "tesla", "graphics", "card", "generation", "edition", "with", "design"})
_MEMORY = re.compile(r"\d+gb")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the hardware multiplies by itself.

    Weights of 4 and 8 bits can be kept on every card: where it has no unit for them they are unpacked to f16 first,
    which saves memory and bandwidth all the same.
    """

    fp16: bool
    bf16: bool
    int8: bool
    int4: bool
    fp8: bool
    fp4: bool


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card, or one GPU of a board with several."""

    name: str
    family: str  # "geforce", "laptop", "workstation", "datacenter", "jetson"
    memory_gb: float  # as sold; drivers count it in GiB
    bandwidth_gb_s: float  # peak, 1e9 bytes
    compute_capability: str  # such as "8.9"
    aliases: tuple[str, ...] = ()
    tensor_cores: bool = True
    unified: bool = False  # shares the memory with the processor and the system
    uncertain: str | None = None  # why a figure may be another one

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gb * 2**30)

    @property
    def bytes_per_second(self) -> float:
        return self.bandwidth_gb_s * 1e9

    @property
    def capabilities(self) -> Capabilities:
        return capabilities(self.compute_capability, tensor_cores=self.tensor_cores)


def capabilities(compute_capability: str | tuple[int, int], *, tensor_cores: bool = True) -> Capabilities:
    """Of a compute capability such as "8.9" or (8, 9); ValueError when it is none.

    From the tables of the CUDA programming guide and PTX's `mma`: f16 products from 5.3 on (6.1 has few units for
    them), four-way int8 sums from 6.1 on, bf16 from 8.0, FP8 from 8.9, FP4 from 10.0; tensor cores multiply 4-bit
    integers from 7.5 up to 8.9 only.
    """
    if isinstance(compute_capability, str):
        match = re.fullmatch(r"(\d{1,2})\.(\d)", compute_capability.strip(), re.ASCII)
        if match is None:
            raise ValueError(f"{compute_capability!r} is not a compute capability; write it like 8.9")
        version = int(match[1]), int(match[2])
    else:
        version = compute_capability
    return Capabilities(
        fp16=version >= (5, 3) and version != (6, 1),
        bf16=version >= (8, 0),
        int8=version >= (6, 1),
        int4=tensor_cores and (7, 5) <= version <= (8, 9),
        fp8=version >= (8, 9),
        fp4=version >= (10, 0),
    )


@functools.cache
def read_table(path: Path = TABLE) -> tuple[Gpu, ...]:
    """Every card, oldest generation of each family first."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    return tuple(Gpu(**{**row, "aliases": tuple(row.get("aliases", ()))}) for row in rows)


def find(name: str, memory_bytes: int | None = None) -> Gpu | None:
    """The card that a user or a driver calls `name`: "4060 ti", "NVIDIA GeForce RTX 4060 Laptop GPU", "Tesla T4".

    `memory_bytes`, as the driver reports it, tells cards of one name apart. None when it is not listed.
    """
    wanted = _words(name)
    if not wanted:
        return None
    for spelled in (wanted, ["rtx", *wanted], ["gtx", *wanted]):
        exact = [gpu for gpu in read_table() if spelled in _spellings(gpu)]
        if memory_bytes is None:
            if exact:
                return exact[0]
            continue
        bare = [word for word in spelled if not _MEMORY.fullmatch(word)]
        alike = exact + [gpu for gpu in read_table() if bare in [_bare(words) for words in _spellings(gpu)]]
        if alike:
            return min(alike, key=lambda gpu: abs(gpu.memory_bytes - memory_bytes))
    return None


def nearest_names(name: str, count: int = 3) -> list[str]:
    """Listed cards whose names look like `name`, for an error message."""
    by_words = {" ".join(_words(gpu.name)): gpu.name for gpu in read_table()}
    found = difflib.get_close_matches(" ".join(_words(name)), by_words, n=count, cutoff=0.5)
    return [by_words[words] for words in found]


@functools.cache
def _spellings(gpu: Gpu) -> list[list[str]]:
    return [_words(name) for name in (gpu.name, *gpu.aliases)]


def _bare(words: list[str]) -> list[str]:
    return [word for word in words if not _MEMORY.fullmatch(word)]


def _words(name: str) -> list[str]:
    """`NVIDIA GeForce RTX4060Ti 16 GB` as rtx 4060 ti 16gb: lower case, in the order given, without noise."""
    text = re.sub(r"\((r|tm)\)|[®™]", " ", name.lower())
    text = re.sub(r"(\d+)\s*gi?b\b", r" \1gb ", text)
    text = re.sub(r"\b([rg]tx)(\d)", r"\1 \2", text)
    text = re.sub(r"\b(\d{4})(ti|super|d)\b", r"\1 \2", text)
    text = re.sub(r"\b(ti)(super)\b", r"\1 \2", text)
    text = text.replace("with max-q design", "laptop").replace("mobile", "laptop").replace("max-q", "")
    words = [word for word in re.split(r"[\s_/-]+", text) if word and word not in _NOISE]
    # A driver names laptops "RTX 4060 Laptop GPU"; the memory, where it is said, may stand before or behind.
    return [word for word in words if not _MEMORY.fullmatch(word)] + sorted(
        word for word in words if _MEMORY.fullmatch(word)
    )
