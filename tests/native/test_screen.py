"""Split matrices give the bits of unsplit ones, and their upper bounds are bounds, near to what they could be."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lpx._native import PackedMatrix, available_isas, decode_rows
from tests.native.quantized_rows import quantized_activations, random_weights

ISAS = available_isas()
OCTETS = {False: 8, True: 32}  # whose low nibbles are read, by `refine`

every_isa = pytest.mark.parametrize("isa", ISAS)


def _blocks(codes, scales):
    """File rows of Q8_0 from int8 codes [rows, blocks, 32] and float16 scales [rows, blocks]."""
    raw = np.zeros((*scales.shape, 34), dtype=np.uint8)
    raw[..., :2] = scales.astype(np.float16)[..., None].view(np.uint8)
    raw[..., 2:] = codes.astype(np.int8).view(np.uint8)
    return raw.reshape(-1)


def _both(data, rows, cols):
    return PackedMatrix.pack("Q8_0", rows, cols, data, split=True), PackedMatrix.pack("Q8_0", rows, cols, data)


def _group_maxima(products):
    """[rows, outputs] to [rows, groups of 16]"""
    rows, outputs = products.shape
    padded = np.full((rows, -(-outputs // 16) * 16), -np.inf)
    padded[:, :outputs] = products
    return padded.reshape(rows, -1, 16).max(axis=2)


def _least_bounds(data, rows, cols, x, octets):
    """Cauchy and Schwarz in float64, for the same choice of octets: what the kernel rounds up."""
    raw = data.reshape(rows, cols // 32, 34)
    scales = raw[..., :2].copy().view(np.float16).astype(np.float64)
    codes = raw[..., 2:].view(np.int8).astype(np.float64)
    low = (raw[..., 2:] & 15) - 7.5
    weights, residuals = (codes * scales).reshape(rows, cols), (low * scales).reshape(rows, cols)
    blocks, quads = quantized_activations(x).parts()
    out = []
    for values in blocks + quads:
        unread, left = _left_unread(residuals, values, octets)
        out.append(weights @ values - unread + np.linalg.norm(residuals, axis=1) * left)
    return _group_maxima(np.array(out))


def _left_unread(residuals, values, octets):
    """The product of the residuals and the activations outside the largest octets, and the norm of those.

    Octets of equal norm may be read in any order, so each row of the product is the least that any order leaves.
    """
    energy = (values.reshape(-1, 8) ** 2).sum(axis=1)
    products = (residuals * values).reshape(len(residuals), -1, 8).sum(axis=2)
    if len(energy) <= octets:
        return np.zeros(len(residuals)), 0.0
    last_read = np.sort(energy)[-octets]
    equal = np.isclose(energy, last_read, rtol=1e-9, atol=0)
    smaller = (energy < last_read) & ~equal
    unread_equals = len(energy) - octets - smaller.sum()
    unread = products[:, smaller].sum(axis=1) + np.sort(products[:, equal], axis=1)[:, :unread_equals].sum(axis=1)
    return unread, np.sqrt(energy[smaller].sum() + unread_equals * last_read)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 48, 49, 100])
def test_split_rows_read_back_the_bits_of_the_file(rows):
    for cols in (32, 96, 576):
        data, _ = random_weights("Q8_0", rows, cols, seed=rows)
        split, _ = _both(data, rows, cols)
        got = split.decode(list(range(rows)))
        np.testing.assert_array_equal(got.view(np.uint32), decode_rows("Q8_0", cols, data).view(np.uint32))
        assert split.bytes == PackedMatrix.packed_bytes("Q8_0", rows, cols, split=True)
        assert split.format == "Q8_0"


def test_other_types_take_no_notice():
    data, _ = random_weights("Q4_1", 40, 64, seed=1)
    assert PackedMatrix.pack("Q4_1", 40, 64, data, split=True).bytes == PackedMatrix.packed_bytes("Q4_1", 40, 64)
    with pytest.raises(ValueError, match="split"):
        PackedMatrix.pack("Q4_1", 40, 64, data, split=True).screen(np.zeros((1, 64), dtype=np.float32))


@every_isa
@pytest.mark.parametrize(("rows", "cols"), [(17, 96), (100, 576), (53, 2080)])
def test_products_have_the_bits_of_the_unsplit_matrix(isa, rows, cols):
    data, _ = random_weights("Q8_0", rows, cols, seed=2)
    split, whole = _both(data, rows, cols)
    x = np.random.default_rng(3).standard_normal((70, cols)).astype(np.float32) * 3
    for batch in (1, 2, 3, 4, 5, 8, 12, 13, 17, 70):
        for threads in (1, 3):
            got, expected = split.matmul(x[:batch], isa, threads=threads), whole.matmul(x[:batch], isa)
            np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


@every_isa
@pytest.mark.parametrize("refine", [False, True])
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 120),
    blocks=st.integers(1, 40),
    batch=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(["normal", "outliers", "constant", "tiny"]),
    codes=st.sampled_from(["normal", "uniform", "lowest", "low nibbles", "zero"]),
)
@example(rows=9, blocks=4, batch=4, seed=10, kind="outliers", codes="zero")  # the eighth octet is as large as the ninth
def test_no_product_is_above_its_bound(isa, refine, rows, blocks, batch, seed, kind, codes):
    rng = np.random.default_rng(seed)
    cols = 32 * blocks
    scales = rng.standard_normal((rows, blocks)) * 10.0 ** rng.integers(-4, 2)  # of both signs
    chosen = {
        "normal": lambda: np.clip(rng.standard_normal((rows, blocks, 32)) * 40, -127, 127),
        "uniform": lambda: rng.integers(-128, 128, (rows, blocks, 32)),
        "lowest": lambda: np.full((rows, blocks, 32), -128),
        "low nibbles": lambda: rng.integers(0, 2, (rows, blocks, 32)) * 15,
        "zero": lambda: np.zeros((rows, blocks, 32)),
    }[codes]()
    x = rng.standard_normal((batch, cols)).astype(np.float32)
    if kind == "outliers":
        x[:, rng.integers(0, cols, 3)] *= 200
    elif kind == "constant":
        x[:] = rng.standard_normal()
    elif kind == "tiny":
        x *= np.float32(1e-20)
    data = _blocks(chosen, scales)
    split, whole = _both(data, rows, cols)
    upper = split.screen(x, isa, refine)
    assert (upper >= _group_maxima(whole.matmul(x, isa))).all()
    least = _least_bounds(data, rows, cols, x, OCTETS[refine])
    # What float32 arithmetic may add is bounded too: some 2^-21 for each block, of the norms of both factors.
    norms = np.linalg.norm(x, axis=1, keepdims=True) * np.linalg.norm(scales, axis=1).max() * 240 * np.sqrt(32)
    assert (upper <= least + 2 * (4 * blocks + 64) * 2.0**-21 * norms + 1e-30).all(), "too wide to be of use"


@every_isa
@pytest.mark.parametrize("refine", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_bounds_hold_where_they_leave_no_room(isa, refine, seed):
    """Activations parallel to what the low nibbles add: the inequality of Cauchy and Schwarz is an equation."""
    rng = np.random.default_rng(seed)
    rows, blocks = 48, 40
    codes = rng.integers(-8, 8, (rows, blocks, 32)) * 16 + rng.integers(0, 2, (rows, blocks, 32)) * 15
    data = _blocks(codes, np.full((rows, blocks), 0.25))
    split, whole = _both(data, rows, 32 * blocks)
    x = (((codes & 15) - 7.5).reshape(rows, -1) * 3).astype(np.float32)
    product = whole.matmul(x, isa)[np.arange(rows), np.arange(rows)]
    upper = split.screen(x, isa, refine)[np.arange(rows), np.arange(rows) // 16]
    assert (upper >= product).all()


@every_isa
def test_reading_more_low_nibbles_brings_the_bounds_down(isa):
    data, _ = random_weights("Q8_0", 200, 640, seed=5)
    split, whole = _both(data, 200, 640)
    x = np.random.default_rng(6).standard_normal((2, 640)).astype(np.float32)
    largest = _group_maxima(whole.matmul(x, isa))
    first, second = (split.screen(x, isa, refine) - largest for refine in (False, True))
    assert (second > 0).all()
    assert (second < first).all()


@every_isa
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_has_no_bound(isa, value):
    data, _ = random_weights("Q8_0", 100, 96, seed=7)
    x = np.random.default_rng(8).standard_normal((3, 96)).astype(np.float32)
    broken = x.copy()
    broken[1, 40] = value
    split, _ = _both(data, 100, 96)
    assert np.isfinite(split.screen(x, isa)).all()
    assert (split.screen(broken, isa) == np.inf).any()
    raw = data.reshape(100, 3, 34).copy()
    raw[20, 1, :2] = np.float16(value).reshape(1).view(np.uint8)
    assert (_both(raw.reshape(-1), 100, 96)[0].screen(x, isa) == np.inf).any()
