"""`lpx doctor`, `lpx snapshot` and `lpx explain` as processes."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, Lpx


def test_report_is_plain_text_of_80_columns(lpx: Lpx) -> None:
    done = lpx("doctor", "cpu", "python", "disk", "--verbose")
    assert done.returncode in (0, 1, 2)
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert all(len(line) <= 80 and line == line.rstrip() for line in done.stdout.splitlines())
    assert [line for line in done.stdout.splitlines() if re.fullmatch(r"\w+", line)] == ["cpu", "disk", "python"]


def test_json_has_every_field_and_the_exit_code(lpx: Lpx) -> None:
    done = lpx("doctor", "--json", "cpu", "memory")
    report = json.loads(done.stdout)
    assert report["exit_code"] == done.returncode
    assert {finding["check"] for finding in report["findings"]} == {"cpu", "memory"}
    for finding in report["findings"]:
        assert {"check", "title", "status", "found", "wanted", "why", "do", "page", "fixes"} == finding.keys()


def test_error_is_found_and_ends_with_2(lpx: Lpx, tmp_path: Path) -> None:
    script = tmp_path / "fix.sh"
    done = lpx("doctor", "lpx", "--fix-script", str(script), LPX_ISA="mmx")
    assert done.returncode == 2
    for said in ("error", "LPX_ISA=mmx", "unset LPX_ISA", "why", "wanted", "lpx explain LPX-E002", str(script)):
        assert said in done.stdout
    assert "unset LPX_ISA" in script.read_text()
    again = lpx("doctor", "lpx", "--fix-script", str(script))
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_wrong_check_names_those_there_are(lpx: Lpx) -> None:
    done = lpx("doctor", "显卡")
    assert done.returncode == 2
    assert done.stderr.startswith("error[LPX-E002]: there is no check '显卡'; the checks are cpu, ")


def test_script_is_written_before_the_reader_of_the_report_goes(environment: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "fix.sh"
    command = f"{' '.join(COMMAND)} doctor cpu --fix-script {script} | true"
    subprocess.run(command, shell=True, env=environment, check=True, timeout=60)
    assert script.exists()


def test_explain_shows_pages_and_meanings(lpx: Lpx) -> None:
    listed = lpx("explain").stdout.splitlines()
    assert "LPX-E040  The port is in use" in listed
    page = lpx("explain", "e040")
    assert page.stdout.startswith("# LPX-E040: The port is in use\n")
    assert "端口被占用" in page.stdout
    meant = lpx("explain", "-", input='docker: Error: could not select device driver "" with capabilities: [[gpu]].\n')
    assert "lpx explain LPX-E066" in meant.stdout
    pasted = lpx("explain", "error[LPX-E040]: port 8080 is in use (lpx explain LPX-E040)")
    assert pasted.stdout.count("# LPX-E040") == 1
    for unknown in ("LPX-E999", "hello"):
        assert lpx("explain", unknown).returncode == 2


def test_snapshot_and_what_changed(lpx: Lpx, tmp_path: Path) -> None:
    before, after = str(tmp_path / "before.json"), str(tmp_path / "after.json")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "模型.gguf").write_bytes(b"weights")
    (tmp_path / "models" / "absent.gguf").symlink_to(tmp_path / "models" / "gone")
    folder = ("--models-dir", str(tmp_path / "models"))
    assert lpx("snapshot", "-o", before, *folder).returncode == 0
    wanted = {"file_bytes": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}
    assert json.loads(Path(before).read_text("utf-8"))["models"] == {"模型": wanted}
    assert "exists already" in lpx("snapshot", "-o", before, "--no-hash").stderr
    assert lpx("snapshot", "-o", after, *folder, LPX_THREADS="2", LPX_API_KEY="MARKER").returncode == 0
    assert "MARKER" not in Path(after).read_text()
    changed = lpx("snapshot", "diff", before, after, "--exit-code")
    assert changed.returncode == 1
    assert "settings.LPX_THREADS: 1 -> 2" in changed.stdout
    rows = json.loads(lpx("snapshot", "diff", before, after, "--json").stdout)["changes"]
    assert {row["name"] for row in rows} == {"settings.LPX_THREADS", "settings.LPX_API_KEY"}


@pytest.mark.parametrize("file", ["absent.json", "."])
def test_diff_of_what_is_no_record(lpx: Lpx, file: str) -> None:
    done = lpx("snapshot", "diff", file, file)
    assert done.returncode == 2
    assert done.stderr.startswith("error[LPX-E002]: ")
