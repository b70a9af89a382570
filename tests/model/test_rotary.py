"""Rotary frequencies and magnitudes, against the definitions written down a second time in the reference."""

import math

import numpy as np
import pytest

from lpx.errors import ModelFileError
from lpx.model import rotary
from tests.reference.rope import scaled_frequencies


def test_frequencies_and_linear_scaling() -> None:
    assert rotary.frequencies(10_000.0, 4).tolist() == pytest.approx([1.0, 0.01])
    expected, _ = scaled_frequencies(5e5, 64, {"type": "linear", "factor": 4.0}, 4096, 1)
    np.testing.assert_allclose(rotary.linear(rotary.frequencies(5e5, 64), 4.0), expected, rtol=1e-12)


def test_llama3_scaling() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected, _ = scaled_frequencies(5e5, 64, scaling, 131_072, 1)
    found = rotary.llama3(rotary.frequencies(5e5, 64), 32.0, 1.0, 4.0, 8192)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    plain = rotary.frequencies(5e5, 64)
    assert found[0] == plain[0]
    assert found[-1] == pytest.approx(plain[-1] / 32)
    with pytest.raises(ModelFileError, match="high_freq_factor"):
        rotary.llama3(plain, 32.0, 4.0, 4.0, 8192)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(
    ("base", "dim", "factor", "original"), [(1e6, 128, 4.0, 32_768), (1e4, 64, 40.0, 4096), (1e4, 8, 64.0, 16)]
)
def test_yarn_frequencies(base: float, dim: int, factor: float, original: int, truncate: bool) -> None:
    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "truncate": truncate,
    }
    expected, magnitude = scaled_frequencies(base, dim, scaling, 131_072, 1)
    np.testing.assert_allclose(rotary.yarn(base, dim, factor, original, truncate=truncate), expected, rtol=1e-12)
    assert rotary.yarn_attention_factor(factor) == pytest.approx(magnitude)


def test_yarn_magnitude_rules() -> None:
    assert rotary.yarn_attention_factor(64.0, attention_factor=1.0) == 1.0
    assert rotary.yarn_attention_factor(40.0, mscale=0.707, mscale_all_dim=0.707) == 1.0
    assert rotary.yarn_attention_factor(4.0) == pytest.approx(0.1 * math.log(4) + 1)
    ratio = (0.1 * math.log(40) + 1) / (0.05 * math.log(40) + 1)
    assert rotary.yarn_attention_factor(40.0, mscale=1.0, mscale_all_dim=0.5) == pytest.approx(ratio)
    # One of the two alone says nothing.
    assert rotary.yarn_attention_factor(40.0, mscale=0.5) == pytest.approx(0.1 * math.log(40) + 1)
    assert rotary.yarn_attention_factor(40.0, 1.25, mscale=1.0, mscale_all_dim=0.5) == 1.25
    assert rotary.yarn_attention_factor(0.5) == 1.0


def test_longrope_magnitude() -> None:
    assert rotary.longrope_attention_factor(131_072, 4096) == pytest.approx(
        math.sqrt(1 + math.log(32) / math.log(4096))
    )
    assert rotary.longrope_attention_factor(4096, 4096) == 1.0


def test_divisors_are_checked() -> None:
    plain = rotary.frequencies(1e4, 8)
    np.testing.assert_allclose(rotary.divide(plain, [1.0, 2.0, 4.0, 8.0], "x"), plain / [1, 2, 4, 8])
    for factors in ([1.0] * 3, [1.0, 0.0, 1.0, 1.0], [1.0, math.nan, 1.0, 1.0], [1.0, -1.0, 1.0, 1.0]):
        with pytest.raises(ModelFileError, match="the factors"):
            rotary.divide(plain, factors, "the factors")


def test_an_odd_number_of_rotated_dimensions_is_refused() -> None:
    for scaled in (rotary.frequencies, lambda base, dim: rotary.yarn(base, dim, 4.0, 128)):
        with pytest.raises(ModelFileError, match="rotary embedding of 5 dimensions"):
            scaled(10_000.0, 5)
