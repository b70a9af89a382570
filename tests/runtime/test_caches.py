"""Cache sizes from made-up machines."""

from lpx.runtime.cpu.caches import CacheLevel, cache_levels


def write_cache(root, cpu, index, level, size, shared, kind="Unified"):
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    folder.mkdir(parents=True)
    for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
        (folder / name).write_text(f"{text}\n")


def test_shared_caches_count_once_and_instructions_not_at_all(tmp_path):
    for cpu in range(4):
        write_cache(tmp_path, cpu, 0, 1, "32K", cpu, "Data")
        write_cache(tmp_path, cpu, 1, 1, "64K", cpu, "Instruction")
        write_cache(tmp_path, cpu, 2, 2, "512K", cpu)
        write_cache(tmp_path, cpu, 3, 3, "16M", "0-1" if cpu < 2 else "2-3")
    levels = cache_levels(tmp_path, frozenset(range(4)))
    assert levels == {
        1: CacheLevel(32 << 10, 4),
        2: CacheLevel(512 << 10, 4),
        3: CacheLevel(16 << 20, 2),
    }
    assert levels[3].total_bytes == 32 << 20
    assert cache_levels(tmp_path, frozenset({0, 1}))[3].count == 1


def test_what_is_not_described_is_left_out(tmp_path):
    assert cache_levels(tmp_path, frozenset({0})) == {}
    write_cache(tmp_path, 0, 0, 1, "32K", 0)
    write_cache(tmp_path, 0, 1, "two", "512K", 0)
    write_cache(tmp_path, 0, 2, 3, "", 0)
    (tmp_path / "sys/devices/system/cpu/cpu0/cache/index3").mkdir()
    assert cache_levels(tmp_path, frozenset({0})) == {1: CacheLevel(32 << 10, 1)}
