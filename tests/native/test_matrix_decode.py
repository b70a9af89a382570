"""Rows of every weight type: decoding, packing, reading back, and quantization at load."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpx._native import PackedMatrix, decode_rows
from tests.native.quantized_rows import BLOCK_TYPES, FLOAT_TYPES, random_weights
from tests.reference.ggml_blocks import BLOCKS

ALL_TYPES = FLOAT_TYPES + BLOCK_TYPES


def _cols_of(type_name, blocks):
    return blocks * max(BLOCKS[type_name][0], 32)


@pytest.mark.parametrize("type_name", ALL_TYPES)
def test_rows_decode_to_the_reference_values(type_name):
    data, expected = random_weights(type_name, 37, _cols_of(type_name, 5), seed=1)
    got = decode_rows(type_name, expected.shape[1], data)
    # A minimum adds a second rounding; without one the float32 product is the rounded exact value.
    atol = 0 if type_name not in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K") else np.abs(expected).max() * 2.0**-22
    np.testing.assert_allclose(got, expected.astype(np.float32), rtol=0, atol=atol)


@pytest.mark.parametrize("type_name", ALL_TYPES)
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 50])
def test_packed_rows_read_back_the_bits_of_the_file(type_name, rows):
    for blocks in (1, 3, 4):
        cols = _cols_of(type_name, blocks)
        data, _ = random_weights(type_name, rows, cols, seed=rows * 10 + blocks)
        packed = PackedMatrix.pack(type_name, rows, cols, data)
        got = packed.decode(list(range(rows)))
        np.testing.assert_array_equal(got.view(np.uint32), decode_rows(type_name, cols, data).view(np.uint32))
        assert packed.bytes == PackedMatrix.packed_bytes(type_name, rows, cols)
        assert packed.float_weights == (type_name in FLOAT_TYPES)
        assert packed.format == type_name


@pytest.mark.parametrize("type_name", ALL_TYPES)
def test_packed_matrix_is_about_as_large_as_the_file(type_name):
    data, _ = random_weights(type_name, 64, 1024, seed=3)
    assert PackedMatrix.packed_bytes(type_name, 64, 1024) <= 1.04 * data.size


@pytest.mark.parametrize("type_name", ALL_TYPES)
def test_row_map_and_threads_choose_rows_not_values(type_name):
    cols = _cols_of(type_name, 2)
    data, _ = random_weights(type_name, 70, cols, seed=4)
    row_map = np.random.default_rng(5).integers(0, 70, 53).astype(np.int32)
    rows = decode_rows(type_name, cols, data)
    for threads in (1, 3):
        packed = PackedMatrix.pack(type_name, 53, cols, data, row_map=row_map, threads=threads)
        np.testing.assert_array_equal(packed.decode(list(range(53))), rows[row_map])


@settings(max_examples=60, deadline=None)
@given(type_name=st.sampled_from(ALL_TYPES), rows=st.integers(1, 40), blocks=st.integers(1, 6), seed=st.integers(0, 99))
def test_any_bytes_survive_packing(type_name, rows, blocks, seed):
    cols = _cols_of(type_name, blocks)
    size = rows * cols // BLOCKS[type_name][0] * BLOCKS[type_name][1]
    data = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)  # NaN and infinite scales too
    packed = PackedMatrix.pack(type_name, rows, cols, data, threads=1 + seed % 2)
    with np.errstate(all="ignore"):
        got, expected = packed.decode(list(range(rows))), decode_rows(type_name, cols, data)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    finite = ~np.isnan(expected)
    np.testing.assert_array_equal(got.view(np.uint32)[finite], expected.view(np.uint32)[finite])


@pytest.mark.parametrize("type_name", FLOAT_TYPES)
def test_float_rows_of_any_width_are_padded(type_name):
    data, expected = random_weights(type_name, 18, 77, seed=6)
    packed = PackedMatrix.pack(type_name, 18, 77, data)
    np.testing.assert_array_equal(packed.decode([0, 17]), expected.astype(np.float32)[[0, 17]])


@pytest.mark.parametrize("type_name", FLOAT_TYPES)
@pytest.mark.parametrize("cols", [64, 77])
def test_8_bit_quantization_rounds_to_half_a_step(type_name, cols):
    data, values = random_weights(type_name, 33, cols, seed=7)
    got = PackedMatrix.quantize(8, type_name, 33, cols, data).decode(list(range(33)))
    for start in range(0, cols, 32):
        block = values[:, start : start + 32]
        step = np.abs(block).max(axis=1, keepdims=True) / 127
        # The f16 scale may be off by 2^-11 of itself, which moves the largest code's value by 127 * 2^-11 steps.
        assert (np.abs(got[:, start : start + 32] - block) <= step * (0.5 + 127 * 2.0**-11)).all()


@pytest.mark.parametrize("cols", [64, 77])
def test_4_bit_quantization_beats_the_plain_range_and_keeps_constants(cols):
    data, values = random_weights("F32", 64, cols, seed=8)
    packed = PackedMatrix.quantize(4, "F32", 64, cols, data)
    got = packed.decode(list(range(64)))
    assert packed.format == "Q4_1"
    plain_error = quantized_error = 0.0
    for start in range(0, cols, 32):
        block = values[:, start : start + 32]
        low, high = block.min(axis=1, keepdims=True), block.max(axis=1, keepdims=True)
        step = (high - low) / 15
        plain = np.rint((block - low) / step) * step + low
        plain_error += ((plain - block) ** 2).sum()
        quantized_error += ((got[:, start : start + 32] - block) ** 2).sum()
    assert quantized_error < 0.9 * plain_error
    constant = np.full((16, 64), -0.75, dtype=np.float32)
    same = PackedMatrix.quantize(4, "F32", 16, 64, constant.view(np.uint8).ravel())
    np.testing.assert_array_equal(same.decode([0, 15]), constant[:2])


@pytest.mark.parametrize("bits", [4, 8])
def test_quantizing_the_same_weights_in_any_float_type_and_thread_count_agrees(bits):
    bf16, values = random_weights("BF16", 40, 96, seed=9)
    f32 = values.astype(np.float32).view(np.uint8).ravel()
    row_map = np.arange(39, -1, -1, dtype=np.int32)
    first = PackedMatrix.quantize(bits, "BF16", 40, 96, bf16, row_map=row_map, threads=2).decode(list(range(40)))
    second = PackedMatrix.quantize(bits, "F32", 40, 96, f32).decode(list(range(40)))
    np.testing.assert_array_equal(first, second[::-1])


def test_wrong_sizes_names_and_values_are_refused():
    data, _ = random_weights("Q4_0", 4, 64, seed=10)
    with pytest.raises(ValueError, match="Q4_9"):
        PackedMatrix.pack("Q4_9", 4, 64, data)
    with pytest.raises(ValueError, match="172"):
        PackedMatrix.pack("Q8_0", 4, 172, data)
    with pytest.raises(ValueError, match="cannot have 143 bytes"):
        PackedMatrix.pack("Q4_0", 4, 64, data[:-1])
    with pytest.raises(ValueError, match="row 4 of 4"):
        PackedMatrix.pack("Q4_0", 2, 64, data, row_map=np.array([0, 4], dtype=np.int32))
    with pytest.raises(ValueError, match="1 entries for 2 rows"):
        PackedMatrix.pack("Q4_0", 2, 64, data, row_map=np.array([0], dtype=np.int32))
    with pytest.raises(ValueError, match="at least one"):
        PackedMatrix.pack("Q4_0", 0, 64, data[:0])
    with pytest.raises(ValueError, match="only F32, F16 and BF16"):
        PackedMatrix.quantize(8, "Q4_0", 4, 64, data)
    with pytest.raises(ValueError, match="not to 5"):
        PackedMatrix.packed_bytes("F32", 4, 64, 5)
    broken = np.ones((4, 64), dtype=np.float32)
    broken[2, 5] = np.nan
    for threads in (1, 2):
        with pytest.raises(ValueError, match="NaN or infinity"):
            PackedMatrix.quantize(8, "F32", 4, 64, broken.view(np.uint8).ravel(), threads=threads)
    with pytest.raises(IndexError, match="row 4"):
        PackedMatrix.pack("Q4_0", 4, 64, data).decode([4])
