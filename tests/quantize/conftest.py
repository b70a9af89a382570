from __future__ import annotations

from pathlib import Path

import pytest

from lpx.quantize.job import QuantizeSettings
from tests.reference.model_files import write_hf_folder, write_model_gguf
from tests.reference.tiny_models import make_tiny


class TinySources:
    """One tiny model as a folder and as a GGUF file, both in F32; rows of 64 and of 256 for both kinds of blocks."""

    def __init__(self, folder: Path) -> None:
        self.config, self.weights = make_tiny("llama", 3, hidden_size=64, intermediate_size=256)
        self.folder = write_hf_folder(folder / "model", self.config, self.weights)
        self.gguf = write_model_gguf(folder / "model.gguf", self.config, self.weights)
        self.text = folder / "text.txt"  # short: calibration on the bundled texts takes seconds
        self.text.write_text("The sea is calm tonight, and the tide is full. 今晚海上很平静。" * 4, encoding="utf-8")

    def settings(self, target: Path, **more: object) -> QuantizeSettings:
        usual = {"source": self.gguf, "target": target, "calibration": self.text, "threads": 1, "windows": 1}
        return QuantizeSettings(**usual | more)


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> TinySources:
    return TinySources(tmp_path_factory.mktemp("quantize"))
