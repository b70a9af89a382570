"""The processor: instruction sets, cores, the group's quota, huge pages, frequency governor, NUMA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lpx.doctor.configuration import configured
from lpx.doctor.finding import Finding, Fix, Status
from lpx.doctor.machine import Machine

# Flags of /proc/cpuinfo that kernels use, best last.
_SETS = (
    ("AVX2", {"avx2", "fma", "f16c"}),
    ("AVX2 + VNNI", {"avx2", "fma", "avx_vnni"}),
    ("AVX-512", {"avx512f", "avx512bw", "avx512vl", "avx512dq"}),
    ("AVX-512 VNNI", {"avx512f", "avx512bw", "avx512vl", "avx512_vnni"}),
    ("AVX-512 BF16", {"avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"}),
)
# These drivers change frequency by load under the governor that they call powersave.
_SELF_GOVERNED = ("intel_pstate", "amd-pstate-epp", "intel_cpufreq")


def check(machine: Machine) -> Iterator[Finding]:
    cpuinfo = machine.read("/proc/cpuinfo")
    yield instruction_sets(cpuinfo)
    yield cores(machine, cpuinfo)
    yield huge_pages(machine.read("/sys/kernel/mm/transparent_hugepage/enabled"))
    yield governor(machine)
    yield numa(machine)


def instruction_sets(cpuinfo: str | None) -> Finding:
    """Which kernel set the processor's flags (`/proc/cpuinfo`) allow."""

    def finding(status: Status, found: str, do: str = "") -> Finding:
        return Finding(
            check="cpu",
            title="instruction sets",
            status=status,
            found=found,
            wanted="AVX2 or better (AVX-512 VNNI and BF16 are fastest)",
            why="without them only the portable kernels run, several times slower",
            do=do,
            page="LPX-E050" if do else "",
        )

    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo or "", re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo or "", re.MULTILINE)
    if cpuinfo is None or flags is None:
        return finding(Status.UNKNOWN, "the kernel does not describe the processor", "lscpu may tell more")
    has = set(flags[1].split())
    name = f" ({model[1].strip()})" if model else ""
    best = [title for title, needed in _SETS if needed <= has]
    if best:
        return finding(Status.OK, best[-1] + name)
    if "asimd" in has:
        return finding(Status.WARNING, f"an Arm processor{name}", "LPX runs its portable kernels here, which are slow")
    return finding(
        Status.WARNING,
        f"no AVX2{name}",
        "in a virtual machine, let it show the host's processor (QEMU: -cpu host); else take a newer one",
    )


def cores(machine: Machine, cpuinfo: str | None) -> Finding:
    """Physical cores that may be used, and what limits them."""
    from lpx.runtime.cpu.cgroup import cpu_quota
    from lpx.runtime.cpu.topology import default_threads

    processors = len(re.findall(r"^processor\s*:", cpuinfo or "", re.MULTILINE))
    usable = len(machine.affinity) if machine.affinity is not None else _usable()
    threads = default_threads(machine.root, machine.affinity)
    quota = cpu_quota(machine.root)
    found = f"{threads} threads pay here: {processors or usable} processors"
    if processors and usable < processors:
        found += f", {usable} of them may be used"
    if quota is not None:
        found += f", and the control group allows the time of {quota:g}"
    status, do = Status.OK, ""
    wanted_text = str(configured(machine, "threads") or "")
    if quota is not None and quota < 1:
        status = Status.WARNING
        do = "give the container or unit at least one processor (docker run --cpus, CPUQuota=)"
    elif wanted_text.isdecimal() and int(wanted_text) > threads:
        status, found = Status.WARNING, f"{found}; {wanted_text} threads are asked for"
        do = "take threads out of LPX_THREADS and the profile: more than the cores make decoding slower"
    return Finding(
        check="cpu",
        title="cores",
        status=status,
        found=found,
        wanted="a thread for each physical core, and no quota below that",
        why="a step waits for its slowest thread; a quota stops all of them in the middle of steps",
        do=do,
        page="LPX-E050" if do else "",
    )


def _usable() -> int:
    import os

    return len(os.sched_getaffinity(0))


def huge_pages(text: str | None) -> Finding:
    """`text` is that of transparent_hugepage/enabled: the choice is in brackets."""

    def finding(status: Status, found: str, do: str = "", fixes: tuple[Fix, ...] = ()) -> Finding:
        return Finding(
            check="cpu",
            title="huge pages",
            status=status,
            found=found,
            wanted="madvise or always",
            why="weights are read through fewer page-table entries; decoding is a few percent faster",
            do=do,
            fixes=fixes,
        )

    chosen = re.search(r"\[(\w+)\]", text or "")
    if text is None:
        return finding(Status.NOTE, "this kernel has none, or does not say")
    if chosen is None or chosen[1] not in ("always", "madvise", "never"):
        return finding(Status.UNKNOWN, f"not understood: {text[:60]!r}")
    if chosen[1] != "never":
        return finding(Status.OK, chosen[1])
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    return finding(
        Status.WARNING,
        "never",
        f"echo madvise | sudo tee {path}",
        (
            Fix(
                title="Let programs ask for huge pages (until the next restart)",
                needed=f"grep -q '\\[never\\]' {path}",
                commands=(f"echo madvise | as_root tee {path}",),
            ),
        ),
    )


def governor(machine: Machine) -> Finding:
    folder = "/sys/devices/system/cpu"
    found = {}
    for name in machine.names(folder):
        if re.fullmatch(r"cpu\d+", name) and (text := machine.read(f"{folder}/{name}/cpufreq/scaling_governor")):
            found[name] = (text, machine.read(f"{folder}/{name}/cpufreq/scaling_driver") or "")

    def finding(status: Status, found: str, do: str = "", fixes: tuple[Fix, ...] = ()) -> Finding:
        return Finding(
            check="cpu",
            title="frequency governor",
            status=status,
            found=found,
            wanted="performance, or one that follows the load",
            why="a governor that holds the frequency low makes every step slower",
            do=do,
            fixes=fixes,
        )

    if not found:
        return finding(Status.OK, "not visible here: the host or firmware decides")
    kinds = sorted({text for text, _ in found.values()})
    slow = [name for name, (text, driver) in found.items() if text == "powersave" and driver not in _SELF_GOVERNED]
    if not slow:
        return finding(Status.OK, ", ".join(kinds))
    return finding(
        Status.WARNING,
        f"powersave on {len(slow)} of {len(found)} processors",
        "sudo cpupower frequency-set -g performance",
        (
            Fix(
                title="Let the processors run at full speed (until the next restart)",
                needed=f"grep -q powersave {folder}/cpu*/cpufreq/scaling_governor",
                commands=(f"echo performance | as_root tee {folder}/cpu*/cpufreq/scaling_governor >/dev/null",),
            ),
        ),
    )


def numa(machine: Machine) -> Finding:
    nodes = [name for name in machine.names("/sys/devices/system/node") if re.fullmatch(r"node\d+", name)]
    many = len(nodes) > 1
    return Finding(
        check="cpu",
        title="NUMA",
        status=Status.NOTE if many else Status.OK,
        found=f"{len(nodes)} nodes" if many else "one node",
        wanted="one node, or a process bound to one",
        why="memory of another node is read at a fraction of the speed",
        do="numactl --cpunodebind=0 --membind=0 lpx serve …" if many else "",
    )
