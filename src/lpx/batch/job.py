"""What a run is told, by options or by a config file."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from lpx.batch.errors import BatchFileError
from lpx.regular_file import read_bounded

Order = Literal["input", "completion"]
ORDERS: tuple[str, ...] = get_args(Order)
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """The config form; None is left to the command. Paths are as the command would read them."""

    input_file: str | None = None
    output_file: str | None = None
    batch_size: int | None = None  # requests at once
    retry_count: int | None = None
    url: str | None = None
    model: str | None = None
    order: str | None = None
    log_file: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("retry_count", 0)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not least <= value <= 100_000):
                raise BatchFileError(f"{name} must be a whole number of at least {least}, not {value!r}")
        for name in ("input_file", "output_file", "url", "model", "order", "log_file"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise BatchFileError(f"{name} must be a text, not {value!r}")
        if self.order is not None and self.order not in ORDERS:
            raise BatchFileError(f"order must be one of {', '.join(ORDERS)}, not {self.order!r}")


def read_config(path: Path) -> BatchConfig:
    """A config file of JSON. Raises `BatchFileError` that names the key."""
    try:
        value: Any = json.loads(read_bounded(path, _MOST_BYTES).decode("utf-8-sig"))
    except OSError as exc:
        raise BatchFileError(f"the config {path} cannot be read: {exc.strerror}") from None
    except (ValueError, RecursionError) as exc:
        raise BatchFileError(f"the config {path} is no JSON: {exc}") from None
    if not isinstance(value, dict):
        raise BatchFileError(f"the config {path} must be a JSON object")
    known = [field.name for field in fields(BatchConfig)]
    for key in value:
        if key not in known:
            raise BatchFileError(f"the config {path} has the unknown key {key!r}; known are {', '.join(known)}")
    try:
        return BatchConfig(**value)
    except BatchFileError as exc:
        raise BatchFileError(f"the config {path}: {exc}") from None
