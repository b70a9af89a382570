"""The table of GPUs: every name is found, as people and drivers spell it, and what a card can multiply is right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.doctor.gpu_table import capabilities, find, nearest_names, read_table

GIB = 2**30


def test_every_spelling_leads_to_one_card():
    for gpu in read_table():
        for name in (gpu.name, *gpu.aliases):
            assert find(name) == gpu, name
            assert find(f"NVIDIA {name}".upper()) == gpu, name
        assert find(gpu.name, gpu.memory_bytes) == gpu


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("4060 ti", "RTX 4060 Ti"),
        ("rtx4060ti", "RTX 4060 Ti"),
        ("RTX 4060 Ti 16 GB", "RTX 4060 Ti 16GB"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", "RTX 4060 Laptop"),
        ("GeForce RTX 3070 Mobile", "RTX 3070 Laptop"),
        ("GeForce RTX 2070 with Max-Q Design", "RTX 2070 Laptop"),
        ("3080 16GB laptop", "RTX 3080 16GB Laptop"),
        ("1080ti", "GTX 1080 Ti"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("NVIDIA L40S", "L40S"),
    ],
)
def test_people_and_drivers_spell_names_their_own_way(spelled, name):
    found = find(spelled)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("driver", "memory", "name"),
    [
        ("NVIDIA GeForce RTX 4060 Ti", 16380 << 20, "RTX 4060 Ti 16GB"),
        ("NVIDIA GeForce RTX 4060 Ti", 8188 << 20, "RTX 4060 Ti"),
        ("NVIDIA GeForce RTX 3060", 12288 << 20, "RTX 3060"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 16384 << 20, "RTX 3080 16GB Laptop"),
        ("Tesla T4", 15360 << 20, "T4"),
    ],
)
def test_memory_tells_cards_of_one_name_apart(driver, memory, name):
    assert find(driver, memory).name == name


def test_what_is_not_listed_is_none_and_has_neighbours():
    assert find("RTX 4600") is None
    assert find("") is None
    assert find("显卡") is None
    assert "RTX 4060" in nearest_names("RTX 4066")


@given(st.text(max_size=40))
def test_no_name_breaks_the_search(name):
    assert find(name) is None or find(name) in read_table()
    assert len(nearest_names(name)) <= 3


@pytest.mark.parametrize(
    ("version", "wanted"),
    [
        ("6.1", {"int8"}),  # GTX 10, P40: four-way int8 sums, f16 too slow to count
        ("7.0", {"fp16", "int8"}),  # V100
        ("7.5", {"fp16", "int8", "int4"}),  # T4, RTX 20
        ("8.0", {"fp16", "bf16", "int8", "int4"}),
        ((8, 6), {"fp16", "bf16", "int8", "int4"}),
        ("8.9", {"fp16", "bf16", "int8", "int4", "fp8"}),
        ("9.0", {"fp16", "bf16", "int8", "fp8"}),
        ("10.0", {"fp16", "bf16", "int8", "fp8", "fp4"}),
        ((12, 0), {"fp16", "bf16", "int8", "fp8", "fp4"}),
    ],
)
def test_capabilities_follow_the_compute_capability(version, wanted):
    found = capabilities(version)
    assert {name for name in ("fp16", "bf16", "int8", "int4", "fp8", "fp4") if getattr(found, name)} == wanted


def test_cards_without_tensor_cores_have_no_4_bit_products():
    assert not find("GTX 1650").capabilities.int4
    assert find("RTX 2060").capabilities.int4


@pytest.mark.parametrize("text", ["", "8", "8.9.1", "eight", "8,9", "８.９"])
def test_what_is_no_compute_capability_is_refused(text):
    with pytest.raises(ValueError, match=r"8\.9"):
        capabilities(text)


def test_figures_are_of_a_sensible_size():
    for gpu in read_table():
        assert 4 <= gpu.memory_gb <= 300
        assert 30 <= gpu.bandwidth_gb_s <= 10_000
        # Every card reads its memory in a hundredth of a second to a second: anything else is a slip of the pen.
        assert 0.01 < gpu.memory_bytes / gpu.bytes_per_second < 0.7, gpu.name
        assert gpu.family in ("geforce", "laptop", "workstation", "datacenter", "jetson")
        capabilities(gpu.compute_capability)
    assert find("RTX 3090").memory_bytes == 24 * GIB
