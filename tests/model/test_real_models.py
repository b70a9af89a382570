"""The published models open to the numbers that their authors state."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpx.errors import ModelFileError
from lpx.model.files import open_model
from lpx.model.gguf import GgufFile
from lpx.model.tensor_types import TYPES

NUMBERS: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 576, "intermediate_size": 1536, "num_layers": 30, "num_heads": 9, "num_kv_heads": 3,
        "head_dim": 64, "vocab_size": 49_152, "max_position": 8192, "tied_head": True, "activation": "silu",
        "attention_scale": 0.125, "embedding_scale": 1.0,
    },
    "qwen2": {
        "hidden_size": 896, "intermediate_size": 4864, "num_layers": 24, "num_heads": 14, "num_kv_heads": 2,
        "head_dim": 64, "vocab_size": 151_936, "max_position": 32_768, "tied_head": False, "activation": "silu",
        "attention_scale": 0.125, "embedding_scale": 1.0,
    },
    "gemma3": {
        "hidden_size": 640, "intermediate_size": 2048, "num_layers": 18, "num_heads": 4, "num_kv_heads": 1,
        "head_dim": 256, "vocab_size": 262_144, "max_position": 32_768, "tied_head": True, "activation": "gelu_tanh",
        "attention_scale": 1 / 16, "embedding_scale": 640**0.5,
    },
}  # fmt: skip
ROTARY_BASES = {"llama": [100_000.0], "qwen2": [1_000_000.0], "gemma3": [1_000_000.0, 10_000.0]}
ENDS = {"llama": {0, 2}, "qwen2": {151_643, 151_645}, "gemma3": {1, 106}}


def test_config_and_weights(real_model_path: Path) -> None:
    with open_model(real_model_path) as model:
        config = model.config
        arch = config.architecture
        assert {key: getattr(config, key) for key in NUMBERS[arch]} == pytest.approx(NUMBERS[arch])
        for rotary, base in zip(config.rotaries, ROTARY_BASES[arch], strict=True):
            assert len(rotary.inv_freq) == config.head_dim // 2
            assert rotary.inv_freq[1] == pytest.approx(base ** (-2 / config.head_dim))
        if arch == "gemma3":
            assert [layer.window for layer in config.layers] == ([512] * 5 + [0]) * 3
            assert [layer.rotary for layer in config.layers] == ([1] * 5 + [0]) * 3
        assert model.eos_token_ids == ENDS[arch]
        assert (model.chat_template is None) == (arch == "gemma3")
        assert len(model.tokenizer_source.tokens) == config.vocab_size
        shapes = {name: (kind, shape) for name, kind, shape in model.matrix_shapes()}
        seen = set()
        for weight in model.weights():
            assert weight.name not in seen
            seen.add(weight.name)
            kind = TYPES[weight.type]
            assert weight.data.nbytes == np.prod(weight.shape) // kind.block_values * kind.block_bytes
            if len(weight.shape) == 2:
                assert shapes.pop(weight.name) == (weight.type, weight.shape)
                assert (weight.row_map is not None) == (arch == "llama" and weight.name[-2:] in (".q", ".k"))
            else:
                assert weight.type == "F32"
        assert not shapes
        assert sum(model.weight_types.values()) < model.file_bytes < sum(model.weight_types.values()) * 1.05


def test_a_cut_download_is_refused(real_model_path: Path, tmp_path: Path) -> None:
    """The last 1 KiB is missing: every tensor but the last is there."""
    cut = tmp_path / "cut.gguf"
    with GgufFile(real_model_path) as model:
        header = min(tensor.offset for tensor in model.tensors.values())
    with real_model_path.open("rb") as file:
        cut.write_bytes(file.read(header))
    with cut.open("r+b") as file:
        file.truncate(real_model_path.stat().st_size)
    with GgufFile(cut) as model:
        last = max(model.tensors.values(), key=lambda tensor: tensor.offset)
    with cut.open("r+b") as file:
        file.truncate(real_model_path.stat().st_size - 1024)
    with pytest.raises(ModelFileError, match=rf"tensor '{last.name}' ends at byte \d+, but the file has \d+ bytes"):
        open_model(cut)
