"""The texts of a vocabulary's tokens in two blocks of memory: Python strings take ten times that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from lpx import _native


class TokenTexts(Sequence[str]):
    """An immutable list of strings."""

    def __init__(self, texts: list[str]) -> None:
        self._utf8, self._starts = _native.join_strings(texts)

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return self._utf8[self._starts[place] : self._starts[place + 1]].decode()
