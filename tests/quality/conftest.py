from __future__ import annotations

from pathlib import Path

import pytest

from lpx.options import EngineOptions
from tests.reference.gguf_variants import as_q4_1, as_q8_0, with_scales
from tests.reference.model_files import interleave_rows, write_hf_folder, write_model_gguf
from tests.reference.tiny_models import make_tiny

ENCODERS = {"Q8_0": as_q8_0, "Q4_1": as_q4_1}


class TinyFiles:
    """One tiny model as an unquantized folder and as GGUF files of other types, with scales that may be off."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.config, self.weights = make_tiny("llama", 3, hidden_size=64, intermediate_size=96)
        self.unquantized = write_hf_folder(folder / "unquantized", self.config, self.weights)

    def quantized(self, kind: str, factor: float = 1.0, only: str = "") -> Path:
        """All matrices in `kind`; the scales of those whose name holds `only` are multiplied by `factor`."""
        encoded = {}
        for name, weight in self.weights.items():
            if weight.ndim != 2 or "embed" in name or "lm_head" in name:
                continue
            for part, heads in ((".q_proj.", "num_attention_heads"), (".k_proj.", "num_key_value_heads")):
                if part in name:
                    weight = interleave_rows(weight, self.config[heads])
            data = ENCODERS[kind](weight)
            if factor != 1 and only in name:
                data = with_scales(kind, data, factor)
            encoded[name] = (kind, data)
        path = self._folder / f"{kind}-{factor}-{only}.gguf"
        return write_model_gguf(path, self.config, self.weights, encoded=encoded)

    @staticmethod
    def options(path: Path, **more: object) -> EngineOptions:
        return EngineOptions(model=str(path), threads=1, **more)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyFiles:
    return TinyFiles(tmp_path_factory.mktemp("quality"))
