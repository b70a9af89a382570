"""What an interrupted tuning leaves beside its profile, so that the same command goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lpx.errors import ConfigError
from lpx.regular_file import read_regular
from lpx.store.atomic import write_text

_FORMAT = 1
_MOST_BYTES = 4 << 20
_MOST = 1 << 20  # of whole numbers of the workload


def _is_whole(value: Any, least: int = 0, most: int = 1 << 31) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _optional(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _is_speculation(value: Any) -> bool:
    return isinstance(value, dict) and _is_text(value.get("method"))


_OPTIONS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("threads", "max_num_seqs", "max_num_batched_tokens"), lambda value: _is_whole(value, 1)),
    **dict.fromkeys(("isa", "kv_cache_dtype"), _is_text),
    "itl_target_ms": _is_number,
    "speculative_config": _is_speculation,
}
_WORKLOAD: dict[str, Callable[[Any], bool]] = dict.fromkeys(
    ("prompts", "max_tokens", "concurrency", "requests"), lambda value: _is_whole(value, 1, _MOST)
)
_STEP: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("option", "verdict", "why"), _is_text),
    "value": lambda value: value is None or _is_text(value) or _is_number(value) or isinstance(value, dict),
    **dict.fromkeys(("ratio", "low", "high"), _optional(_is_number)),
    "rounds": _is_whole,
    "run_id": _optional(_is_whole),
}
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
        found = json.loads(read_regular(path, _MOST_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} cannot be read ({reason}); --restart begins anew") from None
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
    if (wrong := _wrong_part(found)) is not None:
        raise ConfigError(f"{path} is no whole state of a tuning: its {wrong} cannot be used; --restart begins anew")
    return TuneState(now, found["workload"], found["start"], found["values"], found["steps"])


def _wrong_part(found: Mapping[str, Any]) -> str | None:
    """The name of what `save_state` does not write like this."""
    workload, start, values, steps = (found.get(name) for name in ("workload", "start", "values", "steps"))
    if workload is not None and not _has_all(workload, _WORKLOAD):
        return "workload"
    if not isinstance(start, dict):
        return "start"
    if not isinstance(values, dict) or not all(name in _OPTIONS and _OPTIONS[name](values[name]) for name in values):
        return "values"
    if not isinstance(steps, list):
        return "steps"
    return next((f"step {number}" for number, step in enumerate(steps, 1) if not _has_all(step, _STEP)), None)


def _has_all(values: Any, wanted: Mapping[str, Callable[[Any], bool]]) -> bool:
    """Exactly the names of `wanted`, each with a value that fits."""
    return (
        isinstance(values, dict)
        and values.keys() == wanted.keys()
        and all(fits(values[name]) for name, fits in wanted.items())
    )


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
    write_text(path, text)
