"""Records of the environment: nothing secret in them, and what changed comes by importance."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.doctor.finding import Finding, Status
from lpx.doctor.fix_script import write_fix_script
from lpx.doctor.snapshot import (
    Importance,
    ModelEntry,
    compare_snapshots,
    flatten,
    read_snapshot,
    take_snapshot,
    write_snapshot,
)
from lpx.errors import ConfigError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


def write_long_fix_script(path: Path) -> None:
    long = Finding(check="c", title="t", status=Status.WARNING, found="x" * 9000, wanted="w", why="because", do="mend")
    write_fix_script(path, [long])


def record(**environment: object) -> dict[str, object]:
    return {"format": 1, "taken": "now", "environment": environment, "packages": {}, "models": {}, "settings": {}}


def test_record_goes_through_a_file_and_equals_itself(tmp_path: Path) -> None:
    model = tmp_path / "模型.gguf"
    model.write_bytes(b"x")
    taken = take_snapshot([ModelEntry("模型", model, 1)], {}, tmp_path / "lpx.toml", lambda path: "ab" * 32)
    write_snapshot(tmp_path / "a.json", taken)
    again = read_snapshot(tmp_path / "a.json")
    assert again == taken
    assert compare_snapshots(again, {**taken, "taken": "later"}) == []
    assert again["models"]["模型"] == {"file_bytes": 1, "sha256": "ab" * 32}
    assert again["environment"]["python"]
    assert again["packages"]["rich"]


def test_secrets_are_known_by_name_and_by_form_wherever_they_stand(tmp_path: Path) -> None:
    profile = tmp_path / "lpx.toml"
    profile.write_text(
        'auth = "Bearer MARKER"\npasswd = "MARKER"\nurl = "https://u:MARKER@h/x"\nmax_num_batched_tokens = 512\n'
        'api_key_file = "keys.txt"\n[[backends]]\napi_key = "MARKER"\nurls = ["http://u:MARKER@h", "hf_MARKER"]\n'
    )
    variables = {
        "LPX_AUTH": "Bearer MARKER",
        "LPX_PASSPHRASE": "MARKER",
        "LPX_HUB_URL": "https://u:MARKER@h",
        "LPX_OTHER": "sk-MARKER",
        "LPX_MAX_NUM_BATCHED_TOKENS": "512",
    }
    taken = take_snapshot([], variables, profile)
    assert "MARKER" not in json.dumps(taken)
    assert taken["settings"]["LPX_HUB_URL"] == "https://h"
    assert taken["settings"]["LPX_MAX_NUM_BATCHED_TOKENS"] == "512"
    values = taken["profile"]["values"]
    assert values["max_num_batched_tokens"] == 512
    assert values["backends.0.urls"] == ["http://h", "set"]


def test_no_secret_is_kept(tmp_path: Path) -> None:
    (tmp_path / "lpx.toml").write_text('port = 1\n[serve]\napi_key = "MARKER-1"\nhf_token = "MARKER-2"\n')
    variables = {"LPX_API_KEY": "MARKER-3", "LPX_PORT": "8081", "OTHER_SECRET": "MARKER-4", "HF_TOKEN": "MARKER-5"}
    taken = take_snapshot([], variables, tmp_path / "lpx.toml")
    assert "MARKER" not in json.dumps(taken)
    assert taken["settings"] == {"LPX_API_KEY": "set", "LPX_PORT": "8081"}
    assert taken["profile"]["sha256"]


def test_changes_come_by_importance() -> None:
    before = record(nvidia_driver="550.54.14", kernel="6.1", packages={"numpy": "1.26"})
    after = record(nvidia_driver="580.65.06", kernel="6.8", packages={"numpy": "2.0"})
    before["packages"] = {"numpy": "1.26", "pytest": "8"}
    after["packages"] = {"numpy": "2.0", "pytest": "9"}
    before["models"] = {"m": {"file_bytes": 1, "sha256": "a"}}
    after["models"] = {"m": {"file_bytes": 2, "sha256": "b"}}
    changes = compare_snapshots(before, after)
    assert [(change.name, change.importance) for change in changes] == [
        ("environment.nvidia_driver", Importance.HIGH),
        ("models.m.sha256", Importance.HIGH),
        ("environment.kernel", Importance.MEDIUM),
        ("environment.packages.numpy", Importance.MEDIUM),
        ("packages.pytest", Importance.LOW),
    ]
    assert (changes[0].before, changes[0].after) == ("550.54.14", "580.65.06")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        write_snapshot(path, record())
    assert path.read_text() == "mine"
    with pytest.raises(ConfigError, match="cannot be written"):
        write_snapshot(tmp_path / "no" / "a.json", record())


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"environment": 3, "format": 1}', "\xff", "[" * 100_000])
def test_files_that_are_no_record_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="no snapshot"):
        read_snapshot(path)


def test_later_formats_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**record(), "format": 2}))
    with pytest.raises(ConfigError, match="has the format 2"):
        read_snapshot(path)


@given(st.dictionaries(st.text(max_size=6), JSON, max_size=4), st.dictionaries(st.text(max_size=6), JSON, max_size=4))
def test_any_two_records_can_be_compared(before: dict[str, object], after: dict[str, object]) -> None:
    assert compare_snapshots(before, before) == []
    names = {change.name for change in compare_snapshots(before, after)}
    assert names <= flatten(before).keys() | flatten(after).keys()


def test_what_is_no_regular_file_is_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ConfigError, match="no regular file"):
            read_snapshot(path)
        assert "profile" not in take_snapshot([], {"LPX_PROFILE": str(path)})
    with (tmp_path / "large").open("wb") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(ConfigError, match="more than 16777216 bytes"):
        read_snapshot(tmp_path / "large")


@pytest.mark.parametrize("write", [lambda path: write_snapshot(path, {"a": "x" * 9000}), write_long_fix_script])
def test_what_a_full_disk_cuts_off_is_not_left_behind(tmp_path: Path, write: Callable[[Path], None]) -> None:
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(ConfigError, match="cannot be written"):
            write(tmp_path / "file")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []
