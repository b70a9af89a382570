"""The measurements of the machine: every figure is there and positive, and nonsense is refused."""

import threading

import pytest

from lpx import _native

KIB = 1024
ISAS = _native.available_isas()
KINDS = ("int8_4bit", "int8", "bf16", "f32")


def open_machine(isa="", threads=2, size=256 * KIB):
    return _native.Roofline(threads=threads, isa=isa, bytes=size)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("streams", [1, 2, 4, 8])
@pytest.mark.parametrize("fetched", [False, True])
def test_reading_gives_positive_rates(isa, streams, fetched):
    machine = open_machine(isa)
    assert (machine.isa, machine.threads) == (isa, 2)
    for size in (2 * KIB, 100_000, 256 * KIB):
        rates = machine.read(size, streams, fetched, 0.0)
        assert len(rates) == 1
        assert rates[0] > 0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_multiplying_gives_positive_rates_where_there_is_a_unit(isa, kind):
    rates = open_machine(isa).multiply_add(kind, 0.0)
    has_unit = kind != "bf16" or isa == "avx512bf16"
    assert len(rates) == has_unit
    assert all(rate > 0 for rate in rates)


def test_more_time_gives_more_repetitions():
    machine = open_machine(threads=1)
    assert len(machine.read(256 * KIB, 1, False, 0.1)) > 1
    assert len(machine.multiply_add("f32", 0.1)) > 1


def test_other_threads_run_meanwhile():
    ran = threading.Event()
    thread = threading.Thread(target=ran.set)
    measured = []
    worker = threading.Thread(target=lambda: measured.extend(open_machine(threads=1).multiply_add("f32", 0.3)))
    worker.start()
    thread.start()
    assert ran.wait(timeout=30)
    worker.join()
    assert measured


@pytest.mark.parametrize(
    ("size", "streams", "seconds", "said"),
    [
        (0, 1, 0.0, "bytes"),
        (-1, 1, 0.0, "bytes"),
        (256 * KIB + 1, 1, 0.0, "bytes"),
        (2 * KIB, 0, 0.0, "streams"),
        (2 * KIB, 3, 0.0, "streams"),
        (2 * KIB, 16, 0.0, "streams"),
        (2 * KIB, 1, -1.0, "seconds"),
        (2 * KIB, 1, float("nan"), "seconds"),
        (2 * KIB, 1, 1e9, "seconds"),
    ],
)
def test_reading_refuses_what_it_cannot_do(size, streams, seconds, said):
    with pytest.raises(ValueError, match=said):
        open_machine().read(size, streams, False, seconds)


def test_a_machine_that_cannot_be_had_is_refused():
    for arguments in ({"threads": 0}, {"threads": -3}, {"isa": "mmx"}, {"size": 0}, {"size": -1}):
        with pytest.raises(ValueError, match=r"at least|mmx"):
            open_machine(**arguments)
    with pytest.raises(MemoryError):
        open_machine(size=1 << 60)
    with pytest.raises(ValueError, match="int9"):
        open_machine().multiply_add("int9", 0.0)
