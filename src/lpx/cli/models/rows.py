"""What commands say of a version: the same in JSON and in tables."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpx.store.folder import StoredModel


def version_row(model: StoredModel) -> dict[str, Any]:
    """For JSON."""
    return {**dataclasses.asdict(model), "path": str(model.path), "present": True}


def size(count: int) -> str:
    """`98.4 MB`; megabytes are 10⁶ bytes, as the sizes of files are told."""
    return (
        f"{count / 1e9:.2f} GB"
        if count >= 1e9
        else f"{count / 1e6:.1f} MB"
        if count >= 1e5
        else f"{count / 1e3:.1f} kB"
    )


def speed(model: StoredModel) -> str:
    """The latest measured decode speed, or "-"."""
    for figures in model.measured:
        value = figures.get("decode_tokens_per_second")
        if isinstance(value, int | float):
            return f"{value:.0f} tok/s"
    return "-"
