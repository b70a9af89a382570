"""What an interrupted tuning leaves beside its profile, so that the same command goes on where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lpx.errors import ConfigError

_FORMAT = 1
_TOLD = {
    "machine": "the machine",
    "model": "the model",
    "lpx": "the version of LPX",
    "goal": "the target, the limits or the concurrency",
    "fixed": "the options given",
}


@dataclass(slots=True)
class TuneState:
    """Steps so far. `identity` is what must be the same for them to mean anything; `steps` and values are JSON."""

    identity: dict[str, Any]
    workload: dict[str, Any] | None = None
    start: dict[str, Any] = field(default_factory=dict)  # what the options at the start come to, such as threads
    values: dict[str, Any] = field(default_factory=dict)  # of the best so far, where they differ from the start
    steps: list[dict[str, Any]] = field(default_factory=list)


def identity(model: Path, fixed: Mapping[str, Any], goal: Mapping[str, Any]) -> dict[str, Any]:
    """Machine, model and wishes. The model counts by name, size and time, for hashing may take long."""
    from lpx.doctor.environment import read_environment

    here = read_environment()
    files = [model] if model.is_file() else sorted(file for file in model.iterdir() if file.is_file())
    stats = [(file.name, file.stat()) for file in files]
    return {
        "machine": [here.cpu_model, here.usable_cpus, here.cpu_quota, here.memory_bytes, here.native_isa],
        "model": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats],
        "lpx": here.lpx,
        "goal": dict(goal),
        "fixed": dict(fixed),
    }


def state_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.tuning.json")


def load_state(path: Path, wanted: Mapping[str, Any]) -> TuneState | None:
    """What an earlier run left; None when there is nothing. Raises ConfigError when it is not of the same run."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); --restart begins anew") from None
    if not isinstance(found, dict) or found.get("format") != _FORMAT or not isinstance(found.get("identity"), dict):
        raise ConfigError(f"{path} is not the state of a tuning that this LPX knows; --restart begins anew")
    # What was written went through JSON, where tuples are lists.
    now = json.loads(json.dumps(wanted))
    changed = [told for key, told in _TOLD.items() if found["identity"].get(key) != now.get(key)]
    if changed:
        raise ConfigError(
            f"{path} is of an unfinished tuning, and {' and '.join(changed)} changed since: its steps would mean "
            "nothing. --restart begins anew; -o names another profile"
        )
    return TuneState(now, found["workload"], found["start"], found["values"], found["steps"])


def save_state(path: Path, state: TuneState) -> None:
    """At once, in place of an earlier one. OSError when that cannot be done."""
    text = json.dumps(
        {
            "format": _FORMAT,
            "identity": state.identity,
            "workload": state.workload,
            "start": state.start,
            "values": state.values,
            "steps": state.steps,
        },
        ensure_ascii=False,
        indent=1,
    )
    temporary = path.with_name(f".{path.name}.new")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
