"""The fix script: plain shell that can be run twice, never overwrites, and runs nothing that it only shows."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lpx.doctor.checks import run_checks
from lpx.doctor.finding import Finding, Fix, Status
from lpx.doctor.fix_script import fix_script, write_fix_script
from lpx.errors import ConfigError
from tests.doctor import captured
from tests.doctor.captured import Captured, card_files, failed, smi


def finding(*fixes: Fix, found: str = "something", do: str = "mend it") -> Finding:
    return Finding(
        check="c", title="t", status=Status.WARNING, found=found, wanted="w", why="because", do=do, fixes=fixes
    )


def every_finding(tmp_path: Path) -> list[Finding]:
    """Of machines on which everything that has a fix is wrong."""
    broken = Captured(
        tmp_path / "broken",
        {
            **card_files("nouveau"),
            "/proc/modules": "nouveau 1 0 - Live 0x0\n",
            "/sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]",
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "acpi-cpufreq",
            "/proc/driver/nvidia/version": captured.MODULE_OPEN,
        },
        {**smi(failed(captured.MISMATCH)), "docker": '{"ServerVersion": "27", "Runtimes": {}}', "nvidia-ctk": "1.17"},
        {"LPX_MODELS_DIR": str(tmp_path)},
    )
    working = Captured(tmp_path / "working", card_files("nvidia"), smi(captured.ROW_4090, captured.TABLE_550))
    return [*run_checks(broken).findings, *run_checks(working).findings]


def test_script_of_every_fix_is_sound_shell(tmp_path: Path) -> None:
    text = fix_script(every_finding(tmp_path))
    for said in ("blacklist nouveau", "nvidia-ctk runtime configure", "install_packages", "scaling_governor", "-pm 1"):
        assert said in text
    path = tmp_path / "fix.sh"
    path.write_text(text)
    subprocess.run(["sh", "-n", str(path)], check=True)
    checker = shutil.which("shellcheck") or shutil.which("shellcheck", path=os.path.dirname(sys.executable))
    if checker is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([checker, "-s", "sh", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_script_runs_what_is_needed_once(tmp_path: Path) -> None:
    done = tmp_path / "done"
    fix = Fix(title="Make it", needed=f"[ ! -e {done} ]", commands=(f"echo x >> {done}",))
    path = tmp_path / "fix.sh"
    write_fix_script(path, [finding(fix), finding(fix, found="the same step again")])
    first = subprocess.run(["sh", str(path)], capture_output=True, text=True, check=True)
    second = subprocess.run(["sh", str(path)], capture_output=True, text=True, check=True)
    assert done.read_text() == "x\n"
    assert "1. Make it" in first.stdout
    assert "not needed" not in first.stdout
    assert "not needed" in second.stdout


def test_risky_steps_are_shown_and_not_run(tmp_path: Path) -> None:
    done = tmp_path / "done"
    path = tmp_path / "fix.sh"
    write_fix_script(path, [finding(Fix(title="Restart", needed="true", commands=(f"touch {done}",), risky=True))])
    subprocess.run(["sh", str(path)], check=True)
    assert not done.exists()
    assert f"#     touch {done}" in path.read_text()


def test_texts_of_the_machine_cannot_become_commands(tmp_path: Path) -> None:
    done = tmp_path / "done"
    evil = f"x\ntouch {done}\r\ntouch {done}\x85touch {done}\u2028$(touch {done})`touch {done}`'; touch {done} #"
    path = tmp_path / "fix.sh"
    write_fix_script(path, [finding(Fix(title=evil, needed="true", commands=("true",)), found=evil), finding(do=evil)])
    subprocess.run(["sh", str(path)], check=True, capture_output=True)
    assert not done.exists()


def test_script_is_for_its_owner_and_overwrites_nothing(tmp_path: Path) -> None:
    path = tmp_path / "修复.sh"
    write_fix_script(path, [finding()])
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    before = path.read_text()
    with pytest.raises(ConfigError, match="exists already"):
        write_fix_script(path, [])
    assert path.read_text() == before
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError):
        write_fix_script(link, [])
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_fix_script(tmp_path / "no" / "fix.sh", [])


def test_nothing_to_mend_says_so() -> None:
    text = fix_script([])
    assert "nothing that a script could mend" in text
    assert "as_root" not in text
