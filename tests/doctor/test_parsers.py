"""Parsers of captured texts: right on real ones, and never a crash or a wrong value on others."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.doctor.compiler import compiler_version
from lpx.doctor.cpu import governor, huge_pages, instruction_sets
from lpx.doctor.cuda_drivers import Fit, driver_for, judge, newest_cuda, parse_version
from lpx.doctor.disk import file_system_kind
from lpx.doctor.docker import is_configured, parse_info
from lpx.doctor.finding import Status
from lpx.doctor.kernel import parse_mokutil
from lpx.doctor.machine import Output
from lpx.doctor.memory import parse_meminfo
from lpx.doctor.nvidia import parse_lspci, parse_module_version, parse_probe
from lpx.doctor.nvidia_smi import OLD_FIELDS, parse_list, parse_query, parse_table_head
from lpx.doctor.sockets import parse_proc_net_tcp, parse_ss
from lpx.doctor.torch import parse_version_file
from tests.doctor import captured
from tests.doctor.captured import Captured

PROC_NET_TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1076 1 000000005f4dc4e5 100 0 0 10
   1: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 99001 1 0000000000000000 100 0 0 10 0
   2: 0100007F:ACEF 0100007F:1F90 06 00000000:00000000 03:0000034F 00000000     0        0 0 3 00000000799e4f6f
"""  # noqa: E501
PROC_NET_TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000001000000:1EB4 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0000000000000000 100 0 0 10 0
"""  # noqa: E501
SS = """\
State  Recv-Q Send-Q Local Address:Port Peer Address:PortProcess
LISTEN 0      1024       127.0.0.1:8080      0.0.0.0:*    users:(("python3",pid=4711,fd=6))
LISTEN 0      4096               *:8000            *:*
LISTEN 0      128             [::]:7860         [::]:*    users:(("gradio",pid=12,fd=3),("gradio",pid=13,fd=3))
"""


def test_query_rows() -> None:
    rows = parse_query(f"{captured.ROW_4090}\n{captured.ROW_A100}\n")
    first, second = rows.cards
    assert (first.name, first.memory_bytes, first.compute_capability) == ("NVIDIA GeForce RTX 4090", 24564 << 20, "8.9")
    assert (first.mig, first.persistence, second.mig, second.persistence) == (None, False, False, True)
    assert rows.driver == "550.54.14"


@pytest.mark.parametrize(
    "absent", ["[N/A]", "[Not Supported]", "[Insufficient Permissions]", "N/A", "[Unknown Error]", ""]
)
def test_absent_values_are_unknown_and_not_zero(absent: str) -> None:
    row = ", ".join(["0", "NVIDIA GeForce GT 730", "0000:01:00.0", *[absent] * 7])
    card = parse_query(row).cards[0]
    assert card.name == "NVIDIA GeForce GT 730"
    assert (card.memory_bytes, card.used_bytes, card.temperature_c, card.compute_capability) == (None, None, None, None)


def test_rows_of_other_queries_are_no_cards() -> None:
    # From a tool that asks for seven fields: not ours, whether new or old.
    for text in ("2004, 2004, 0, 44, [N/A], 0, 0", "2004, 2004, 0, 44, [Not Supported], 0, 0", " 16380\n5"):
        assert parse_query(text).cards == ()


def test_old_driver_is_asked_for_fewer_fields(tmp_path) -> None:
    from lpx.doctor.nvidia import read_nvidia
    from lpx.doctor.nvidia_smi import query_command

    row = "0, Tesla K80, 00000000:05:00.0, 418.67, 11441, 0, 30, Disabled"
    commands = {
        "nvml": '{"error": "nvidia-ml-py is not installed"}',
        " ".join(query_command()): Output(2, 'Field "compute_cap" is not a valid field to query.\n'),
        " ".join(query_command(OLD_FIELDS)): row,
        "nvidia-smi": captured.TABLE_470,
    }
    nvidia = read_nvidia(Captured(tmp_path, {}, commands))
    assert [card.name for card in nvidia.cards] == ["Tesla K80"]
    assert (nvidia.driver, nvidia.cuda) == ("418.67", "11.4")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (captured.TABLE_470, ("470.103.01", "11.4")),
        (captured.TABLE_550, ("550.54.14", "12.4")),
        (captured.TABLE_590, ("590.44.01", "13.1")),
        ("| NVIDIA-SMI 390.157   Driver Version: 390.157 |", ("390.157", None)),
        ("no table", (None, None)),
    ],
)
def test_heads_of_the_table(text: str, wanted: tuple[str | None, str | None]) -> None:
    assert parse_table_head(text) == wanted


def test_list_counts_cards_and_not_slices() -> None:
    first, second = parse_list(captured.LIST_MIG)
    assert (first.index, first.name, first.slices) == (0, "NVIDIA A100-SXM4-80GB", ("7g.80gb",))
    assert second.slices == ("4g.20gb", "1c.3g.40gb")


def test_lspci_shows_display_devices_with_their_driver() -> None:
    cards = parse_lspci(captured.LSPCI)
    assert [(card.bus_id, card.name, card.driver) for card in cards] == [
        ("01:00.0", "AD102 [GeForce RTX 4090]", "nouveau"),
        ("0000:41:00.0", "GA100 [A100 PCIe 80GB]", None),
    ]


def test_module_versions() -> None:
    assert parse_module_version(captured.MODULE_PROPRIETARY) == "550.54.14"
    assert parse_module_version(captured.MODULE_OPEN) == "570.86.15"
    assert parse_module_version("") is None


def test_listeners_of_proc() -> None:
    assert parse_proc_net_tcp(PROC_NET_TCP) == [("127.0.0.1", 8080, 1076), ("0.0.0.0", 8000, 99001)]
    assert parse_proc_net_tcp(PROC_NET_TCP6) == [("::1", 7860, 4242)]


def test_listeners_of_ss() -> None:
    found = parse_ss(SS)
    assert found is not None
    assert [(each.port, each.holder.pid if each.holder else None) for each in found] == [
        (8080, 4711),
        (8000, None),
        (7860, 12),
    ]
    assert parse_ss("usage: ss [ OPTIONS ]") is None


@pytest.mark.parametrize(
    ("cuda", "driver", "fit"),
    [
        ("12.4", "550.54.14", Fit.FULL),
        ("12.4", "570.26", Fit.FULL),
        ("12.8", "550.54.14", Fit.MINOR),
        ("12.8", "525.60.13", Fit.MINOR),
        ("12.1", "520.61.05", Fit.TOO_OLD),
        ("13.0", "575.57.08", Fit.TOO_OLD),
        ("13.0", "580.65.06", Fit.FULL),
        ("13.4", "580.95.05", Fit.MINOR),
        ("13.9", "620.10", Fit.MINOR),  # not in the table: its major version decides
        ("11.8", "450.80.02", Fit.MINOR),
        ("11.8", "450.36.06", Fit.TOO_OLD),
        ("10.2", "450.36.06", Fit.FULL),
        ("14.0", "620.10", Fit.UNKNOWN),
        ("twelve", "550", Fit.UNKNOWN),
        ("12.4", "[N/A]", Fit.UNKNOWN),
    ],
)
def test_cuda_against_driver(cuda: str, driver: str, fit: Fit) -> None:
    assert judge(cuda, driver).fit is fit


def test_table_goes_both_ways() -> None:
    assert newest_cuda("550.54.14") == "12.4"
    assert newest_cuda("580.159.03") == "13.0"
    assert newest_cuda("390.157") is None
    assert driver_for("12.8") == "570.26"
    assert driver_for("13.9") == "580.65.06"
    assert parse_version("570.124") == (570, 124)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright", 12),
        ("g++ (GCC) 8.5.0 20210514 (Red Hat 8.5.0-22)", 8),
        ("g++-13 (Ubuntu 13.1.0-8ubuntu1~22.04) 13.1.0", 13),
        ("Ubuntu clang version 14.0.0-1ubuntu1.1\nTarget: x86_64", 14),
        ("Apple clang version 15.0.0 (clang-1500.3.9.4)", 15),
        ("no version", None),
        ("", None),
    ],
)
def test_versions_of_compilers(text: str, wanted: int | None) -> None:
    assert compiler_version(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SecureBoot enabled\n", True),
        ("SecureBoot disabled\nPlatform is in Setup Mode\n", False),
        ("EFI variables are not supported on this system\n", False),
        ("This system doesn't support Secure Boot\n", False),
        ("Failed to read SecureBoot\n", None),
        ("", None),
    ],
)
def test_mokutil(text: str, wanted: bool | None) -> None:
    assert parse_mokutil(text) is wanted


def test_huge_pages() -> None:
    assert huge_pages("always [madvise] never").status is Status.OK
    assert huge_pages("always madvise [never]").status is Status.WARNING
    assert huge_pages("on").status is Status.UNKNOWN
    assert huge_pages(None).status is Status.NOTE


def test_instruction_sets() -> None:
    assert "AVX-512 BF16 (AMD EPYC 9R14)" in instruction_sets(captured.CPUINFO).found
    old = instruction_sets("model name : Intel(R) Xeon(R) CPU E5-2670 0\nflags : fpu sse4_2 avx\n")
    assert old.status is Status.WARNING
    assert "no AVX2" in old.found
    assert "Arm" in instruction_sets("processor : 0\nFeatures : fp asimd evtstrm\n").found
    for text in (None, "", "garbage\x00"):
        assert instruction_sets(text).status is Status.UNKNOWN


def test_governors(tmp_path) -> None:
    folder = "/sys/devices/system/cpu/cpu0/cpufreq"

    def found(name: str, kind: str, driver: str) -> Status:
        files = {f"{folder}/scaling_governor": kind, f"{folder}/scaling_driver": driver}
        return governor(Captured(tmp_path / name, files)).status

    assert found("a", "powersave", "acpi-cpufreq") is Status.WARNING
    assert found("b", "powersave", "intel_pstate") is Status.OK
    assert found("c", "performance", "acpi-cpufreq") is Status.OK
    assert governor(Captured(tmp_path / "d")).status is Status.OK


def test_file_systems() -> None:
    mounts = "/dev/sda1 / ext4 rw 0 0\nserver:/m /mnt/my\\040models nfs4 rw 0 0\nC:\\134 /mnt/c 9p rw 0 0\nbroken\n"
    from pathlib import Path

    assert file_system_kind(Path("/home/x"), mounts) == "ext4"
    assert file_system_kind(Path("/mnt/my models/a"), mounts) == "nfs4"
    assert file_system_kind(Path("/mnt/c/models"), mounts) == "9p"
    assert file_system_kind(Path("/mnt/cc"), mounts) == "ext4"
    assert file_system_kind(Path("/x"), "") == ""


def test_torch_version_files() -> None:
    text = "__version__ = '2.6.0+cu124'\ncuda: Optional[str] = '12.4'\nhip: Optional[str] = None\n"
    build = parse_version_file(text)
    assert build is not None
    assert (build.version, build.cuda, build.hip) == ("2.6.0+cu124", "12.4", None)
    assert parse_version_file("cuda = '12.4'") is None


def test_daemon_json() -> None:
    assert is_configured('{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}') is True
    assert is_configured('{"runtimes": {"gpu": {"path": "/usr/bin/nvidia-container-runtime"}}}') is True
    assert is_configured('{"log-driver": "json-file"}') is False
    assert is_configured(None) is False
    for broken in ("{", "[]", '{"runtimes": []}x', '"text"', '{"runtimes": {"a": 1}}'):
        assert is_configured(broken) is None


NOISE = st.text(alphabet=string.printable + "中文\x00﻿", max_size=300)


@given(NOISE)
def test_any_text_is_no_crash(text: str) -> None:
    for parse in (
        parse_query, parse_list, parse_table_head, parse_lspci, parse_module_version, parse_proc_net_tcp, parse_ss,
        parse_mokutil, parse_meminfo, parse_version_file, parse_probe, compiler_version, is_configured, parse_version,
        huge_pages, instruction_sets,
    ):  # fmt: skip
        parse(text)
    parse_info(Output(0, text))


@given(
    st.sampled_from([captured.ROW_4090, captured.LIST_MIG, captured.LSPCI, PROC_NET_TCP, SS]),
    NOISE,
    st.integers(0, 900),
)
def test_spoilt_texts_are_no_crash(text: str, noise: str, at: int) -> None:
    spoilt = text[:at] + noise + text[at:]
    for parse in (parse_query, parse_list, parse_lspci, parse_proc_net_tcp, parse_ss):
        parse(spoilt)


@given(st.text(alphabet="0123456789.[]NA/ MiB", max_size=12))
def test_no_text_becomes_a_memory_of_zero_by_mistake(value: str) -> None:
    card = parse_query(captured.ROW_4090.replace("24564", value)).cards
    if card and card[0].memory_bytes == 0:
        assert value.strip().startswith("0")
