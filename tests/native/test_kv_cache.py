"""Keys and values in every type: what is kept, attention over it, and what never gets in."""

import itertools

import numpy as np
import pytest

from lpx import _native
from tests.reference.kv_types import TYPES, attention, kept_keys, kept_values

ISAS = _native.available_isas()
PAIRS = list(itertools.product(TYPES, TYPES))
HEAD_SIZES = (10, 48, 64, 80, 96, 128, 256)  # below a group, in groups, and with a short last one
BLOCK = _native.KV_BLOCK_SIZE
TOKENS = 2 * _native.SPLIT_TOKENS + 45

# Of the largest value: what 16-bit codes of queries and weights leave, and the order of float32 sums.
TOLERANCE = {"codes": 2e-4, "floats": 1e-5}


def tolerance(*types):
    return TOLERANCE["codes" if {"q8", "q4"} & set(types) else "floats"]


def random_rows(seed, count, dim):
    """Rows whose channels differ in size, one of them by far, as keys of real models do."""
    rng = np.random.default_rng(seed)
    size = rng.uniform(0.3, 1.5, dim)
    size[dim // 3] = 12.0
    return (rng.standard_normal((count, dim)) * size).astype(np.float32)


class Head:
    """A `KvHead` with a sequence of random tokens in blocks out of order."""

    def __init__(self, types, dim, isa="", tokens=TOKENS, seed=1):
        self.dim = dim
        count = -(-tokens // BLOCK)
        self.native = _native.KvHead(*types, dim, count + 2, isa)
        self.table = np.random.default_rng(seed).permutation(count + 2)[:count].tolist()
        self.keys, self.values = random_rows(seed, tokens, dim), random_rows(seed + 1, tokens, dim)
        self.native.store(self.keys, self.values, 0, self.table)

    def kept(self):
        blocks = [self.native.block(index) for index in self.table]
        return tuple(np.concatenate([block[i] for block in blocks])[: len(self.keys)] for i in range(2))

    def query(self, rows, seed=5):
        return (np.random.default_rng(seed).standard_normal((rows, self.dim)) / np.sqrt(self.dim)).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", HEAD_SIZES)
@pytest.mark.parametrize("kind", TYPES)
def test_kept_is_what_the_type_says(kind, dim, isa):
    head = Head((kind, kind), dim, isa, tokens=70)
    keys, values = head.kept()
    if kind == "q8":  # whose values hold the scales of the keys
        values = Head(("f16", "q8"), dim, isa, tokens=70).kept()[1]
    assert np.array_equal(values, kept_values(head.values, kind))
    # Rotated keys are sums in another order: a code may be the next one.
    allowed = {"q8": 0.01, "q4": 0.15}.get(kind, 0.0) * np.abs(head.keys).max()
    error = np.abs(keys - kept_keys(head.keys, kind))
    assert error.max() <= allowed
    assert np.mean(error > 1e-5 * np.abs(head.keys).max()) < 0.02


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", HEAD_SIZES)
@pytest.mark.parametrize("types", PAIRS, ids=",".join)
def test_attention_is_that_over_what_is_kept(types, dim, isa):
    head = Head(types, dim, isa)
    keys, values = head.kept()
    for rows, group, first in (
        (3, 3, TOKENS - 1),
        (14, 7, TOKENS - 2),
        (30, 3, 250),
        (30, 3, 314),
        (4, 4, 31),
        (1, 1, 0),
    ):
        query = head.query(rows)
        actual = head.native.attend(query, group, first, head.table)
        expected = attention(query, keys, values, group, first)
        assert np.abs(actual - expected).max() < tolerance(*types) * np.abs(values).max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("types", PAIRS, ids=",".join)
def test_windows_and_soft_caps_are_kept(types, isa):
    head = Head(types, 48, isa)
    keys, values = head.kept()
    query = head.query(12)
    # From 495 on, the window of 19 leaves block 14 within the tile.
    for first, window, softcap in ((495, 19, 0.0), (TOKENS - 6, 300, 0.0), (TOKENS - 6, 0, 2.0), (400, 70, 1.0)):
        actual = head.native.attend(query, 2, first, head.table, window, softcap)
        expected = attention(query, keys, values, 2, first, window, softcap)
        assert np.abs(actual - expected).max() < tolerance(*types) * np.abs(values).max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("types", PAIRS, ids=",".join)
def test_row_has_the_same_bits_in_every_tile(types, isa):
    head = Head(types, 80, isa)
    first = TOKENS - 10
    query = head.query(30)
    together = head.native.attend(query, 3, first, head.table)
    for tokens in (1, 2, 5):
        for start in range(0, 10, tokens):
            rows = slice(3 * start, 3 * (start + tokens))
            alone = head.native.attend(query[rows], 3, first + start, head.table)
            assert np.array_equal(alone.view(np.uint32), together[rows].view(np.uint32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("types", PAIRS, ids=",".join)
def test_what_an_earlier_owner_left_adds_nothing(types, isa):
    """Not even where its values were the largest there are, or no numbers."""
    clean = Head(types, 48, isa, tokens=100)
    used = Head(types, 48, isa, tokens=100)
    everything = list(range(6))
    for worst in (1e30, np.inf, np.nan, -np.inf):
        rows = np.full((6 * BLOCK, 48), worst, dtype=np.float32)
        used.native.store(rows, rows, 0, everything)
        used.native.store(used.keys, used.values, 0, used.table)
        for first in (0, 3, 40, 98):
            query = clean.query(2)
            expected = clean.native.attend(query, 1, first, clean.table)
            actual = used.native.attend(query, 1, first, used.table)
            assert np.isfinite(expected).all()
            assert np.array_equal(actual.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", TYPES)
def test_what_is_kept_is_finite_whatever_comes_in(kind, isa):
    head = _native.KvHead(kind, kind, 40, 1, isa)
    rows = random_rows(3, BLOCK, 40)
    for token, value in enumerate((np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-38, 65504, 1e5, 0)):
        rows[token, 3::5] = value
    head.store(rows, rows, 0, [0])
    keys, values = head.block(0)
    assert np.isfinite(keys).all()
    assert np.isfinite(values).all()
    if kind == "q8":
        head = _native.KvHead("f16", kind, 40, 1, isa)
        head.store(rows, rows, 0, [0])
        values = head.block(0)[1]
    assert np.array_equal(values, kept_values(rows, kind))
    if kind in ("f16", "bf16"):
        assert np.array_equal(keys, kept_keys(rows, kind))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["q8", "q4"])
@pytest.mark.parametrize("size", [0.0, 1e-7, 1e-5, 1e-3, 60000.0])
def test_codes_follow_the_size_of_the_values(kind, size, isa):
    """Also where the scale is a subnormal float16 number, or the largest."""
    head = _native.KvHead(kind, kind, 32, 1, isa)
    rows = (np.random.default_rng(1).uniform(-1, 1, (BLOCK, 32)) * size).astype(np.float32)
    head.store(rows, rows, 0, [0])
    _, values = head.block(0)
    # The lowest bits of values of q8 are taken.
    step = 2 * size / (127 if kind == "q8" else 15)
    assert np.abs(values - rows).max() <= 0.52 * step + 2.0**-24


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", HEAD_SIZES)
def test_keys_are_kept_alike_wherever_their_scales_are(dim, isa):
    """In the values, or beside them."""
    held, beside = Head(("q8", "q8"), dim, isa, tokens=70), Head(("q8", "f16"), dim, isa, tokens=70)
    assert np.array_equal(held.kept()[0], beside.kept()[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", HEAD_SIZES)
def test_values_that_hold_scales_are_as_good_as_with_seven_bits(dim, isa):
    head = Head(("q8", "q8"), dim, isa, tokens=70)
    values = head.kept()[1]
    for at in range(0, dim, 32):
        group = slice(at, at + 32)
        step = np.abs(head.values[:, group]).max(axis=1, keepdims=True) / 127
        error = (values[:, group] - head.values[:, group]) / step
        assert np.abs(error).max() <= 1.1
        assert np.mean(np.square(error)) < 1.15 / 3  # of numbers spread evenly over two steps


@pytest.mark.parametrize("isa", ISAS)
def test_writing_a_token_leaves_its_neighbours_as_they_were(isa):
    head = Head(("q8", "q8"), 64, isa, tokens=BLOCK)
    before = head.kept()
    other = random_rows(9, 1, 64)
    head.native.store(other, other, 7, head.table)
    for kept, was in zip(head.kept(), before, strict=True):
        assert np.array_equal(np.delete(kept, 7, axis=0), np.delete(was, 7, axis=0))
        assert not np.array_equal(kept[7], was[7])


@pytest.mark.parametrize("isa", ISAS)
def test_padding_of_a_head_does_not_widen_the_range_of_its_codes(isa):
    head = _native.KvHead("f16", "q4", 10, 1, isa)
    rows = np.random.default_rng(1).uniform(8, 8.5, (BLOCK, 10)).astype(np.float32)
    head.store(rows, rows, 0, [0])
    assert np.abs(head.block(0)[1] - rows).max() < 0.5 / 15


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["q8", "q4"])
def test_rotation_of_keys_tames_one_large_channel(kind, isa):
    head = Head((kind, kind), 64, isa)
    keys, _ = head.kept()
    plain = kept_values(head.keys, kind)
    assert np.mean((keys - head.keys) ** 2) < 0.5 * np.mean((plain - head.keys) ** 2)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("types", [("q8", "q8"), ("q4", "f16"), ("f16", "q4")], ids=",".join)
def test_query_that_is_no_number_spoils_its_row_alone(types, isa):
    head = Head(types, 64, isa, tokens=60)
    query = head.query(4)
    expected = head.native.attend(query, 2, 50, head.table)
    for bad in (np.nan, np.inf, -np.inf):
        query[1, 7] = bad
        actual = head.native.attend(query, 2, 50, head.table)
        assert np.isnan(actual[1]).all()
        assert np.array_equal(np.delete(actual, 1, axis=0), np.delete(expected, 1, axis=0))


def test_unknown_types_and_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"'q5'.*f16, bf16, q8, q4"):
        _native.KvHead("q5", "q8", 64, 1)
    head = _native.KvHead("q8", "q8", 64, 1)
    with pytest.raises(ValueError, match="64 dimensions, not 63"):
        head.attend(np.zeros((1, 63), np.float32), 1, 0, [0])
    with pytest.raises(ValueError, match="position 32"):
        head.attend(np.zeros((1, 64), np.float32), 1, 32, [0])
    with pytest.raises(ValueError, match="no such KV block"):
        head.attend(np.zeros((1, 64), np.float32), 1, 0, [1])
