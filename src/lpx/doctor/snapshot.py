"""The record of a working installation, to compare with later: system, driver, packages, models, settings.

Records are shown to others. So of settings only known ones keep their value, and addresses only what names a place:
what this version does not know may be a secret, whatever it is called.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from enum import IntEnum
from pathlib import Path
from typing import Any

from lpx.addresses import without_secrets
from lpx.doctor.environment import read_environment
from lpx.doctor.new_file import write_new
from lpx.errors import ConfigError
from lpx.profile import key_named
from lpx.regular_file import read_regular
from lpx.speculative_config import SpeculativeConfig

FORMAT = 1
KEPT_VARIABLES = frozenset(
    f"LPX_{name}"
    for name in (
        *("MODEL", "MODELS_DIR", "PROFILE", "LEDGER", "DEBUG", "THREADS", "ISA", "DTYPE", "QUANTIZATION"),
        *("KV_CACHE_MEMORY", "KV_CACHE_DTYPE", "ITL_TARGET_MS", "ENABLE_PREFIX_CACHING", "MAX_MODEL_LEN"),
        *("MAX_NUM_SEQS", "MAX_NUM_BATCHED_TOKENS", "CHAT_TEMPLATE", "TOKENIZER_PRE", "SPECULATIVE_CONFIG"),
        *("HOST", "PORT", "SERVED_MODEL_NAME", "LOG_FORMAT", "DATA_DIR", "API_KEY_FILE"),
    )
)
_SPECULATION = frozenset(field.name for field in fields(SpeculativeConfig))
_SET = "set"  # stands for a value that is not kept
_KEY_FORM = re.compile(r"\s*(bearer|basic)\s|(sk|hf|ghp|glpat|xox[a-z])[-_]", re.IGNORECASE)  # in the wrong place
_MOST_BYTES = 16 << 20
_MOST_PROFILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model of the folder; `sha256` is None when it was not computed."""

    name: str
    path: Path
    file_bytes: int
    sha256: str | None = None


def take_snapshot(
    models: list[ModelEntry],
    environment: Mapping[str, str] | None = None,
    profile: Path | None = None,
    hash_model: Callable[[Path], str | None] | None = None,
) -> dict[str, Any]:
    """JSON values. Hashes of models come from their manifests, else from `hash_model`. No key and no secret is kept.

    `profile` is the file of options, by default the one that LPX_PROFILE names, else `lpx.toml` of the working folder.
    """
    variables = os.environ if environment is None else environment
    profile = profile or Path(variables.get("LPX_PROFILE") or "lpx.toml")
    taken: dict[str, Any] = {
        "format": FORMAT,
        "taken": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": read_environment().to_json(),
        "packages": installed_packages(),
        "models": {
            model.name: {
                "file_bytes": model.file_bytes,
                "sha256": model.sha256 or (hash_model(model.path) if hash_model else None),
            }
            for model in models
        },
        "settings": _kept(
            {name: value for name, value in variables.items() if name.startswith("LPX_")}, KEPT_VARIABLES.__contains__
        ),
    }
    text = _read(profile)
    if text is not None:
        taken["profile"] = {"sha256": hashlib.sha256(text.encode()).hexdigest(), **_profile_values(text)}
    return taken


def installed_packages() -> dict[str, str]:
    """Version of each distribution of this Python, by its normalized name."""
    from importlib import metadata

    found: dict[str, str] = {}
    for each in metadata.distributions():
        described = each.metadata  # parsed at each access
        if described and described["Name"]:
            name = re.sub(r"[-_.]+", "-", described["Name"]).lower()
            found.setdefault(name, described["Version"] or "?")
    return dict(sorted(found.items()))


def _read(path: Path) -> str | None:
    try:
        return read_regular(path, _MOST_PROFILE_BYTES).decode("utf-8")
    except (OSError, ValueError):
        return None


def _profile_values(text: str) -> dict[str, Any]:
    """The values of a TOML file by their dotted names; empty where this Python has no reader for it."""
    try:
        reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        values = json.loads(json.dumps(reader.loads(text), default=str))
    except (ImportError, ValueError, RecursionError):
        return {}
    return {"values": _kept(flatten(values), _is_known_key)}


def _kept(values: Mapping[str, Any], is_known: Callable[[str], bool]) -> dict[str, Any]:
    """Known settings with their values, and of others only that they are set."""
    return {name: _plain(value) if is_known(name) else _SET for name, value in sorted(values.items())}


def _is_known_key(name: str) -> bool:
    """Whether `name` is a key of a profile with its section, such as `server.port`, and no secret one."""
    section, _, rest = name.partition(".")
    spelled, _, inner = rest.partition(".")
    try:
        key = key_named(spelled)
    except KeyError:
        return False
    if key.section != section or key.secret:
        return False
    return not inner or (key.kind == "speculation" and inner.replace("-", "_") in _SPECULATION)


def _plain(value: Any) -> Any:
    """`value` without what addresses in it keep secret, and without keys that stand where none belongs."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        if value.lstrip().startswith("{"):  # drafting as JSON
            return _known_drafting(value)
        return _SET if _KEY_FORM.match(value) else without_secrets(value)
    return _SET if isinstance(value, dict) else value


def _known_drafting(text: str) -> str:
    """What stands in a JSON object of drafting options under known names; all of it where it is no such object."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return _SET
    return json.dumps(_kept(values, lambda name: name.replace("-", "_") in _SPECULATION))


def write_snapshot(path: Path, snapshot: Mapping[str, Any]) -> None:
    """Raises ConfigError where the file exists already or cannot be written: an old record is not lost by accident."""
    try:
        write_new(path, json.dumps(snapshot, ensure_ascii=False, indent=2) + "\n")
    except FileExistsError:
        raise ConfigError(f"{path} exists already; name another file") from None
    except OSError as error:
        raise ConfigError(f"the snapshot {path} cannot be written: {error.strerror}") from None


def read_snapshot(path: Path) -> dict[str, Any]:
    """Raises ConfigError for a file that is no snapshot, or one of a later format."""
    try:
        found = json.loads(read_regular(path, _MOST_BYTES).decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"the snapshot {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} is no snapshot: it is not JSON") from None
    if not isinstance(found, dict) or not isinstance(found.get("environment"), dict):
        raise ConfigError(f"{path} is no snapshot; lpx snapshot -o FILE writes one")
    if found.get("format") != FORMAT:
        raise ConfigError(f"{path} has the format {found.get('format')!r}; this LPX reads {FORMAT}")
    return _without_unknown_values(found)


def _without_unknown_values(snapshot: dict[str, Any]) -> dict[str, Any]:
    """A record as this version would have taken it: earlier ones kept values of variables that they did not know."""
    settings, profile = snapshot.get("settings"), snapshot.get("profile")
    if isinstance(settings, dict):
        snapshot["settings"] = _kept(settings, KEPT_VARIABLES.__contains__)
    if isinstance(profile, dict) and isinstance(profile.get("values"), dict):
        profile["values"] = _kept(profile["values"], _is_known_key)
    return snapshot


class Importance(IntEnum):
    """How likely a change explains other speed or other answers."""

    HIGH = 0
    MEDIUM = 1
    LOW = 2


# The first that begins a dotted name decides; what it means is said with it.
_IMPORTANCE: tuple[tuple[str, Importance, str], ...] = (
    ("environment.nvidia_driver", Importance.HIGH, "measure again before you go live"),
    ("environment.cuda", Importance.HIGH, "measure again before you go live"),
    ("environment.gpus", Importance.HIGH, "another card: other speed, other formats"),
    ("environment.cpu_model", Importance.HIGH, "another processor: other speed"),
    ("environment.native_isa", Importance.HIGH, "other kernels: other speed"),
    ("environment.instruction_sets", Importance.HIGH, "other kernels may be taken"),
    ("environment.lpx", Importance.HIGH, "measure again, and check the answers"),
    ("models.", Importance.HIGH, "another model: other answers"),
    ("profile.", Importance.HIGH, "other settings"),
    ("settings.", Importance.HIGH, "other settings"),
    ("environment.packages.", Importance.MEDIUM, "a package that LPX runs with"),
    ("environment.", Importance.MEDIUM, "the system around it"),
    ("packages.lpx", Importance.HIGH, "measure again, and check the answers"),
    ("packages.", Importance.LOW, "another package"),
)


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs; None where it is absent."""

    name: str
    before: Any
    after: Any
    importance: Importance
    meaning: str


def compare_snapshots(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """What differs, most important first. The time of the records is not compared."""
    old, new = flatten(_compared(before)), flatten(_compared(after))
    changes = []
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) == new.get(name):
            continue
        if name.endswith(".file_bytes") and old.get(_hash_name(name)) != new.get(_hash_name(name)):
            continue  # the hash says it already
        # Packages that matter stand in the environment, too: said once.
        if name.startswith("packages.") and f"environment.{name}" in old.keys() | new.keys():
            continue
        importance, meaning = _importance(name)
        changes.append(Change(name, old.get(name), new.get(name), importance, meaning))
    return sorted(changes, key=lambda change: (change.importance, change.name))


def _hash_name(name: str) -> str:
    return name.removesuffix("file_bytes") + "sha256"


def _compared(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in snapshot.items() if name not in ("format", "taken")}


def _importance(name: str) -> tuple[Importance, str]:
    for start, importance, meaning in _IMPORTANCE:
        if name == start or name.startswith(start):
            return importance, meaning
    return Importance.MEDIUM, "not known to this version"


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted names of all values; lists count as one value."""
    found: dict[str, Any] = {}
    for name, each in value.items():
        if isinstance(each, Mapping):
            found.update(flatten(each, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = each
    return found
