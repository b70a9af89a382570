"""What LPX asks for, as its installation records it, and what of that is there."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

_FOR_DEVELOPERS = frozenset({"test", "lint", "docs"})


@dataclass(frozen=True, slots=True)
class Requirement:
    """`installed` is None when the package is absent."""

    name: str
    wanted: str
    installed: str | None
    fits: bool


def installed_requirements(extra: str = "") -> list[Requirement] | None:
    """LPX's own requirements, or those that an extra adds; None when they cannot be read."""
    try:
        from packaging.requirements import Requirement as Parsed
    except ImportError:  # comes with the Hugging Face libraries; without it there is nothing to compare with
        return None
    try:
        texts = metadata.requires("lpx") or []
    except metadata.PackageNotFoundError:
        return None
    found = []
    for text in texts:
        parsed = Parsed(text)
        always = parsed.marker is None or parsed.marker.evaluate({"extra": ""})
        if always == bool(extra):
            continue
        if extra and parsed.marker is not None and not parsed.marker.evaluate({"extra": extra}):
            continue
        try:
            installed = metadata.version(parsed.name)
        except metadata.PackageNotFoundError:
            found.append(Requirement(parsed.name, str(parsed.specifier), None, False))
            continue
        fits = parsed.specifier.contains(installed, prereleases=True)
        found.append(Requirement(parsed.name, str(parsed.specifier), installed, fits))
    return found


def extras() -> list[str]:
    """The extras for users, by name."""
    try:
        names = metadata.metadata("lpx").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return []
    return [name for name in names if name not in _FOR_DEVELOPERS]
