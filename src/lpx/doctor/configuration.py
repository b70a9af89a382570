"""What commands take when they are started here: the environment beats the profile that LPX_PROFILE names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lpx.doctor.machine import Machine
from lpx.model.models_dir import models_dir


@dataclass(frozen=True, slots=True)
class ReadProfile:
    """A profile as far as it could be read; `problem` says why it could not."""

    path: Path
    values: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


def read_profile(machine: Machine) -> ReadProfile | None:
    """The profile in use, or None."""
    return machine.once("profile", lambda: _read(machine.environment.get("LPX_PROFILE", "")))


def _read(name: str) -> ReadProfile | None:
    from lpx import profile

    if not name:
        return None
    try:
        return ReadProfile(Path(name), profile.read_profile(Path(name)).values)
    except profile.ProfileError as error:
        return ReadProfile(Path(name), problem=str(error))


def configured(machine: Machine, name: str) -> Any:
    """The value of an option such as "port": of the environment, else of the profile, else None."""
    profile = read_profile(machine)
    return machine.environment.get(f"LPX_{name.upper()}") or (profile.values.get(name) if profile else None)


def configured_models_dir(machine: Machine) -> Path:
    return models_dir(configured(machine, "models_dir"))
