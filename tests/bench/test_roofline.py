"""What a measurement of the machine holds and what it refuses. How large the figures are is nobody's test."""

import pytest

from lpx import _native
from lpx.bench.roofline import PEAK_KINDS, READ_PATTERNS, MemoryReader, measure_roofline
from lpx.errors import ConfigError, MemoryLimitError

WORKING_SET = 3 << 20


def test_every_figure_is_there_and_the_best_is_the_best():
    told = []
    measured = measure_roofline(2, "portable", seconds=0.0, working_set_bytes=WORKING_SET, progress=told.append)
    assert (measured.memory.isa, measured.memory.threads) == ("portable", 2)
    memory = measured.memory
    assert [figure.pattern for figure in memory.patterns] == list(READ_PATTERNS)
    assert memory.bytes_per_second == max(figure.bytes_per_second for figure in memory.patterns) > 0
    assert memory.best_pattern in READ_PATTERNS
    assert memory.working_set_bytes == WORKING_SET
    assert list(measured.peaks) == list(PEAK_KINDS)
    assert measured.peaks["bf16"] is None
    for figure in (measured.peaks["int8"], measured.peaks["int8_4bit"], measured.peaks["f32"]):
        assert figure.multiply_adds_per_second == figure.repetitions.high > 0
    assert len(told) >= len(READ_PATTERNS) + len(PEAK_KINDS)


def test_caches_are_left_out_where_the_machine_does_not_describe_them(monkeypatch):
    monkeypatch.setattr("lpx.runtime.cpu.caches.cache_levels", dict)
    measured = measure_roofline(1, seconds=0.0, working_set_bytes=WORKING_SET)
    assert (measured.l2, measured.l3) == (None, None)


def test_every_instruction_set_can_be_measured():
    for isa in _native.available_isas():
        assert MemoryReader(1, isa, WORKING_SET).bandwidth(seconds=0.0).bytes_per_second > 0


@pytest.mark.parametrize(("threads", "isa", "said"), [(0, None, "threads"), (-1, None, "threads"), (1, "mmx", "mmx")])
def test_what_cannot_be_had_is_refused(threads, isa, said):
    with pytest.raises(ConfigError, match=said):
        measure_roofline(threads, isa, seconds=0.0, working_set_bytes=WORKING_SET)


def test_memory_that_does_not_suffice_is_refused_with_numbers(monkeypatch):
    monkeypatch.setattr("lpx.runtime.memory.available_bytes", lambda: 2 << 20)
    with pytest.raises(MemoryLimitError, match=r"3 MiB.* 2 MiB"):
        measure_roofline(1, seconds=0.0, working_set_bytes=WORKING_SET)
