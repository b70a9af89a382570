"""Matrix products of every weight type and instruction set against NumPy, and their independence of the batch (I1)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpx._native import PackedMatrix, available_isas, quantize_activations
from tests.native.quantized_rows import (
    BLOCK_TYPES,
    FLOAT_TYPES,
    expected_product,
    quantized_activations,
    random_weights,
)
from tests.reference.ggml_blocks import BLOCKS, dequantize

ALL_TYPES = FLOAT_TYPES + BLOCK_TYPES
ISAS = available_isas()
BATCHES = [2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 31, 70]

every_type = pytest.mark.parametrize("type_name", ALL_TYPES)
every_isa = pytest.mark.parametrize("isa", ISAS)


def _assert_close(got, type_name, weights, x):
    expected, magnitude = expected_product(type_name, weights, x)
    assert (np.abs(got - expected) <= 1e-6 * magnitude + 1e-30).all()


def _rows(count, cols, seed):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((count, cols)) * rng.uniform(0.1, 10, (count, 1))).astype(np.float32)


def _cols_of(type_name, cols):
    size = BLOCKS[type_name][0]
    return -(-cols // size) * size


@every_type
@every_isa
@pytest.mark.parametrize(("rows", "cols"), [(17, 96), (48, 576), (33, 896), (1, 1536), (15, 2304)])
def test_product_equals_numpy_on_the_quantized_activations(type_name, isa, rows, cols):
    cols = _cols_of(type_name, cols)
    data, weights = random_weights(type_name, rows, cols, seed=rows)
    packed = PackedMatrix.pack(type_name, rows, cols, data)
    x = _rows(21, cols, seed=cols)
    for batch in (1, 2, 3, 4, 5, 21):
        _assert_close(packed.matmul(x[:batch], isa), type_name, weights, x[:batch])


@every_type
@every_isa
def test_bits_of_a_row_do_not_depend_on_the_batch(type_name, isa):
    cols = 2304 if BLOCKS[type_name][0] == 256 else 2080
    data, _ = random_weights(type_name, 40, cols, seed=11)
    packed = PackedMatrix.pack(type_name, 40, cols, data)
    x = _rows(257, cols, seed=12)  # one more than share an unpacked chunk
    alone = np.concatenate([packed.matmul(x[i : i + 1], isa) for i in range(len(x))])
    for batch in [*BATCHES, len(x)]:
        together = np.concatenate([packed.matmul(x[i : i + batch], isa) for i in range(0, len(x), batch)])
        np.testing.assert_array_equal(together.view(np.uint32), alone.view(np.uint32), err_msg=f"batch of {batch}")


@every_isa
@pytest.mark.parametrize("type_name", ["Q4_1", "Q6_K", "F16"])
def test_bits_do_not_depend_on_threads(type_name, isa):
    data, _ = random_weights(type_name, 100, 512, seed=13)
    packed = PackedMatrix.pack(type_name, 100, 512, data)
    for batch in (1, 9):
        x = _rows(batch, 512, seed=14)
        one = packed.matmul(x, isa)
        for threads in (2, 3):
            np.testing.assert_array_equal(packed.matmul(x, isa, threads=threads), one)


def _extreme_blocks(type_name, fill):
    """Blocks whose codes are all `fill` bytes and whose scales are f16 ones."""
    size = BLOCKS[type_name][1]
    block = np.full(size, fill, dtype=np.uint8)
    one = np.frombuffer(np.float16(1).tobytes(), dtype=np.uint8)
    for at in {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}.get(type_name, (0,)):
        block[at : at + 2] = one
    if type_name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):
        block[2:4] = one
    return block


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
@every_isa
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x80, 0x7F])
def test_extreme_codes_and_activations_do_not_saturate(type_name, isa, fill):
    block = _extreme_blocks(type_name, fill)
    count = 512 // BLOCKS[type_name][0]
    data = np.tile(block, 16 * count)
    weights = dequantize(type_name, data, (16, 512))
    packed = PackedMatrix.pack(type_name, 16, 512, data)
    x = np.stack([np.full(512, 127.0), np.full(512, -127.0), np.tile([127.0, -127.0], 256)] * 5).astype(np.float32)
    for batch in (1, 3, 15):
        _assert_close(packed.matmul(x[:batch], isa), type_name, weights, x[:batch])


@settings(max_examples=80, deadline=None)
@given(
    type_name=st.sampled_from(ALL_TYPES),
    isa=st.sampled_from(ISAS),
    rows=st.integers(1, 50),
    blocks=st.integers(1, 45),
    batch=st.integers(1, 70),
    seed=st.integers(0, 1000),
)
def test_products_of_any_shape(type_name, isa, rows, blocks, batch, seed):
    cols = _cols_of(type_name, 32 * blocks)
    data, weights = random_weights(type_name, rows, cols, seed=seed)
    x = _rows(batch, cols, seed=seed)
    packed = PackedMatrix.pack(type_name, rows, cols, data)
    _assert_close(packed.matmul(x, isa, threads=1 + seed % 3), type_name, weights, x)


@every_isa
@pytest.mark.parametrize("type_name", FLOAT_TYPES)
def test_float_weights_of_any_width(type_name, isa):
    data, weights = random_weights(type_name, 19, 301, seed=15)
    x = _rows(7, 301, seed=16)
    packed = PackedMatrix.pack(type_name, 19, 301, data)
    for batch in (1, 7):
        _assert_close(packed.matmul(x[:batch], isa), type_name, weights, x[:batch])


@every_isa
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_quantized_while_packing_multiply_as_they_decode(bits, isa):
    data, _ = random_weights("BF16", 35, 172, seed=17)
    packed = PackedMatrix.quantize(bits, "BF16", 35, 172, data)
    x = _rows(6, 172, seed=18)
    weights = packed.decode(list(range(35))).astype(np.float64)
    _assert_close(packed.matmul(x, isa), packed.format, weights, x)


@every_isa
def test_activations_are_quantized_as_numpy_does(isa):
    x = _rows(9, 224, seed=19)
    x[3, 32:64] = 0
    x[4, :32] = 1e-38  # below what a scale can hold
    x[5, 64:96] = np.linspace(-1.5, 1.5, 32)  # ties and both ends
    x[6, 100] = 3e4  # an outlier
    x[7, 64:128] = 0
    x[7, 70] = -2.5  # nothing but an outlier
    q8, scale, total, coarse, coarse_scale, column = quantize_activations(x, isa)
    x[4, :32] = 0
    expected = quantized_activations(x)
    np.testing.assert_array_equal(q8, expected.codes)
    np.testing.assert_array_equal(scale, expected.scale)
    np.testing.assert_array_equal(total, expected.codes.reshape(9, -1, 16).astype(np.int16).sum(axis=2))
    np.testing.assert_array_equal(coarse, expected.coarse)
    np.testing.assert_array_equal(coarse_scale, expected.coarse_scale)
    np.testing.assert_array_equal(column, expected.column)


def _awkward_rows(cols, rng):
    """Rows with what quantization must decide or bear: equal peaks, zeros, too small or large values, no numbers."""
    x = rng.standard_normal((60, cols)).astype(np.float32)
    some = rng.random(x.shape)
    x[6:12] = np.round(2 * x[6:12])
    x[12:18] = 100 * x[12:18] ** 5
    x[18:24][some[18:24] < 0.03] = np.nan
    x[24:30][some[24:30] < 0.03] = np.inf
    x[30:36] *= np.float32(1e-31)
    x[36:42][some[36:42] < 0.7] = 0
    x[42:48][some[42:48] < 0.03] *= np.float32(1e30)
    x[48:54][some[48:54] < 0.1] = np.float32(3e38)
    x[54:60, : cols // 2] = 0
    return x


@every_isa
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 5, 16, 18, 23])
def test_activations_are_quantized_to_the_same_bits_by_every_instruction_set(isa, blocks):
    x = _awkward_rows(32 * blocks, np.random.default_rng(blocks))
    for got, expected in zip(quantize_activations(x, isa), quantize_activations(x, "portable"), strict=True):
        np.testing.assert_array_equal(got, expected)


@every_isa
def test_an_outlier_costs_its_block_no_precision(isa):
    x = _rows(16, 512, seed=25)
    outliers = x.copy()
    columns = np.arange(0, 512, 128) + np.random.default_rng(26).integers(0, 128, 4)
    outliers[:, columns] *= 300
    blocks, quads = quantized_activations(outliers).parts()
    np.testing.assert_array_equal(quantize_activations(outliers, isa)[0], quantized_activations(outliers).codes)
    error = np.abs(blocks + quads - outliers)
    assert (error <= np.abs(x).max(axis=1, keepdims=True) / 127).all()


@every_isa
@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0", "Q6_K", "F32"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_row_that_is_not_finite_stays_visible_and_alone(type_name, isa, bad):
    data, _ = random_weights(type_name, 16, 256, seed=20)
    packed = PackedMatrix.pack(type_name, 16, 256, data)
    x = _rows(6, 256, seed=21)
    clean = packed.matmul(x, isa)
    x[2, 40] = bad
    got = packed.matmul(x, isa)
    assert not np.isfinite(got[2]).any()
    others = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(got[others], clean[others])


def test_an_unknown_instruction_set_is_refused_with_the_choices():
    data, _ = random_weights("Q4_0", 1, 32, seed=22)
    packed = PackedMatrix.pack("Q4_0", 1, 32, data)
    with pytest.raises(ValueError, match=r"'sse9' is no known instruction set; choose one of: .*portable"):
        packed.matmul(np.zeros((1, 32), dtype=np.float32), "sse9")


def test_the_environment_chooses_the_instruction_set(monkeypatch):
    data, _ = random_weights("Q4_0", 16, 256, seed=23)
    packed = PackedMatrix.pack("Q4_0", 16, 256, data)
    x = _rows(1, 256, seed=24)
    for isa in ISAS:
        monkeypatch.setenv("LPX_ISA", isa)
        np.testing.assert_array_equal(packed.matmul(x), packed.matmul(x, isa))
    monkeypatch.setenv("LPX_ISA", "nonsense")
    with pytest.raises(ValueError, match="LPX_ISA: 'nonsense'"):
        packed.matmul(x)
