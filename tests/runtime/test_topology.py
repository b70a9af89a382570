"""Thread counts from made-up machines."""

import pytest

from lpx.runtime.cpu.cgroup import cpu_quota, memory_available
from lpx.runtime.cpu.topology import default_threads, describe_crowding


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def siblings(*groups, name="core_cpus_list"):
    return {f"sys/devices/system/cpu/cpu{cpu}/topology/{name}": f"{text}\n" for text, cpus in groups for cpu in cpus}


def test_hardware_threads_of_a_core_count_once(tmp_path):
    write(tmp_path, siblings(("0,4", (0, 4)), ("1,5", (1, 5)), ("2,6", (2, 6)), ("3,7", (3, 7))))
    assert default_threads(tmp_path, frozenset(range(8))) == 4


def test_older_kernels_name_siblings_differently(tmp_path):
    write(tmp_path, siblings(("0-1", (0, 1)), ("2-3", (2, 3)), name="thread_siblings_list"))
    assert default_threads(tmp_path, frozenset(range(4))) == 2


def test_only_usable_processors_count(tmp_path):
    write(tmp_path, siblings(("0,4", (0, 4)), ("1,5", (1, 5)), ("2,6", (2, 6)), ("3,7", (3, 7))))
    assert default_threads(tmp_path, frozenset({4, 5})) == 2
    assert default_threads(tmp_path, frozenset({1, 5})) == 1


def test_without_topology_every_processor_counts(tmp_path):
    assert default_threads(tmp_path, frozenset({0, 3, 5})) == 3


def test_broken_topology_counts_as_none(tmp_path):
    write(tmp_path, siblings(("what", (0, 1))))
    assert default_threads(tmp_path, frozenset({0, 1})) == 2


@pytest.mark.parametrize(
    ("quota", "threads"), [("max 100000", 4), ("200000 100000", 2), ("150000 100000", 1), ("10000 100000", 1)]
)
def test_quota_of_a_container_limits_threads(tmp_path, quota, threads):
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota})
    assert default_threads(tmp_path, frozenset(range(4))) == threads


def test_more_threads_than_processors_are_spoken_of(tmp_path):
    write(tmp_path, siblings(("0,4", (0, 4)), ("1,5", (1, 5)), ("2,6", (2, 6)), ("3,7", (3, 7))))
    everything = frozenset(range(8))
    assert describe_crowding(8, tmp_path, everything) is None
    said = describe_crowding(9, tmp_path, everything)
    assert said.startswith("9 threads share 8 processors")
    assert "faster with 4," in said
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000"})
    assert describe_crowding(2, tmp_path, everything) is None
    assert "3 threads share 2 processors" in describe_crowding(3, tmp_path, everything)
    assert "2 threads share one processor" in describe_crowding(2, tmp_path, frozenset({1}))


def test_quota_of_a_parent_group_counts(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/cpu.max": "300000 100000",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000",
        },
    )
    assert cpu_quota(tmp_path) == 3.0


def test_version_1_groups(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/x\n3:memory:/x\n",
            "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "250000",
            "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1000000",
            "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "400000",
            "sys/fs/cgroup/memory/x/memory.stat": "cache 5\ntotal_inactive_file 100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1",
        },
    )
    assert cpu_quota(tmp_path) == 2.5
    assert memory_available(tmp_path) == 700_000


def test_memory_limit_of_the_nearest_full_group_counts(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/memory.max": "5000",
            "sys/fs/cgroup/a/memory.current": "4000",
            "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 500\n",
            "sys/fs/cgroup/a/b/memory.max": "max",
            "sys/fs/cgroup/a/b/memory.current": "10",
        },
    )
    assert memory_available(tmp_path) == 1500


def test_no_groups_means_no_limits(tmp_path):
    assert cpu_quota(tmp_path) is None
    assert memory_available(tmp_path) is None
