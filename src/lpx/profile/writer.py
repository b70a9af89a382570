"""Writing a profile: sections, keys with what they do, and a file that is there as a whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lpx.profile.keys import KEYS, SECTIONS, Key


def profile_text(
    values: Mapping[str, Any], *, heading: Sequence[str] = (), notes: Mapping[str, str] | None = None
) -> str:
    """TOML of `values` (by option name). `heading` lines come first as comments, `notes` beside their keys.

    Keys of the sections in use that have no value are there as comments, with their defaults, so that the file tells
    what else could be set. Raises KeyError for a name that is no option.
    """
    unknown = values.keys() - {key.name for key in KEYS}
    if unknown:
        raise KeyError(", ".join(sorted(unknown)))
    lines = [f"# {line}".rstrip() for line in heading]
    for section, meaning in SECTIONS.items():
        keys = [key for key in KEYS if key.section == section]
        if not any(key.name in values for key in keys):
            continue
        lines += ["", f"[{section}]  # {meaning}"]
        for key in keys:
            lines += _key_lines(key, values, (notes or {}).get(key.name))
    return "\n".join(lines).lstrip("\n") + "\n"


def write_profile(path: Path, text: str, *, private: bool = False) -> None:
    """Put `text` at `path` at once, replacing what was there; `private`: for the owner alone.

    OSError when that cannot be done.
    """
    directory = path.parent
    number, temporary = tempfile.mkstemp(dir=directory, prefix=f".{path.name}.", suffix=".new")
    try:
        with open(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o600 if private else 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _key_lines(key: Key, values: Mapping[str, Any], note: str | None) -> list[str]:
    if key.name in values:
        lines = [f"# {key.help}"]
        if note:
            lines += [f"# {line}" for line in note.splitlines()]
        return [*lines, f"{key.spelled} = {_toml(values[key.name])}"]
    return [f"# {key.spelled} = {key.default}  # {key.help}"] if key.default is not None else []


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are TOML's, and TOML wants one more character escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_bare_key(name)} = {_toml(each)}" for name, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(_toml(each) for each in value)}]"
    raise TypeError(f"{value!r} cannot be written to a profile")


def _bare_key(name: str) -> str:
    return name.replace("_", "-")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
