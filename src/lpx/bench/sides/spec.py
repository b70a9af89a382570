"""How the sides of a comparison are written: a server's address, LPX with options, or a profile.

http://127.0.0.1:8000                    any OpenAI-compatible server
http://127.0.0.1:8000,model=NAME         with options: model, endpoint_type, name
lpx:model=smollm2-135m,threads=1         LPX in this machine, with options of the engine
lpx:python=/opt/old/bin/python,model=…   another installation of it
lpx.toml                                 LPX as a profile has it
lpx:profile=lpx.toml,threads=1           with changes
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpx.bench.engine_settings import option_names, options_from, settings_of
from lpx.errors import ConfigError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_SHORT = {"speculative": "speculative_config", "quant": "quantization"}
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class EngineSide:
    """LPX in a process of its own; `settings` as of `lpx.bench.engine_settings`."""

    name: str
    settings: Mapping[str, Any]
    python: str | None = None  # the interpreter of another installation


@dataclass(frozen=True, slots=True)
class ServerSide:
    """A server that somebody else runs."""

    name: str
    url: str
    model: str | None = None  # None: the first one that it names
    endpoint_type: str = "openai-completions"


Side = EngineSide | ServerSide


def parse_sides(texts: Sequence[str], defaults: Mapping[str, Any] | None = None) -> tuple[Side, ...]:
    """All sides, called A, B, … unless they have names. Raises ConfigError."""
    if len(texts) > len(_LETTERS):
        raise ConfigError(f"{len(texts)} sides are too many to compare; at most {len(_LETTERS)}")
    sides = tuple(parse_side(text, letter, defaults) for text, letter in zip(texts, _LETTERS, strict=False))
    names = [side.name for side in sides]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two sides are called {name!r}; give one another name=…")
    return sides


def parse_side(text: str, name: str, defaults: Mapping[str, Any] | None = None) -> Side:
    """One side; `defaults` are engine settings that hold unless the text says otherwise. Raises ConfigError."""
    text = text.strip()
    if re.match(r"https?://", text):
        return _server(text, name)
    if text == "lpx" or text.startswith("lpx:"):
        return _engine(_options(text.removeprefix("lpx").removeprefix(":"), text), name, defaults or {})
    if text.endswith(".toml"):
        return _engine({"profile": text}, name, defaults or {})
    raise ConfigError(
        f"{text!r} is no side of a comparison; write a server's address (http://127.0.0.1:8000), LPX with options "
        "(lpx:model=smollm2-135m,threads=1), or a profile (lpx.toml)"
    )


def engine_setting(option: str, text: str) -> tuple[str, Any]:
    """Name and value of `option=text` as a setting of an engine. Raises ConfigError for unknown names."""
    name = option.strip().replace("-", "_")
    name = _SHORT.get(name, name)
    if name not in option_names():
        raise ConfigError(f"{option!r} is no option of LPX's engine; there are {', '.join(option_names())}")
    return name, _value(name, text.strip())


def _server(text: str, name: str) -> ServerSide:
    from lpx.bench.load.settings import LoadSettings

    url, _, rest = text.partition(",")
    options = _options(rest, text)
    name = options.pop("name", name)
    model, endpoint_type = options.pop("model", None), options.pop("endpoint_type", "openai-completions")
    if options:
        wrong = next(iter(options))
        raise ConfigError(f"{text!r}: a server has no option {wrong!r}; it has model, endpoint_type and name")
    checked = LoadSettings(base_url=url, model=model, endpoint_type=endpoint_type)
    return ServerSide(name, checked.base_url, checked.model, checked.endpoint_type)


def _engine(options: dict[str, str], name: str, defaults: Mapping[str, Any]) -> EngineSide:
    from lpx import store

    name, python = options.pop("name", name), options.pop("python", None)
    settings = dict(defaults)
    if (profile := options.pop("profile", None)) is not None:
        settings.update(_profile_settings(Path(profile)))
    settings.update(engine_setting(option, text) for option, text in options.items())
    settings.setdefault("model", store.DEFAULT_MODEL)
    if settings["model"] != defaults.get("model") and "served_model_name" not in options:
        settings.pop("served_model_name", None)  # it is the name of another model
    return EngineSide(name, settings_of(options_from(settings)), python)  # wrong values are refused here


def _profile_settings(path: Path) -> dict[str, Any]:
    from lpx.profile import read_profile

    known, settings = option_names(), {}
    for key, value in read_profile(path).values.items():
        if key in known:
            settings[key] = _value(key, value) if isinstance(value, str) else value
    return settings


def _options(text: str, whole: str) -> dict[str, str]:
    """`a=1,b=x,y` as {"a": "1", "b": "x,y"}: a comma parts options only where another `name=` follows."""
    options: dict[str, str] = {}
    for part in re.split(r",(?=[A-Za-z_-]+=)", text) if text else ():
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name or not value.strip():
            raise ConfigError(f"{whole!r}: {part!r} is no option; write name=value, with commas between")
        if name in options:
            raise ConfigError(f"{whole!r} has {name} twice")
        options[name] = value.strip()
    return options


def _value(name: str, text: str) -> Any:
    """As the engine's option takes it, by the type of that option."""
    from lpx.options import EngineOptions

    kind = next(str(field.type) for field in dataclasses.fields(EngineOptions) if field.name == name)
    if name == "kv_cache_memory":
        match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT]?)(?:i?B)?", text, re.ASCII | re.IGNORECASE)
        if match is None:
            raise ConfigError(f"{name}={text} is no size; write bytes or a number with K, M, G or T, such as 512M")
        return int(float(match[1]) * _UNITS[match[2].upper()])
    if name == "speculative_config" and not text.startswith("{"):
        return {"method": text}
    if name == "models_dir":
        return text
    try:
        if "bool" in kind:
            return _WORDS[text.lower()]
        if "int" in kind:
            return int(text)
        if "float" in kind:
            return float(text)
    except (KeyError, ValueError):
        wanted = "true or false" if "bool" in kind else "a number"
        raise ConfigError(f"{name}={text} must be {wanted}") from None
    return text
