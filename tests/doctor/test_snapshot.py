"""Records of the environment: nothing secret in them, and what changed comes by importance."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from lpx.cli.app import app
from lpx.doctor.finding import Finding, Status
from lpx.doctor.fix_script import write_fix_script
from lpx.doctor.snapshot import (
    KEPT_VARIABLES,
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


def test_only_known_settings_keep_their_values(tmp_path: Path) -> None:
    profile = tmp_path / "lpx.toml"
    profile.write_text(
        'port = 1\nplain = "MARKER"\n[model]\nmodel = "https://u:MARKER@h/m?access_token=MARKER#MARKER"\n'
        '[engine]\nmax-num-batched-tokens = 512\nkv_cache_memory = { note = "MARKER" }\n'
        'speculative-config = { method = "suffix", note = "MARKER" }\n'
        '[access]\napi_key = "MARKER"\napi_key_file = "keys.txt"\nallowed_hosts = ["hf_MARKER", "http://u:MARKER@h"]\n'
        '[server]\napi_key_file = "MARKER"\n[[backends]]\nurls = ["MARKER"]\n'
    )
    variables = {
        "LPX_FOO": "MARKER",
        "LPX_HUB_URL": "https://h/MARKER",
        "LPX_API_KEY": "MARKER",
        "LPX_BATCH_API_KEY": "MARKER",
        "LPX_MODEL": "u:MARKER@h/m.gguf?access_token=MARKER",
        "LPX_HOST": "Bearer MARKER",
        "LPX_MAX_NUM_BATCHED_TOKENS": "512",
        "HF_TOKEN": "MARKER",
    }
    taken = take_snapshot([], variables, profile)
    assert "MARKER" not in json.dumps(taken)
    assert taken["settings"] == {
        "LPX_FOO": "set",
        "LPX_HUB_URL": "set",
        "LPX_API_KEY": "set",
        "LPX_BATCH_API_KEY": "set",
        "LPX_MODEL": "h/m.gguf",
        "LPX_HOST": "set",
        "LPX_MAX_NUM_BATCHED_TOKENS": "512",
    }
    assert taken["profile"]["sha256"]
    assert taken["profile"]["values"] == {
        "port": "set",
        "plain": "set",
        "model.model": "https://h/m",
        "engine.max-num-batched-tokens": 512,
        "engine.kv_cache_memory.note": "set",
        "engine.speculative-config.method": "suffix",
        "engine.speculative-config.note": "set",
        "access.api_key": "set",
        "access.api_key_file": "keys.txt",
        "access.allowed_hosts": ["set", "http://h"],
        "server.api_key_file": "set",
        "backends": "set",
    }


def test_packages_are_recorded_without_where_they_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "planted-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (record / "direct_url.json").write_text('{"url": "https://u:MARKER@h/p.whl?access_token=MARKER"}')
    monkeypatch.syspath_prepend(str(tmp_path))
    taken = take_snapshot([], {}, tmp_path / "lpx.toml")
    assert taken["packages"]["planted"] == "1.0"
    assert "MARKER" not in json.dumps(taken)


def test_every_variable_of_an_option_is_known_or_a_secret() -> None:
    def variables(command: Any) -> Iterator[str]:
        for parameter in command.params:
            yield from [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or ()
        for inner in getattr(command, "commands", {}).values():
            yield from variables(inner)

    named = set(variables(get_command(app)))
    assert "LPX_MAX_NUM_SEQS" in named
    assert named - KEPT_VARIABLES == {"LPX_API_KEY", "LPX_ADMIN_API_KEY", "LPX_BATCH_API_KEY", "OPENAI_API_KEY"} & named


def test_values_that_an_earlier_version_kept_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    old = {**record(), "settings": {"LPX_FOO": "MARKER", "LPX_PORT": "1"}, "profile": {"values": {"a.b": "MARKER"}}}
    path.write_text(json.dumps(old))
    found = read_snapshot(path)
    assert found["settings"] == {"LPX_FOO": "set", "LPX_PORT": "1"}
    assert found["profile"]["values"] == {"a.b": "set"}


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
