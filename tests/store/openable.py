"""Contents of tiny models that LPX opens: a pull takes nothing else. Bytes behind the last tensor make them longer."""

from __future__ import annotations

import random
import tempfile
from functools import cache
from pathlib import Path

from lpx.model.gguf import GgufFile
from tests.reference.gguf_writer import Typed, write_gguf
from tests.reference.model_files import gguf_metadata, write_hf_folder, write_model_gguf
from tests.reference.tiny_models import make_tiny


@cache
def gguf(seed: int, size: int | None = None) -> bytes:
    """A model of `size` bytes; as small as it is without one."""
    with tempfile.TemporaryDirectory() as folder:
        data = write_model_gguf(Path(folder, "tiny.gguf"), *make_tiny("llama", seed)).read_bytes()
    return data if size is None else data + random.Random(seed).randbytes(size - len(data))


@cache
def hf_folder(seed: int, **changes: int) -> dict[str, bytes]:
    """config.json, tokenizer.json and model.safetensors."""
    with tempfile.TemporaryDirectory() as folder:
        written = write_hf_folder(Path(folder, "tiny"), *make_tiny("llama", seed, **changes))
        return {name: (written / name).read_bytes() for name in ("config.json", "tokenizer.json", "model.safetensors")}


@cache
def split(seed: int) -> tuple[bytes, bytes]:
    """A model in two parts."""
    config, weights = make_tiny("llama", seed)
    with tempfile.TemporaryDirectory() as folder:
        with GgufFile(write_model_gguf(Path(folder, "whole.gguf"), config, weights)) as file:
            stored = [(each.name, each.type.name, each.shape, each.view().tobytes()) for each in file.tensors.values()]
        parts = []
        for index in range(2):
            metadata = gguf_metadata(config) if index == 0 else {}
            metadata |= {
                "split.no": Typed("UINT16", index),
                "split.count": Typed("UINT16", 2),
                "split.tensors.count": Typed("INT32", len(stored)),
            }
            parts.append(write_gguf(Path(folder, f"part-{index}.gguf"), metadata, stored[index::2]).read_bytes())
    return parts[0], parts[1]
