"""Faults planted on this machine, and machines of captured files: each is found, with its value and the way out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lpx.doctor.checks import CHECKS, run_checks
from lpx.doctor.finding import Finding, Status, exit_code
from lpx.doctor.installation import command, extras, native
from lpx.doctor.leftovers import ServerProcess, installations, lpx_servers, processes, unfinished_pulls
from lpx.doctor.machine import DiskSpace, Interpreter, Machine, Output, run_command
from lpx.doctor.python import environment, packages, version
from lpx.doctor.requirements import Requirement
from lpx.doctor.sockets import is_lpx_server
from lpx.errors import ConfigError
from tests.doctor.captured import Captured
from tests.server.live_server import eventually

# Takes a free port, tells which, and keeps it until its input ends.
LISTEN = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def diagnose(machine: Machine, *names: str) -> dict[str, Finding]:
    return {finding.title: finding for finding in run_checks(machine, names).findings}


def test_this_machine_can_be_looked_at_by_anybody() -> None:
    report = run_checks(Machine())
    assert {finding.check for finding in report.findings} <= CHECKS.keys()
    for finding in report.findings:
        assert finding.found, finding
        assert finding.wanted, finding
        assert finding.why, finding
        assert "the check failed" not in finding.found, finding
        if finding.status in (Status.WARNING, Status.ERROR):
            assert finding.do, finding


def test_check_that_crashes_leaves_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def crash(machine: Machine) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("lpx.doctor.memory.check", crash)
    found = run_checks(Captured(tmp_path), ["cpu", "memory"]).findings
    assert [each.status for each in found if each.check == "memory"] == [Status.UNKNOWN]
    assert sum(each.check == "cpu" for each in found) == 5


def test_unknown_check_is_refused() -> None:
    with pytest.raises(ConfigError, match="no check 'gpus'; the checks are cpu"):
        run_checks(Machine(), ["gpus"])


def test_exit_codes() -> None:
    def finding(status: Status) -> Finding:
        return Finding(check="c", title="t", status=status, found="f", wanted="w", why="y")

    assert exit_code([finding(Status.OK), finding(Status.NOTE)]) == 0
    assert exit_code([finding(Status.OK), finding(Status.UNKNOWN)]) == 1
    assert exit_code([finding(Status.WARNING)]) == 1
    assert exit_code([finding(Status.WARNING), finding(Status.ERROR)]) == 2


class TestPorts:
    def test_holder_is_named(self) -> None:
        holder = subprocess.Popen(
            [sys.executable, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert holder.stdout is not None
            port = int(holder.stdout.readline())
            finding = diagnose(Machine(environment={"LPX_PORT": str(port)}), "ports")[f"port {port}"]
        finally:
            holder.communicate()
        assert finding.status is Status.WARNING
        assert re.search(rf"taken by python\S* \(pid {holder.pid}\) on 127\.0\.0\.1", finding.found)
        assert f"kill {holder.pid}" in finding.do
        assert finding.page == "LPX-E040"
        assert finding.fixes[0].risky

    def test_own_server_is_no_fault(self, tmp_path: Path) -> None:
        """A process that looks and listens like `lpx serve`."""
        (tmp_path / "lpx").write_text(LISTEN)
        command = [sys.executable, str(tmp_path / "lpx"), "serve"]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            machine = Machine(environment={"LPX_PORT": str(port)})
            finding = diagnose(machine, "ports")[f"port {port}"]
            servers = [each for each in lpx_servers(machine) if each.pid == server.pid]
        finally:
            server.communicate()
        assert finding.status is Status.NOTE
        assert finding.found.startswith("LPX serves here: python")
        assert [each.ports for each in servers] == [(port,)]

    def test_free_ports(self, tmp_path: Path) -> None:
        header = "  sl  local_address rem_address   st\n"
        found = diagnose(Captured(tmp_path, {"/proc/net/tcp": header}), "ports")
        assert {name: finding.status for name, finding in found.items()} == {
            "port 7860": Status.OK,
            "port 8000": Status.OK,
            "port 8080": Status.OK,
        }

    def test_holder_that_may_not_be_seen(self, tmp_path: Path) -> None:
        line = "0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 55 1 0 100 0 0 10 0"
        table = f"  sl  local_address rem_address   st\n   {line}\n"
        finding = diagnose(Captured(tmp_path, {"/proc/net/tcp": table}), "ports")["port 8000"]
        assert finding.status is Status.WARNING
        assert "sudo ss -ltnp" in finding.do

    @pytest.mark.parametrize("text", ["abc", "0", "65536", "9" * 5000])
    def test_setting_that_is_no_port(self, tmp_path: Path, text: str) -> None:
        found = diagnose(Captured(tmp_path, environment={"LPX_PORT": text}), "ports")["port"]
        assert found.status is Status.ERROR
        assert repr(text[:80]) in found.found

    def test_nothing_to_be_known(self, tmp_path: Path) -> None:
        assert diagnose(Captured(tmp_path), "ports")["port 8080"].status is Status.UNKNOWN

    @pytest.mark.parametrize(
        ("command", "is_server"),
        [
            (("/venv/bin/python", "/venv/bin/lpx", "serve", "--port", "1"), True),
            (("python3", "-m", "lpx", "serve"), True),
            (("lpx", "doctor"), False),
            (("vim", "lpx-notes", "serve"), False),
            ((), False),
        ],
    )
    def test_command_lines(self, command: tuple[str, ...], is_server: bool) -> None:
        assert is_lpx_server(command) is is_server


class TestDisk:
    def space(self, tmp_path: Path, free: int, inodes: int | None = 10**6) -> Finding:
        machine = Captured(
            tmp_path, environment={"LPX_MODELS_DIR": str(tmp_path)}, disk=lambda folder: DiskSpace(10**12, free, inodes)
        )
        return diagnose(machine, "disk")["room for models"]

    def test_marks(self, tmp_path: Path) -> None:
        assert self.space(tmp_path, 60 * 10**9).status is Status.OK
        assert self.space(tmp_path, 30 * 10**9).status is Status.NOTE
        warned = self.space(tmp_path, 15 * 10**9)
        assert (warned.status, warned.page) == (Status.WARNING, "LPX-E012")
        assert self.space(tmp_path, 5 * 10**8).status is Status.ERROR
        assert "free inodes" in self.space(tmp_path, 60 * 10**9, 3).found

    def test_full_disk(self, tmp_path: Path) -> None:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True, check=False
        )
        if mounted.returncode != 0:
            pytest.skip("only root may mount a small disk")
        try:
            subprocess.run(["sh", "-c", f"head -c 1M /dev/zero > {tmp_path}/full"], capture_output=True, check=False)
            finding = diagnose(Machine(environment={"LPX_MODELS_DIR": str(tmp_path / "models")}), "disk")[
                "room for models"
            ]
        finally:
            subprocess.run(["umount", str(tmp_path)], check=True)
        assert finding.status is Status.ERROR
        assert finding.found.startswith("full: 0.0 GB free")

    @pytest.mark.parametrize("name", ["absent/模型", "x" * 300, "file/models"])
    def test_folders_that_are_not_there(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "file").touch()
        found = diagnose(Machine(environment={"LPX_MODELS_DIR": str(tmp_path / name)}), "disk")
        assert "free of" in found["room for models"].found
        assert found["model folder"].status in (Status.OK, Status.NOTE, Status.WARNING)

    def test_network_folder(self, tmp_path: Path) -> None:
        files = {"/proc/mounts": f"nas:/m {tmp_path} nfs4 rw 0 0\n"}
        finding = diagnose(Captured(tmp_path, files, environment={"LPX_MODELS_DIR": str(tmp_path)}), "disk")[
            "model folder"
        ]
        assert (finding.status, finding.page) == (Status.NOTE, "LPX-E024")


class TestMemoryAndCores:
    def test_control_group_is_what_counts(self, tmp_path: Path) -> None:
        files = {
            "/proc/self/cgroup": "0::/docker/x\n",
            "/sys/fs/cgroup/docker/x/memory.max": str(1 << 30),
            "/sys/fs/cgroup/docker/x/memory.current": str(200 << 20),
            "/sys/fs/cgroup/docker/x/cpu.max": "50000 100000\n",
        }
        found = diagnose(Captured(tmp_path, files), "memory", "cpu")
        assert found["memory"].status is Status.WARNING
        assert "the control group leaves 0.8 GiB" in found["memory"].found
        assert found["cores"].status is Status.WARNING
        assert "the time of 0.5" in found["cores"].found

    def test_first_version_of_control_groups(self, tmp_path: Path) -> None:
        files = {
            "/proc/self/cgroup": "4:memory:/job\n1:cpu,cpuacct:/job\n",
            "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(400 << 20),
            "/sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(100 << 20),
            "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "150000",
            "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
        }
        found = diagnose(Captured(tmp_path, files), "memory", "cpu")
        assert found["memory"].status is Status.ERROR
        assert "the time of 1.5" in found["cores"].found

    def test_too_many_threads_are_noticed(self, tmp_path: Path) -> None:
        finding = diagnose(Captured(tmp_path, environment={"LPX_THREADS": "64"}), "cpu")["cores"]
        assert finding.status is Status.WARNING
        assert "64 threads are asked for" in finding.found

    def test_nodes(self, tmp_path: Path) -> None:
        files = {"/sys/devices/system/node/node0/x": "", "/sys/devices/system/node/node1/x": ""}
        assert "numactl" in diagnose(Captured(tmp_path, files), "cpu")["NUMA"].do


class TestCompiler:
    def test_missing_compiler_and_headers(self, tmp_path: Path) -> None:
        found = diagnose(Captured(tmp_path), "compiler")
        assert (found["C++ compiler"].status, found["C++ compiler"].page) == (Status.WARNING, "LPX-E080")
        assert "apt install g++" in found["C++ compiler"].do
        assert found["C++ compiler"].fixes
        assert found["Python headers"].status is Status.WARNING

    def test_compiler_missing_from_the_path_of_this_machine(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert diagnose(Machine(), "compiler")["C++ compiler"].status is Status.WARNING

    def test_old_compiler(self, tmp_path: Path) -> None:
        finding = diagnose(Captured(tmp_path, commands={"g++": "g++ (GCC) 8.5.0 20210514"}), "compiler")["C++ compiler"]
        assert finding.status is Status.WARNING
        assert "g++ 8 is too old" in finding.found

    def test_clang_is_enough(self, tmp_path: Path) -> None:
        commands: dict[str, Output | str] = {
            "clang++": "Ubuntu clang version 16.0.6\nTarget: x86_64",
            "g++": "g++ (GCC) 8.5.0",
        }
        assert diagnose(Captured(tmp_path, commands=commands), "compiler")["C++ compiler"].status is Status.OK

    def test_compiler_that_does_not_tell(self, tmp_path: Path) -> None:
        finding = diagnose(Captured(tmp_path, commands={"g++": "???"}), "compiler")["C++ compiler"]
        assert finding.status is Status.UNKNOWN


class TestPython:
    def test_versions(self) -> None:
        assert version(Interpreter((3, 9, 18))).status is Status.ERROR
        assert version(Interpreter((3, 12, 1))).status is Status.OK
        assert version(Interpreter((3, 15, 0))).status is Status.NOTE
        assert "32-bit" in version(Interpreter((3, 12, 1), is_64_bit=False)).found

    def test_environments(self, tmp_path: Path) -> None:
        system = Interpreter((3, 12, 1), "/usr/bin/python3", "/usr", "/usr")
        assert environment(Captured(tmp_path / "a", interpreter=system)).status is Status.NOTE
        assert environment(Captured(tmp_path / "b")).found == "virtual environment /venv"
        inside = Captured(tmp_path / "c", {"/.dockerenv": ""}, interpreter=system)
        assert environment(inside).status is Status.OK

    def test_conflicting_package_is_named(self) -> None:
        fine = Requirement("rich", ">=13.7", "14.0", True)
        finding = packages(
            [fine, Requirement("typer", "<0.29,>=0.15", "0.30", False), Requirement("jinja2", ">=3", None, False)]
        )
        assert finding.status is Status.ERROR
        assert "typer <0.29,>=0.15 wanted, 0.30 installed; jinja2 >=3 wanted, nothing installed" in finding.found
        assert "pip install 'typer<0.29,>=0.15' 'jinja2>=3'" in finding.do
        assert packages([fine]).status is Status.OK


class TestInstallation:
    def test_kernel_sets(self) -> None:
        assert native(None, ["avx2", "portable"], "").status is Status.OK
        assert native("portable", ["avx2", "portable"], "").status is Status.WARNING
        assert native(None, ["portable"], "").page == "LPX-E050"
        assert native("mmx", ["avx2", "portable"], "").status is Status.ERROR
        missing = native(None, [], "No module named 'lpx._native'")
        assert (missing.status, missing.page) == (Status.ERROR, "LPX-E081")
        assert "No module named" in missing.found

    def test_other_lpx_that_comes_first_on_the_path(self) -> None:
        assert command("/opt/old/bin/lpx", "/venv/bin/python").status is Status.WARNING
        assert command("/venv/bin/lpx", "/venv/bin/python").status is Status.OK
        assert command(None, "/venv/bin/python").status is Status.NOTE

    def test_link_to_this_lpx_is_this_lpx(self, tmp_path: Path) -> None:
        (tmp_path / "venv").mkdir()
        (tmp_path / "venv" / "lpx").touch()
        (tmp_path / "lpx").symlink_to(tmp_path / "venv" / "lpx")
        assert command(str(tmp_path / "lpx"), str(tmp_path / "venv" / "python")).status is Status.OK

    def test_extras(self) -> None:
        (finding,) = extras({"gpu": True, "plot": False})
        assert finding.found == "gpu; not installed: plot"
        assert list(extras({})) == []


class TestProfile:
    def test_port_of_the_profile_is_looked_at(self, tmp_path: Path) -> None:
        (tmp_path / "lpx.toml").write_text("[server]\nport = 8123\n")
        environment = {"LPX_PROFILE": str(tmp_path / "lpx.toml")}
        machine = Captured(tmp_path, {"/proc/net/tcp": "local_address\n"}, environment=environment)
        found = diagnose(machine, "ports", "lpx")
        assert "lpx serve takes it" in found["port 8123"].wanted
        assert found["profile"].status is Status.OK
        beaten = Captured(tmp_path, {}, environment={**environment, "LPX_PORT": "8124"})
        assert "port 8124" in diagnose(beaten, "ports")

    @pytest.mark.parametrize("text", ["port = ", "[server]\nporto = 1\n", None])
    def test_wrong_profile_is_an_error(self, tmp_path: Path, text: str | None) -> None:
        path = tmp_path / "lpx.toml"
        if text is not None:
            path.write_text(text)
        finding = diagnose(Captured(tmp_path, environment={"LPX_PROFILE": str(path)}), "lpx")["profile"]
        assert (finding.status, finding.page) == (Status.ERROR, "LPX-E093")
        assert "lpx.toml" in finding.found


class TestLeftovers:
    def test_stopped_server_is_found(self, tmp_path: Path) -> None:
        (tmp_path / "lpx").write_text("import sys; print(1, flush=True); sys.stdin.read()")
        server = subprocess.Popen(
            [sys.executable, str(tmp_path / "lpx"), "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            server.stdout.readline()
            os.kill(server.pid, 19)  # SIGSTOP

            def mine() -> list[ServerProcess]:
                return [each for each in lpx_servers(Machine()) if each.pid == server.pid and each.state == "T"]

            eventually(mine, "the stop")
            finding = processes(mine())
        finally:
            os.kill(server.pid, 18)  # SIGCONT
            server.communicate()
        assert finding.status is Status.WARNING
        assert f"pid {server.pid} (stopped" in finding.found
        assert finding.page == "LPX-E047"

    def test_unfinished_pulls(self, tmp_path: Path) -> None:
        (tmp_path / ".pull-x").mkdir()
        (tmp_path / ".pull-x" / "part").write_bytes(b"0" * 1000)
        (tmp_path / "model").mkdir()
        assert [(each.name, size) for each, size in unfinished_pulls(tmp_path)] == [(".pull-x", 1000)]
        assert unfinished_pulls(tmp_path / "absent") == []

    def test_second_installation(self, tmp_path: Path) -> None:
        assert installations(["0.1.0 in /a", "0.2.0 in /b"], Captured(tmp_path)).status is Status.WARNING
        machine = Captured(tmp_path, {"/site-packages/~px-0.1.0.dist-info/METADATA": ""})
        assert installations(["0.1.0 in /a"], machine).status is Status.WARNING
        assert installations(["0.1.0 in /a"], Captured(tmp_path / "clean")).status is Status.OK


class TestCommands:
    def test_command_that_hangs_ends_with_its_children(self, tmp_path: Path) -> None:
        script = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
        output = run_command(("sh", "-c", script), 1.0)
        assert (output.code, output.problem) == (None, "timeout")
        child = int((tmp_path / "pid").read_text())
        eventually(lambda: not is_running(child), "the end of the child")

    def test_command_that_is_missing(self) -> None:
        assert run_command(("no-such-command-of-lpx",), 1.0).missing

    def test_output_that_is_no_text(self) -> None:
        output = run_command(("printf", "\\377\\000caf\\351"), 5.0)
        assert output.ok
        assert "caf" in output.stdout

    def test_one_that_writes_without_end_is_ended(self) -> None:
        output = run_command(("sh", "-c", "exec yes GPU"), 60.0)
        assert (output.code, output.problem, output.stdout) == (None, "too much output", "")

    def test_both_streams_and_codes(self) -> None:
        output = run_command(("sh", "-c", "echo out; echo err >&2; exit 3"), 5.0)
        assert (output.code, output.text) == (3, "out\n\nerr\n")


def test_commands_that_hang_do_not_add_up(tmp_path: Path) -> None:
    given: list[float] = []

    def run(command: tuple[str, ...], limit_s: float) -> Output:
        given.append(limit_s)
        return Output(0)

    machine = Machine(tmp_path, {}, run=run, all_limit_s=10.0)
    assert machine.run("one", limit_s=60.0).ok
    assert given[0] <= 10.0
    late = Machine(tmp_path, {}, run=run, all_limit_s=0.0)
    assert late.run("two").problem == "timeout"
    assert len(given) == 1
