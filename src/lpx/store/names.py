"""Names that become folders: of models and of versions. Everything else is refused before it reaches the disk.

ASCII letters and digits with `.`, `_` and `-` between, and Chinese characters. That leaves out separators, dots alone,
control characters, and letters of other scripts that look like these.
"""

from __future__ import annotations

import re

from lpx.errors import ModelNameError
from lpx.model.models_dir import CURRENT, MANIFEST, ORIGINAL, is_version_name

_MOST_CHARACTERS = 96
_HAN = "\u4e00-\u9fff"
_NAME = re.compile(rf"[A-Za-z0-9{_HAN}][A-Za-z0-9{_HAN}._-]*")
_FILE = re.compile(rf"[A-Za-z0-9{_HAN}_][A-Za-z0-9{_HAN}._+()\[\] -]*")
# Windows takes these for devices, with and without a suffix: a folder of models may travel there.
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_RESERVED = frozenset({CURRENT, ORIGINAL, MANIFEST})


def names_source(text: str) -> bool:
    """Whether `text` says where a model comes from, such as `hf:…`, rather than what it is called here."""
    return text.partition(":")[0].lower() in ("hf", "ms", "pypi", "http", "https")


def check_name(name: str) -> str:
    """`name` if a model may be called so; raises ModelNameError."""
    problem = _problem(name)
    if problem is None:
        return name
    raise ModelNameError(
        f"{shown(name)} cannot be the name of a model: {problem}. Take letters, digits, '.', '_' and '-', beginning "
        f"with a letter or digit, at most {_MOST_CHARACTERS} characters"
    )


def check_version(version: str) -> str:
    """`version` if a version may be called so; raises ModelNameError."""
    if is_version_name(version) and version.lower() not in _RESERVED and not _DEVICES.fullmatch(version):
        return version
    raise ModelNameError(
        f"{shown(version)} cannot be the name of a version: take letters, digits, '.', '_' and '-', beginning with a "
        f"letter or digit, at most 64 characters, and not {', '.join(sorted(_RESERVED))}"
    )


def check_file_name(name: str) -> str:
    """`name` if a file inside a version may be called so; it comes from elsewhere. Raises ModelNameError."""
    if _FILE.fullmatch(name) and len(name.encode()) <= 200 and not name.endswith((".", " ")) and not _is_device(name):
        return name
    raise ModelNameError(f"the source names a file {shown(name)}, which is not taken over: it could lead elsewhere")


def name_from(text: str) -> str:
    """A name made of what something is called elsewhere: lower case, with `-` for what a name cannot have."""
    name = re.sub(rf"[^A-Za-z0-9{_HAN}._-]+", "-", text).strip("-._").lower()[:_MOST_CHARACTERS].rstrip("-._")
    return check_name(name)


def shown(text: str) -> str:
    """For messages: quoted, escaped and not too long."""
    quoted = ascii(text) if not text.isprintable() else repr(text)
    return quoted if len(quoted) <= 80 else quoted[:77] + "..."


def _problem(name: str) -> str | None:
    if not name:
        return "it is empty"
    if len(name) > _MOST_CHARACTERS:
        return f"it has {len(name)} characters"
    if not _NAME.fullmatch(name):
        return "it has characters that names do not have"
    if name.endswith("."):
        return "it ends with a dot"
    if ".." in name:
        return "it has two dots in a row"
    if _is_device(name) or name.lower() in _RESERVED:
        return "it is reserved"
    if name.lower().endswith((".gguf", ".lock", ".partial")):
        return "it ends like a file"
    return None


def _is_device(name: str) -> bool:
    return bool(_DEVICES.fullmatch(name))
