"""Rows as GGML blocks: what is encoded, an independent decoder reads back, with less error than rounding gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpx import _native
from lpx.model.tensor_types import TYPES
from lpx.quantize.blocks import ENCODABLE, encode
from tests.reference.ggml_blocks import dequantize

QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
# Relative errors of normally distributed weights: a step of the grid too many would double them.
MOST_ERROR = {"Q4_0": 0.1, "Q4_1": 0.085, "Q5_0": 0.05, "Q5_1": 0.043, "Q8_0": 0.006, "Q4_K": 0.085, "Q5_K": 0.043}
MOST_ERROR |= {"Q6_K": 0.02, "F16": 0.0003, "BF16": 0.003, "F32": 0.0}


def weights(rows=24, columns=512, seed=0, std=0.02):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, columns)) * std).astype(np.float32)


def uneven(columns=512, seed=1):
    return np.exp(np.random.default_rng(seed).standard_normal(columns)).astype(np.float32)


def decoded(kind, values, importance=None, **options):
    return dequantize(kind, encode(kind, values, importance, **options), values.shape)


def weighted_error(found, values, importance=1.0):
    return float((((found - values) ** 2) * importance).sum())


@pytest.mark.parametrize("search", [True, False])
@pytest.mark.parametrize("kind", ENCODABLE)
def test_reference_decodes_what_was_encoded(kind, search):
    values = weights()
    found = decoded(kind, values, search=search)
    error = np.linalg.norm(found - values) / np.linalg.norm(values)
    assert error <= MOST_ERROR[kind] * (1.2 if search is False else 1)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_native_decoder_agrees_with_the_reference(kind):
    values = weights(seed=2)
    encoded = encode(kind, values)
    assert encoded.shape == (len(values), TYPES[kind].row_bytes(values.shape[1]))
    native = _native.decode_rows(kind, values.shape[1], encoded.reshape(-1))
    np.testing.assert_allclose(native, dequantize(kind, encoded, values.shape), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_search_errs_less_than_rounding_where_it_matters(kind):
    values, importance = weights(seed=3), uneven()
    searched = weighted_error(decoded(kind, values, importance), values, importance)
    rounded = weighted_error(decoded(kind, values, search=False), values, importance)
    most = 0.73 if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K", "Q6_K") else 0.85
    assert searched < most * rounded


@pytest.mark.parametrize("kind", QUANTIZED)
def test_important_columns_err_less_than_others(kind):
    values = weights(rows=64, seed=4)
    importance = np.ones(512, np.float32)
    importance[::8] = 100
    errors = (decoded(kind, values, importance) - values) ** 2
    indifferent = (decoded(kind, values) - values) ** 2
    assert errors[:, ::8].mean() < 0.9 * indifferent[:, ::8].mean()


@pytest.mark.parametrize("kind", QUANTIZED)
def test_weights_on_the_grid_come_back(kind):
    """What was quantized once loses nothing when it is quantized in the same way again."""
    values = decoded(kind, weights(seed=5), search=False).astype(np.float32)
    again = decoded(kind, values)
    # Scales of K types are found again within the rounding of their float16 parts.
    tolerance = 0.15 if kind.endswith("_K") else 0.02
    error = np.linalg.norm(again - values) / np.linalg.norm(values)
    assert error < tolerance * MOST_ERROR[kind]


@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("search", [True, False])
def test_blocks_of_equal_weights(kind, search):
    values = np.zeros((3, 256), np.float32)
    values[1], values[2] = 0.5, -0.25
    found = decoded(kind, values, search=search)
    assert np.array_equal(found[0], values[0])
    np.testing.assert_allclose(found[1:], values[1:], rtol=0.01)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_importance_of_nothing_counts_all_columns_alike(kind):
    values = weights(seed=6)
    assert np.array_equal(encode(kind, values, np.zeros(512, np.float32)), encode(kind, values))


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("IQ4_XS", weights(), "cannot be encoded as IQ4_XS"),
        ("Q4_K", weights(columns=96), "rows of 96 values are no whole blocks of Q4_K"),
        ("Q8_0", np.full((1, 32), np.nan, np.float32), "not finite"),
        ("F16", np.full((1, 32), 70000.0, np.float32), "beyond 65504"),
    ],
)
def test_refusals_say_why(kind, values, message):
    with pytest.raises(ValueError, match=message):
        encode(kind, values)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(QUANTIZED),
    seed=st.integers(0, 2**32 - 1),
    exponent=st.integers(-24, 12),
    search=st.booleans(),
)
def test_whatever_the_weights_the_error_is_bounded(kind, seed, exponent, search):
    """Heavy tails, one-sided blocks, blocks of zeros, tiny and large scales: no block errs by more than its range."""
    rng = np.random.default_rng(seed)
    values = (rng.standard_t(2, (2, 256)) * 2.0**exponent).astype(np.float32)
    values[0, :64] = np.abs(values[0, :64])
    values[0, 64:128] = -np.abs(values[0, 64:128])
    values[1, 96:160] = 0
    values = np.clip(values, -60000, 60000)
    found = decoded(kind, values, uneven(256, seed), search=search)
    assert np.isfinite(found).all()
    blocks, errors = values.reshape(-1, 256), np.abs(found - values).reshape(-1, 256)
    # Scales of float16 end at 2**-24, those of super-blocks at 63 or 128 times as much.
    least = 2.0**-24 * 128 * 32
    assert (errors.max(axis=1) <= 1.05 * np.abs(blocks).max(axis=1) + least).all()
