"""Scales that are off are found tensor by tensor, and sound rounding to few bits is not blamed for anything."""

from __future__ import annotations

import numpy as np
import pytest

from lpx.errors import ConfigError
from lpx.quality import compare_weights
from lpx.quality.weights import TensorSlope
from tests.quality.conftest import TinyFiles
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny

MATRICES = 7 * 3  # quantized ones


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_sound_quantization_passes_whatever_the_order_of_rows(tiny: TinyFiles, kind: str) -> None:
    found = compare_weights(tiny.options(tiny.quantized(kind)), tiny.options(tiny.unquantized))
    assert found.faulty == []
    rounded = [tensor for tensor in found.tensors if tensor.type == kind]
    assert len(rounded) == MATRICES
    most = {"Q8_0": 0.01, "Q4_1": 0.12}[kind]
    assert all(0 < tensor.relative_error < most for tensor in rounded)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
@pytest.mark.parametrize("factor", [1.03, 0.97])
def test_scales_off_by_3_percent_are_found_in_every_tensor(tiny: TinyFiles, kind: str, factor: float) -> None:
    found = compare_weights(tiny.options(tiny.quantized(kind, factor)), tiny.options(tiny.unquantized))
    assert len(found.faulty) == MATRICES
    for tensor in found.faulty:
        assert tensor.off_by == pytest.approx(factor - 1, abs=0.01)
        assert "scales are wrong" in str(tensor.finding)


def test_a_single_wrong_tensor_is_named(tiny: TinyFiles) -> None:
    path = tiny.quantized("Q8_0", 1.03, only="layers.1.mlp.down_proj")
    found = compare_weights(tiny.options(path), tiny.options(tiny.unquantized))
    assert [tensor.name for tensor in found.faulty] == ["layers.1.down"]


@pytest.mark.parametrize("kind", ["q8", "q4"])
def test_quantization_at_load_is_checked_too(tiny: TinyFiles, kind: str) -> None:
    subject = tiny.options(tiny.unquantized, quantization=kind)
    found = compare_weights(subject, tiny.options(tiny.unquantized))
    assert found.faulty == []
    assert sum(tensor.type == kind for tensor in found.tensors) >= MATRICES


def test_another_models_tensors_are_damage(tiny: TinyFiles, tmp_path) -> None:
    _, weights = make_tiny("llama", 4, hidden_size=64, intermediate_size=96)
    other = write_hf_folder(tmp_path / "other", tiny.config, weights)
    found = compare_weights(tiny.options(tiny.quantized("Q8_0")), tiny.options(other))
    assert len(found.faulty) >= MATRICES


def test_models_of_other_shapes_are_refused(tiny: TinyFiles, tmp_path) -> None:
    config, weights = make_tiny("llama", 4)
    other = write_hf_folder(tmp_path / "other", config, weights)
    with pytest.raises(ConfigError, match="do not hold the same tensors"):
        compare_weights(tiny.options(tiny.unquantized), tiny.options(other))


def test_other_float_types_and_unused_biases_are_sound(tiny: TinyFiles, tmp_path) -> None:
    config, weights = make_tiny("qwen2", 4)
    weights["model.layers.0.self_attn.q_proj.bias"][:] = 0
    plain, *others = (
        write_hf_folder(tmp_path / dtype, config, weights, dtype=dtype) for dtype in ("F32", "F16", "BF16")
    )
    for other in others:
        found = compare_weights(tiny.options(other), tiny.options(plain))
        assert found.faulty == []
        assert any(tensor.relative_error > 0 for tensor in found.tensors)


def test_tensors_without_values_are_found() -> None:
    tensor = TensorSlope("layers.0.up", "Q8_0", 8.5, float("nan"), float("nan"), float("nan"))
    assert "not finite" in str(tensor.finding)


def test_rounding_to_two_bits_is_no_fault_of_the_scales() -> None:
    rng = np.random.default_rng(1)
    w = rng.normal(size=100_000)
    for step in (0.3, 0.6, 1.0):
        q = np.rint(w / step) * step
        forward, backward = (w @ q) / (w @ w), (q @ q) / (w @ q)
        error = float(np.linalg.norm(q - w) / np.linalg.norm(w))
        assert TensorSlope("a", "Q2_K", 2.6, forward, backward, error).finding is None
        assert TensorSlope("a", "Q2_K", 2.6, 0.9 * forward, 0.9 * backward, error).finding is not None
