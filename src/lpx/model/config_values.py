"""Checked access to the values of a model's own description: GGUF metadata or config.json.

Every value is asked for with its type and range, and an error names the key, the value and what was wanted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lpx.errors import ModelFileError, UnsupportedModelError

_MAX_INTEGER = 1 << 31
_MIN_POSITIVE, _MAX_NUMBER = 1e-12, 1e12


class ConfigValues:
    """A view of `values` whose keys all start with `prefix`; `origin` (a path) starts each error.

    A key that is absent and one that is null are the same. Methods without a default raise ModelFileError for them.
    """

    def __init__(self, values: Mapping[str, Any], origin: str, prefix: str = "") -> None:
        self._values = values
        self._origin = origin
        self._prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str) -> Any:
        """The value as it is; None when absent."""
        return self._values.get(self._prefix + key)

    def with_defaults(self, defaults: Mapping[str, Any]) -> ConfigValues:
        """The same values, and `defaults` for keys that are absent (a null stays a null)."""
        return ConfigValues({**defaults, **self._values}, self._origin, self._prefix)

    def where(self, key: str) -> str:
        """How errors call a key."""
        return f"{self._origin}: {self._prefix}{key}"

    def _fail(self, key: str, value: Any, wanted: str) -> ModelFileError:
        return ModelFileError(f"{self.where(key)} is {_short(value)}, but must be {wanted}")

    def _required(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ModelFileError(f"{self.where(key)} is missing")
        return value

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = _MAX_INTEGER) -> int:
        """An integer in [low, high]. An array with the same integer for each layer counts as that integer."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        value = self._required(key)
        if hasattr(value, "tolist"):  # NumPy's, as GGUF arrays of numbers are read
            value = value.tolist()
        if isinstance(value, list) and value and all(type(item) is int for item in value):
            if any(item != value[0] for item in value):
                raise UnsupportedModelError(f"{self.where(key)} differs between layers, which LPX does not support")
            value = value[0]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._fail(key, value, f"an integer from {low} to {high}")
        return value

    def optional_integer(self, key: str, *, low: int = 1, high: int = _MAX_INTEGER) -> int | None:
        return None if self.get(key) is None else self.integer(key, low=low, high=high)

    def number(self, key: str, default: float | None = None, *, low: float = 0.0, high: float = math.inf) -> float:
        """A finite number in [low, high]."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        value = self._required(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _in_range(value, low, high):
            raise self._fail(key, value, f"a finite number from {low:g} to {high:g}")
        return float(value)

    def positive(self, key: str, default: float | None = None, *, high: float = _MAX_NUMBER) -> float:
        """A number above 0 whose powers and logarithms stay finite."""
        value = self.get(key)
        return default if value is None and default is not None else self.number(key, low=_MIN_POSITIVE, high=high)

    def optional_number(self, key: str, *, low: float = 0.0, high: float = math.inf) -> float | None:
        return None if self.get(key) is None else self.number(key, low=low, high=high)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._fail(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.get(key)
        if value is None and default is not None:
            return default
        value = self._required(key)
        if not isinstance(value, str):
            raise self._fail(key, value, "a string")
        return value

    def numbers(self, key: str, length: int) -> list[float]:
        """A list of `length` finite numbers above 0."""
        value = self._required(key)
        if not isinstance(value, list) or len(value) != length:
            raise self._fail(key, value, f"a list of {length} numbers")
        for item in value:
            if (
                isinstance(item, bool)
                or not isinstance(item, int | float)
                or not _in_range(item, 0.0, math.inf)
                or item == 0
            ):
                raise self._fail(key, item, "a list of finite numbers greater than 0")
        return [float(item) for item in value]

    def section(self, key: str) -> ConfigValues | None:
        """The values of a nested object; None when absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._fail(key, value, "an object")
        return ConfigValues(value, f"{self._origin}: {self._prefix}{key}")

    def softcap(self, key: str, default: float = 0.0) -> float:
        """A soft cap: a finite number above 0, or 0 (also for null) for off."""
        return self.number(key, default)


def _in_range(value: int | float, low: float, high: float) -> bool:
    return math.isfinite(value) and low <= value <= high


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
