"""The options of an engine as JSON values, so that a measurement can say what it ran and be run again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpx.errors import ConfigError

if TYPE_CHECKING:
    from lpx.options import EngineOptions


def settings_of(options: EngineOptions) -> dict[str, Any]:
    """What differs from the defaults."""
    found: dict[str, Any] = {}
    for name, value in _different(options):
        if name == "speculative_config":
            value = dict(_different(value))
        found[name] = str(value) if isinstance(value, Path) else value
    return found


def options_from(settings: Mapping[str, Any]) -> EngineOptions:
    """The options that `settings_of` made settings of. Raises ConfigError for unknown names and wrong values."""
    from lpx.options import EngineOptions

    known = option_names()
    for name in settings:
        if name not in known:
            raise ConfigError(f"{name!r} is no option of an engine; known are {', '.join(known)}")
    if "model" not in settings:
        raise ConfigError("the settings of an engine name no model")
    return EngineOptions(**settings)


def option_names() -> tuple[str, ...]:
    from lpx.options import EngineOptions

    return tuple(field.name for field in dataclasses.fields(EngineOptions))


def _different(instance: Any) -> list[tuple[str, Any]]:
    """(name, value) of the fields that have no default, or another value than it."""
    found = []
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        else:
            default = dataclasses.MISSING
        if value != default:
            found.append((field.name, value))
    return found
