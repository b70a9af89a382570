"""A pull that is killed, cut off or finds the disk full leaves nothing broken, and the next one finishes it.

`LPX_KILL_POINTS` sets at how many moments pulls are killed (20 for the full proof), and as many find the disk full.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lpx.errors import DownloadError
from lpx.store import list_models
from lpx.store.fetch import fetch
from lpx.store.verify import verify
from tests.server.live_server import eventually
from tests.store.fake_hub import Hub
from tests.store.killed_pulls import IMPATIENT
from tests.store.openable import gguf, hf_folder

ROOT = Path(__file__).parents[2]
POINTS = int(os.environ.get("LPX_KILL_POINTS", "2"))
REPOSITORY = "someone/Tiny-GGUF"
CONTENT = gguf(1, 1_500_000)
FOLDER = hf_folder(2, num_hidden_layers=6)


def environment(hub: Hub) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HF_ENDPOINT": hub.url,
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def disturb(hub: Hub, mode: str, reference: str, folder: Path, seed: int) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "tests.store.killed_pulls", mode, reference, str(folder), str(seed), str(POINTS)]
    done = subprocess.run(command, cwd=ROOT, env=environment(hub), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("mode", "reference"),
    [("kill", f"hf:{REPOSITORY}:q8_0"), ("kill", "hf:someone/Folder"), ("full", f"hf:{REPOSITORY}")],
)
def test_every_moment_leaves_a_sound_store(tmp_path: Path, mode: str, reference: str) -> None:
    with Hub() as hub:
        hub.files = {REPOSITORY: {"tiny-q8_0.gguf": CONTENT}, "someone/Folder": FOLDER}
        rows = disturb(hub, mode, reference, tmp_path, seed=5)
        assert len(rows) == POINTS
        assert any(request.headers.get("range") for request in hub.requests)  # what was there was not fetched again


def test_a_full_disk_is_gone_on_with_when_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one, where this user may make one."""
    folder = tmp_path / "models"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this user may not mount a tmpfs")
    try:
        with Hub() as hub:
            hub.files = {REPOSITORY: {"tiny-q8_0.gguf": CONTENT}}
            monkeypatch.setenv("HF_ENDPOINT", hub.url)
            with pytest.raises(DownloadError, match="not enough disk space"):
                fetch(f"hf:{REPOSITORY}", folder, patience=IMPATIENT)
            assert hub.requests == []  # asked for first
            monkeypatch.setattr("lpx.store.fetch.check_space", lambda *_: None)  # others fill it meanwhile
            monkeypatch.setattr("lpx.store.download.check_space", lambda *_: None)
            with pytest.raises(DownloadError, match="No space left"):
                fetch(f"hf:{REPOSITORY}", folder, patience=IMPATIENT)
            assert list_models(folder) == []
            subprocess.run(["mount", "-o", "remount,size=4m", str(folder)], check=True)
            model = fetch(f"hf:{REPOSITORY}", folder, patience=IMPATIENT)
            assert verify(model).sound
            assert hub.requests[-1].headers["range"].startswith("bytes=")
            subprocess.run(["mount", "-o", "remount,size=1600k", str(folder)], check=True)
            with pytest.raises(DownloadError, match="No space left"):
                fetch(f"hf:{REPOSITORY}", folder, patience=IMPATIENT, name="another")
            assert [each.name for each in list_models(folder)] == ["tiny-q8_0"]
    finally:
        subprocess.run(["umount", str(folder)], check=False)


def test_two_at_once_fetch_once(tmp_path: Path) -> None:
    """The second waits for the first, and says so."""
    script = """
import sys
from pathlib import Path
from lpx.store.fetch import fetch
phases = []
model = fetch(sys.argv[1], Path(sys.argv[2]), lambda phase, *_: phases.append(phase))
print(model.path, "waiting" in phases)
"""
    with Hub() as hub:
        hub.files = {REPOSITORY: {"tiny-q8_0.gguf": CONTENT}}
        hub.faults.append(lambda request, answer: setattr(answer, "pause_after", 1000))
        command = [sys.executable, "-c", script, f"hf:{REPOSITORY}", str(tmp_path / "models")]
        start = {"env": environment(hub), "stdout": subprocess.PIPE, "text": True}
        first = subprocess.Popen(command, **start)
        assert hub.reached_pause.wait(60)
        second = subprocess.Popen(command, **start)
        eventually(lambda: second.poll() is not None or _waits_for_a_lock(second.pid), "the wait for the first")
        assert second.poll() is None
        hub.gate.set()
        outputs = [process.communicate(timeout=120)[0].split() for process in (first, second)]
    (model,) = list_models(tmp_path / "models")
    assert outputs == [[str(model.path), "False"], [str(model.path), "True"]]
    assert len(hub.requests) == 1
    assert verify(model).sound


def _waits_for_a_lock(pid: int) -> bool:
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f" {pid} " in line for line in lines)
