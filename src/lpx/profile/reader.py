"""Reading a profile: TOML to option values, with every key and type checked.

What an option refuses for other reasons (a port beyond 65535, an unknown kind of cache) is refused where the option is
checked anyway, with the name of the file before it.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpx.errors import ConfigError
from lpx.profile.keys import KEYS, SECTIONS, Key, key_named
from lpx.regular_file import read_regular

_MOST_BYTES = 1 << 20
_WANTED = {
    "text": "text in quotes",
    "whole": "a whole number",
    "number": "a number",
    "flag": "true or false",
    "size": 'a number of bytes, or text such as "512M"',
    "path": "a path in quotes",
    "model": "a path or a name in quotes",
    "template": "a path or the template itself, in quotes",
    "list": 'a list of texts, such as ["a", "b"]',
    "speculation": 'a table such as { method = "suffix", num-speculative-tokens = 8 }',
}


class ProfileError(ConfigError):
    """A profile cannot be read, or holds a wrong key or value; the message names file, section and key."""

    help_code = "LPX-E093"


@dataclass(frozen=True, slots=True)
class Profile:
    """A file as read. `values` are by option name, ready for the option: paths absolute, speculation as JSON text."""

    path: Path
    values: Mapping[str, Any]


def read_profile(path: Path) -> Profile:
    """Read and check a profile. Raises ProfileError."""
    try:
        return _read(path)
    except RecursionError:
        raise ProfileError(f"{path} is nested too deep") from None


def _read(path: Path) -> Profile:
    document = _parse(path)
    values: dict[str, Any] = {}
    for section, content in document.items():
        if section not in SECTIONS:
            raise ProfileError(f"{path}: {_unknown_section(section, content)}")
        if not isinstance(content, dict):
            raise ProfileError(f"{path}: {section} is a section: write [{section}], and its keys below")
        for spelled, value in content.items():
            key = _find(path, section, spelled)
            if key.name in values:
                raise ProfileError(f"{path}: [{section}] has {key.spelled} twice, as {key.spelled} and as {key.name}")
            values[key.name] = _value(path, key, value)
    for name in values:
        if key_named(name).secret:
            _check_private(path, key_named(name))
    return Profile(path, values)


def _parse(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(read_regular(path, _MOST_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise ProfileError(f"the profile {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path} is not UTF-8 text (byte {error.start})") from None
    except ValueError as error:  # a number of thousands of digits is one that tomllib does not call its own
        raise ProfileError(f"{path} is not TOML: {error}") from None


def _unknown_section(section: str, content: Any) -> str:
    name = section.replace("-", "_")
    for key in KEYS:
        if key.name == name and not isinstance(content, dict):
            return f"the key {section} belongs into the section [{key.section}]"
    kind = f"the section [{section}]" if isinstance(content, dict) else f"the key {section}"
    near = difflib.get_close_matches(section, SECTIONS, n=1, cutoff=0.5)
    hint = f"; did you mean [{near[0]}]?" if near and isinstance(content, dict) else "."
    return f"{kind} is not known{hint} Sections are {', '.join(f'[{each}]' for each in SECTIONS)}"


def _find(path: Path, section: str, spelled: str) -> Key:
    """The key of this section; the error names the nearest one there is."""
    name = spelled.replace("-", "_")
    for key in KEYS:
        if key.name == name:
            if key.section == section:
                return key
            raise ProfileError(f"{path}: {spelled} in [{section}] belongs into the section [{key.section}]")
    near = difflib.get_close_matches(name, [key.name for key in KEYS], n=1, cutoff=0.0)
    nearest = next(key for key in KEYS if key.name == near[0])
    raise ProfileError(
        f"{path}: [{section}] has the key {spelled}, which is not known; the nearest is {nearest.spelled} in "
        f"[{nearest.section}]"
    )


def _value(path: Path, key: Key, value: Any) -> Any:
    """`value` as the option takes it."""
    is_text, is_whole = isinstance(value, str), isinstance(value, int) and not isinstance(value, bool)
    is_whole = is_whole and abs(value) < 2**63  # TOML's integers
    if key.kind == "text" and is_text:
        return value
    if key.kind == "whole" and is_whole:
        return value
    if key.kind == "number" and (is_whole or (isinstance(value, float) and math.isfinite(value))):
        return float(value)
    if key.kind == "flag" and isinstance(value, bool):
        return value
    if key.kind == "size" and (is_whole or is_text):
        return str(value)
    if key.kind == "list":
        texts = [value] if is_text else value
        if isinstance(texts, list) and all(isinstance(each, str) for each in texts):
            return texts
    if key.kind == "path" and is_text and value:
        return str(_beside(path, value))
    if key.kind == "model" and is_text and value:
        return _model(path, value)
    if key.kind == "template" and is_text:
        return value if "{" in value else str(_beside(path, value))
    if key.kind == "speculation" and is_text:
        return value
    if key.kind == "speculation" and isinstance(value, dict):
        config = {name.replace("-", "_"): each for name, each in value.items()}
        if isinstance(config.get("model"), str) and config["model"]:
            config["model"] = _model(path, config["model"])
        try:
            return json.dumps(config, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError):  # a date, or nan: no value of this table
            pass
    shown = "" if key.secret else f", not {_shown(value)}"
    raise ProfileError(f"{path}: {key.spelled} in [{key.section}] must be {_WANTED[key.kind]}{shown}")


def _model(path: Path, value: str) -> str:
    """A model beside the profile, or else what was written: a name, or a path that says so itself."""
    beside = _beside(path, value)
    if Path(value).is_absolute() or value.startswith(("./", "../", "~")) or beside.exists():
        return str(beside)
    return value


def _beside(path: Path, value: str) -> Path:
    """Relative paths are relative to the profile."""
    return path.parent.absolute() / os.path.expanduser(value)


def _check_private(path: Path, key: Key) -> None:
    mode = path.stat().st_mode
    if stat.S_ISREG(mode) and mode & 0o077:
        raise ProfileError(
            f"{path} holds {key.spelled}, and others on this machine may read it: chmod 600 {path}, or put the keys "
            "into a file of their own and name it by api-key-file"
        )


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "…"
